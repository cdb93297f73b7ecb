// Leases of made-up blocks, for tests of transfers.
#pragma once

#include <chrono>
#include <cstddef>

#include "net/kv_leases.h"

namespace quire::net {

inline constexpr size_t kBlockBytes = 96;
inline constexpr size_t kBlockSize = 4;

inline KvPrefix prefix_of(size_t num_blocks, TokenId first = 7) {
  KvPrefix prefix;
  for (size_t i = 0; i < num_blocks; ++i) {
    for (size_t j = 0; j < kBlockSize; ++j) prefix.tokens.push_back(first++);
    prefix.places.push_back({.index = static_cast<int32_t>(i), .group = 0});
    prefix.blocks.emplace_back(kBlockBytes, static_cast<char>('a' + i));
  }
  return prefix;
}

inline KvLeases::Options options(int64_t most_bytes = 1 << 20,
                                 std::chrono::milliseconds duration = std::chrono::milliseconds(60'000)) {
  return {.engine_id = "engine-1", .most_bytes = most_bytes, .duration = duration};
}

inline KvAsk ask_for(const KvLease& lease) {
  return {.nonce = {},
          .lease = lease.id,
          .generation = lease.generation,
          .text = lease.text,
          .engine_id = "engine-1",
          .fingerprint = lease.fingerprint,
          .mac = {}};
}

}  // namespace quire::net
