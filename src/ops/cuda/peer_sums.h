// The sums that ranks' cards take out of each other's memory (peer_sum.h): how they begin, and which ones.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ops/cuda/peer_sum.h"
#include "ops/device_link.h"

namespace quire::ops::cuda {

class PeerSums {
 public:
  // Called by all ranks of the group at once, each with its card the current one. Tries a sum, for as long as a second,
  // so that cards that cannot hear each other are found out. Errors, on all ranks alike: unavailable where one's memory
  // cannot be reached by another, and where the sum is not what it should be; invalid_argument for too many ranks.
  static Result<std::unique_ptr<PeerSums>> begin(const LinkGroup& group, cudaStream_t stream);
  ~PeerSums();
  PeerSums(const PeerSums&) = delete;
  PeerSums& operator=(const PeerSums&) = delete;

  // Whether this is the faster way for so many numbers, and they lie as the kernel wants them: on all ranks alike,
  // whose memory is laid out alike.
  bool takes(const float* values, int64_t count) const;
  void add_up(float* values, int64_t count);

 private:
  PeerSums(const LinkGroup& group, cudaStream_t stream);
  Status open(const std::vector<cudaIpcMemHandle_t>& handles);
  Status try_a_sum();

  const cudaStream_t stream_;
  PeerSum sum_;
};

}  // namespace quire::ops::cuda
