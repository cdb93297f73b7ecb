// Who is served next when several tenants (API keys) ask at once: weighted shares of tokens by start-time fair queueing
// (Goyal, Vin and Cheng, 1996), with tokens as the service as in the virtual token counter (Sheng et al., 2024).
//
// A request gets a tag when it arrives: the virtual time, or the end of its tenant's last request if that is later. Its
// own end lies cost / weight further. Requests are served by rising tag, so a tenant's flood queues behind itself while
// another's single request starts at once; with one tenant the order is that of arrival. What an answer will cost is
// not known in advance: the mean of the tenant's answers stands for it and is corrected when it ends.
//
// A priority level moves the tag by a fixed number of tokens: a request of level p + 1 goes behind that much work of
// level p that came after it, and never behind more. That is ageing with a static order.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace quire::sched {

class FairShare {
 public:
  // tokens_per_level: 0 ignores priorities.
  explicit FairShare(double tokens_per_level) : tokens_per_level_(tokens_per_level) {}

  // The tag of a request with this many prompt tokens and at most max_output of answer. weight > 0.
  double arrived(int32_t tenant, double weight, int32_t priority, int64_t num_prompt_tokens, int64_t max_output);
  // It is served from now on: virtual time follows.
  void started(double tag, int32_t priority);
  // Its answer ended with num_output tokens.
  void finished(int32_t tenant, double weight, int64_t max_output, int64_t num_output);

 private:
  struct Tenant {
    double end = 0;         // tag at which the next request begins at the earliest
    double last_start = 0;  // requests of one tenant keep their order
    double mean_output = 128;
  };
  static double expected_output(const Tenant& tenant, int64_t max_output);

  double tokens_per_level_;
  double virtual_time_ = 0;
  std::unordered_map<int32_t, Tenant> tenants_;  // as many as there are keys
};

}  // namespace quire::sched
