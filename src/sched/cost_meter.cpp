#include "sched/cost_meter.h"

#include <algorithm>

namespace quire::sched {
namespace {

constexpr double kPrefillTokens = 64;
constexpr double kLeastShare = 1.0 / 3;  // of rule 5's step; where short prompts come it may be half of it
constexpr double kMostAtOnce = 2;        // times the mean: one step that took long says little

void average(double& mean, double value) {
  mean = mean == 0 ? value : mean + (std::min(value, kMostAtOnce * mean) - mean) / 8;
}

}  // namespace

CostMeter::CostMeter(const SchedulerConfig& config, const PreemptionCosts& known)
    : tokens_per_position_(config.tokens_per_position),
      tenant_step_seconds_(config.tenant_step_seconds),
      costs_(known) {}

double CostMeter::least_cost() const {
  const double seconds = costs_.seconds_per_recomputed_token;
  if (seconds <= 0 || tenant_step_seconds_ <= 0) return kPrefillTokens;
  return std::min(kPrefillTokens, kLeastShare * std::max(tenant_step_seconds_ / seconds, kLeastSharedTokens));
}

bool CostMeter::observe(const PlannedStep& plan, double computed, double swap) {
  double tokens = 0;
  double attended = 0;  // what their attending to others was thought to cost, in tokens
  for (const PlannedStep::Run& run : plan.runs) {
    const int32_t rows = run.num_new_tokens + run.num_draft_tokens;
    tokens += rows;
    attended += cost_in_tokens(tokens_per_position_, run.num_computed_tokens, rows) - rows;
  }
  const double cost = tokens + costs_.attention_factor * attended;
  const bool tells = cost >= least_cost();
  if (tells) {
    // A step tells of the larger of the two.
    double& seconds = costs_.seconds_per_recomputed_token;
    if (seconds == 0 || 2 * costs_.attention_factor * attended < tokens) {
      average(seconds, computed / cost);
    } else if (attended > tokens / 2) {
      average(costs_.attention_factor, std::clamp((computed / seconds - tokens) / attended, 0.125, 16.0));
    }
  }
  if (swap > 0 && plan.num_swapped_blocks > 0) {
    average(costs_.seconds_per_swapped_block, swap / static_cast<double>(plan.num_swapped_blocks));
  }
  return tells || plan.num_swapped_blocks > 0;
}

}  // namespace quire::sched
