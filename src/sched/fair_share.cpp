#include "sched/fair_share.h"

#include <algorithm>

#include "base/check.h"

namespace quire::sched {

ShareCharge FairShare::arrived(int32_t tenant, double weight, int32_t priority, int64_t num_prompt_tokens,
                               int64_t max_output, int32_t num_answers) {
  Tenant& state = tenants_[tenant];
  ShareCharge charge;
  charge.tenant = tenant;
  charge.weight = weight;
  charge.num_answers = num_answers;
  charge.prompt = static_cast<double>(num_prompt_tokens);
  charge.output = num_answers * std::min(state.mean_output, static_cast<double>(max_output));
  charge.start = std::max(virtual_time_, state.end);
  if (!state.waiting.empty()) charge.start = std::max(charge.start, *state.waiting.rbegin());
  charge.tag = charge.start + static_cast<double>(priority) * tokens_per_level_;
  state.waiting.insert(charge.start);
  state.end = charge.start + (charge.prompt + charge.output) / weight;
  return charge;
}

void FairShare::started(ShareCharge& charge) {
  if (!charge.waits) return;
  charge.waits = false;
  std::multiset<double>& waiting = tenants_[charge.tenant].waiting;
  waiting.erase(waiting.find(charge.start));
  virtual_time_ = std::max(virtual_time_, charge.start);
}

void FairShare::ended(const ShareCharge& charge, int64_t num_output) {
  Tenant& state = tenants_[charge.tenant];
  if (charge.waits) {
    QUIRE_CHECK(num_output == 0);
    state.waiting.erase(state.waiting.find(charge.start));
    state.end -= (charge.prompt + charge.output) / charge.weight;
    return;
  }
  const double actual = static_cast<double>(num_output);
  state.end += (actual - charge.output) / charge.weight;
  state.mean_output += (actual / charge.num_answers - state.mean_output) / 16;
}

}  // namespace quire::sched
