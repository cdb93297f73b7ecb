// Who is served next when several tenants (API keys) ask at once: weighted shares of tokens by start-time fair queueing
// (Goyal, Vin and Cheng, 1996), with tokens as the service as in the virtual token counter (Sheng et al., 2024).
//
// A request gets a tag when it arrives: the virtual time, or the end of its tenant's last request if that is later. Its
// own end lies cost / weight further. Requests are served by rising tag, so a tenant's flood queues behind itself while
// another's single request starts at once; with one tenant the order is that of arrival. What an answer will cost is
// not known in advance: the mean of the tenant's answers stands for it. That estimate is kept with the request, and
// when it ends the difference to what it did cost is charged or given back: of a request that never started,
// everything.
//
// A priority level moves the tag by a fixed number of tokens: a request of level p + 1 goes behind that much work of
// level p that came after it, and never behind more. That is ageing with a static order.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>

namespace quire::sched {

// What a request has been charged with, kept with it.
struct ShareCharge {
  double tag = 0;     // the order of service
  double start = 0;   // the tag without the priority
  double prompt = 0;  // tokens
  double output = 0;  // tokens expected of all its answers
  int32_t tenant = 0;
  double weight = 1.0;
  int32_t num_answers = 1;  // that are computed side by side: the beams of a search
  bool waits = true;        // it has not started
};

class FairShare {
 public:
  // tokens_per_level: 0 ignores priorities.
  explicit FairShare(double tokens_per_level) : tokens_per_level_(tokens_per_level) {}

  // Charges a request with this many prompt tokens and num_answers answers of at most max_output each. weight > 0.
  ShareCharge arrived(int32_t tenant, double weight, int32_t priority, int64_t num_prompt_tokens, int64_t max_output,
                      int32_t num_answers = 1);
  // It is served from now on: virtual time follows.
  void started(ShareCharge& charge);
  // It is over, with num_output tokens computed of all its answers together. REQUIRES: once for each that arrived.
  void ended(const ShareCharge& charge, int64_t num_output);

 private:
  struct Tenant {
    double end = 0;                 // tag at which the next request begins at the earliest
    std::multiset<double> waiting;  // starts of those that have not started: requests of one tenant keep their order
    double mean_output = 128;       // of an answer
  };

  double tokens_per_level_;
  double virtual_time_ = 0;
  std::unordered_map<int32_t, Tenant> tenants_;  // as many as there are keys
};

}  // namespace quire::sched
