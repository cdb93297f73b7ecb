#include "sched/fair_share.h"

#include <algorithm>

namespace quire::sched {

double FairShare::expected_output(const Tenant& tenant, int64_t max_output) {
  return std::min(tenant.mean_output, static_cast<double>(max_output));
}

double FairShare::arrived(int32_t tenant, double weight, int32_t priority, int64_t num_prompt_tokens,
                          int64_t max_output) {
  Tenant& state = tenants_[tenant];
  const double start = std::max({virtual_time_, state.end, state.last_start});
  state.last_start = start;
  state.end = start + (static_cast<double>(num_prompt_tokens) + expected_output(state, max_output)) / weight;
  return start + static_cast<double>(priority) * tokens_per_level_;
}

void FairShare::started(double tag, int32_t priority) {
  virtual_time_ = std::max(virtual_time_, tag - static_cast<double>(priority) * tokens_per_level_);
}

void FairShare::finished(int32_t tenant, double weight, int64_t max_output, int64_t num_output) {
  Tenant& state = tenants_[tenant];
  const double actual = static_cast<double>(num_output);
  state.end += (actual - expected_output(state, max_output)) / weight;
  state.mean_output += (actual - state.mean_output) / 16;
}

}  // namespace quire::sched
