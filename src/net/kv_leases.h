// Copies of blocks that are kept for another instance until it has fetched them or their time is over. What a lease
// holds is never changed and is nobody's slot or pool block: whatever happens to the cache meanwhile, who reads the
// lease reads what was computed for its text, or nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/kv_protocol.h"
#include "types/kv_transfer.h"

namespace quire::net {

struct KvLease {
  KvBytes16 id{};
  uint64_t generation = 0;  // never the same for two leases of an instance
  KvBytes16 text{};
  std::string fingerprint;
  KvPrefix prefix;                  // at least one block
  std::vector<uint64_t> checksums;  // [prefix.places]
  std::chrono::steady_clock::time_point ends;
  int64_t bytes() const { return static_cast<int64_t>(prefix.blocks.size() * prefix.blocks.front().size()); }
};

// Thread-safe. Times are the caller's, so that a test need not wait.
class KvLeases {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    std::string engine_id;
    int64_t most_bytes = 0;  // of the blocks of all leases
    std::chrono::milliseconds duration{30'000};
  };
  explicit KvLeases(Options options) : options_(std::move(options)) {}

  const std::string& engine_id() const { return options_.engine_id; }
  // nullptr: there is no room. REQUIRES: the prefix has blocks.
  std::shared_ptr<const KvLease> add(KvPrefix prefix, const KvBytes16& text, std::string fingerprint, Time now);
  // The lease that is asked for, or why not.
  struct Found {
    std::shared_ptr<const KvLease> lease;
    KvRefusal refusal = KvRefusal::kNone;
  };
  Found find(const KvAsk& ask, Time now) const;
  // It was fetched. Of one that is gone already: nothing.
  void release(const KvLease& lease);
  // Forgets those whose time is over. Returns how many.
  int64_t expire(Time now);
  int64_t num_leases() const;
  int64_t bytes() const;

 private:
  const Options options_;
  mutable std::mutex mutex_;
  std::map<KvBytes16, std::shared_ptr<const KvLease>> leases_;  // guarded by mutex_, like all below
  int64_t bytes_ = 0;
  uint64_t last_generation_ = 0;
};

}  // namespace quire::net
