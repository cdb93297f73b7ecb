// Which of several engines of the same model a request goes to (data parallel): where most of its prompt has been
// computed before, unless others have much less to do.
//
// What replicas have cached is their schedulers' to know. The router remembers where it sent the beginnings of prompts
// and counts what an engine's load says; where a replica has dropped a prefix since, its prompt is computed there
// again.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "types/ids.h"

namespace quire::engine {

// Thread-safe.
class ReplicaRouter {
 public:
  // block_size: tokens of a prefix that are looked at together.
  ReplicaRouter(int num_replicas, int32_t block_size) : num_replicas_(num_replicas), block_size_(block_size) {}

  // Who shares no prefix with requests that have another one; the adapter's name is empty where there is none.
  struct Context {
    std::string_view salt;
    std::string_view adapter;
  };
  // loads: of each replica, how many requests it has, running or waiting.
  int choose(std::span<const TokenId> prompt, const Context& context, std::span<const int64_t> loads);

 private:
  // A request under way counts as so many tokens of prompt to compute: what a step of it takes from the others.
  static constexpr int64_t kTokensOfARequest = 64;
  // Then the older half is forgotten: what is so old is cached nowhere.
  static constexpr size_t kMostPrefixes = 1 << 16;

  struct Seen {
    uint64_t replicas = 0;  // bits: those that were sent it
    uint64_t used = 0;      // by number_
  };
  void forget_old();

  const int num_replicas_;
  const int32_t block_size_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Seen> prefixes_;  // by their hash; guarded by mutex_, like below
  uint64_t number_ = 0;                          // of requests so far
};

}  // namespace quire::engine
