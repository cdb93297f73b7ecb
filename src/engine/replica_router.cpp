#include "engine/replica_router.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hashing.h"

namespace quire::engine {
namespace {

// Of whole blocks from the beginning, each with all before it. An adapter is as good as a block before them: where it
// has been asked for it is likely to be in memory.
std::vector<uint64_t> prefix_hashes(std::span<const TokenId> prompt, const ReplicaRouter::Context& context,
                                    int32_t block_size) {
  std::vector<uint64_t> hashes;
  uint64_t hash = hash_bytes(context.salt.data(), context.salt.size(), 0);
  if (!context.adapter.empty()) {
    hash = hash_bytes(context.adapter.data(), context.adapter.size(), hash);
    hashes.push_back(hash);
  }
  const auto size = static_cast<size_t>(block_size);
  for (size_t begin = 0; begin + size <= prompt.size(); begin += size) {
    hash = hash_bytes(prompt.data() + begin, size * sizeof(TokenId), hash);
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace

int ReplicaRouter::choose(std::span<const TokenId> prompt, const Context& context, std::span<const int64_t> loads) {
  QUIRE_CHECK(static_cast<int>(loads.size()) == num_replicas_);
  const std::vector<uint64_t> hashes = prefix_hashes(prompt, context, block_size_);
  const std::lock_guard lock(mutex_);
  ++number_;
  std::vector<int64_t> cached(loads.size(), 0);
  uint64_t still = ~uint64_t{0};  // replicas that have all so far
  for (size_t i = 0; i < hashes.size() && still != 0; ++i) {
    const auto found = prefixes_.find(hashes[i]);
    still &= found == prefixes_.end() ? 0 : found->second.replicas;
    for (size_t replica = 0; replica < loads.size(); ++replica) {
      if ((still >> replica & 1) != 0) cached[replica] = (static_cast<int64_t>(i) + 1) * block_size_;
    }
  }
  const auto cost = [&](size_t replica) {
    return static_cast<int64_t>(prompt.size()) - cached[replica] + kTokensOfARequest * loads[replica];
  };
  // Among equals in turn.
  size_t best = number_ % loads.size();
  for (size_t i = 1; i < loads.size(); ++i) {
    const size_t replica = (number_ + i) % loads.size();
    if (cost(replica) < cost(best)) best = replica;
  }
  if (prefixes_.size() + hashes.size() > kMostPrefixes) forget_old();
  for (const uint64_t hash : hashes) {
    Seen& seen = prefixes_[hash];
    seen.replicas |= uint64_t{1} << best;
    seen.used = number_;
  }
  return static_cast<int>(best);
}

void ReplicaRouter::forget_old() {
  std::vector<uint64_t> ages;
  for (const auto& [hash, seen] : prefixes_) ages.push_back(seen.used);
  if (ages.empty()) return;
  const auto middle = ages.begin() + static_cast<ptrdiff_t>(ages.size() / 2);
  std::ranges::nth_element(ages, middle);
  std::erase_if(prefixes_, [&](const auto& entry) { return entry.second.used <= *middle; });
}

}  // namespace quire::engine
