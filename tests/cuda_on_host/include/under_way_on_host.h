// What a thread of a block has begun and has not waited for yet: copies to shared memory, products of warpgroups.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace quire::cuda_on_host {

// Groups that were committed, from the oldest on, and the one that grows.
template <typename T>
class UnderWay {
 public:
  void add(T one) { open_.push_back(std::move(one)); }
  void commit() {
    committed_.push_back(std::move(open_));
    open_.clear();
  }
  // Does all but the last `groups` groups.
  template <typename Do>
  void wait(size_t groups, const Do& act) {
    while (committed_.size() > groups) {
      for (const T& one : committed_.front()) act(one);
      committed_.erase(committed_.begin());
    }
  }

 private:
  std::vector<std::vector<T>> committed_;
  std::vector<T> open_;
};

// Of this thread of the block. A kernel waits for all before it ends.
template <typename T>
UnderWay<T>& under_way() {
  static thread_local std::vector<UnderWay<T>> of_threads(1024);
  return of_threads[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}

}  // namespace quire::cuda_on_host
