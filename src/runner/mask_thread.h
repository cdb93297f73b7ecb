// Makes the masks of structured output beside the forward pass.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "sampling/sequence_sampler.h"

namespace quire::runner {

// A thread of its own, for where a core is left that does not compute.
class MaskThread {
 public:
  MaskThread();

  // SequenceSampler::make_mask() of each, which must not be touched until wait(). REQUIRES: waited for what was before.
  void start(std::vector<sampling::SequenceSampler*> samplers);
  // Until all is done, if anything is to do.
  void wait();
  // Processor time since this was last asked. REQUIRES: nothing is under way.
  double take_seconds();

 private:
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<sampling::SequenceSampler*> samplers_;  // to be done; empty: nothing is under way
  double seconds_ = 0;
  std::jthread thread_;  // last, so that it ends first
};

}  // namespace quire::runner
