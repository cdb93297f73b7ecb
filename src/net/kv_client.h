// Fetches leased blocks from another instance (net/kv_protocol.h). Nothing of what comes is handed on before all of it
// is there and right: the lease, its generation, the model, the text token by token, each block's place, size and
// checksum.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "net/kv_protocol.h"
#include "types/kv_transfer.h"

namespace quire::net {

struct KvPull {
  std::string address;  // a literal one
  uint16_t port = 0;
  std::string secret;                        // empty: none
  std::chrono::milliseconds timeout{5'000};  // of all of it
  KvAsk ask;                                 // but for nonce and mac
  // What there must be.
  std::span<const TokenId> prompt;  // what the tokens must be the beginning of
  size_t num_blocks = 0;            // of the text
  size_t block_size = 0;            // tokens
  size_t num_groups = 0;
  uint64_t block_bytes = 0;
};

enum class KvOutcome {
  kFetched,
  kConnection,  // there was none, or it broke
  kTimeout,
  kProtocol,  // what came is none of it, or out of bounds
  kSecret,
  kLease,  // not known, over, or another
  kModel,
  kText,
  kChecksum,
};

struct KvPulled {
  KvOutcome outcome = KvOutcome::kConnection;
  KvPrefix prefix;  // where it was fetched
};

// Waits for it. Any thread.
KvPulled pull_blocks(const KvPull& pull);

}  // namespace quire::net
