#include "net/kv_leases.h"

#include <utility>

#include "base/check.h"

namespace quire::net {

std::shared_ptr<const KvLease> KvLeases::add(KvPrefix prefix, const KvBytes16& text, std::string fingerprint,
                                             Time now) {
  QUIRE_CHECK(!prefix.blocks.empty() && prefix.blocks.size() == prefix.places.size());
  auto lease = std::make_shared<KvLease>();
  lease->id = random_bytes16();
  lease->text = text;
  lease->fingerprint = std::move(fingerprint);
  lease->prefix = std::move(prefix);
  lease->ends = now + options_.duration;
  const int64_t bytes = lease->bytes();
  expire(now);
  {
    const std::lock_guard lock(mutex_);
    if (bytes > options_.most_bytes - bytes_) return nullptr;
    bytes_ += bytes;  // its room is taken while the checksums are computed
    lease->generation = ++last_generation_;
  }
  for (size_t i = 0; i < lease->prefix.blocks.size(); ++i) {
    lease->checksums.push_back(
        kv_checksum(lease->prefix.blocks[i], lease->id, lease->generation, lease->prefix.places[i]));
  }
  const std::lock_guard lock(mutex_);
  leases_.emplace(lease->id, lease);
  return lease;
}

KvLeases::Found KvLeases::find(const KvAsk& ask, Time now) const {
  const std::lock_guard lock(mutex_);
  const auto found = leases_.find(ask.lease);
  if (ask.engine_id != options_.engine_id || found == leases_.end() || found->second->generation != ask.generation ||
      found->second->ends <= now) {
    return {.lease = nullptr, .refusal = KvRefusal::kLease};
  }
  if (found->second->fingerprint != ask.fingerprint) return {.lease = nullptr, .refusal = KvRefusal::kModel};
  if (found->second->text != ask.text) return {.lease = nullptr, .refusal = KvRefusal::kText};
  return {.lease = found->second, .refusal = KvRefusal::kNone};
}

void KvLeases::release(const KvLease& lease) {
  const std::lock_guard lock(mutex_);
  const auto found = leases_.find(lease.id);
  if (found == leases_.end() || found->second->generation != lease.generation) return;
  bytes_ -= found->second->bytes();
  leases_.erase(found);
}

int64_t KvLeases::expire(Time now) {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(std::erase_if(leases_, [&](const auto& entry) {
    if (entry.second->ends > now) return false;
    bytes_ -= entry.second->bytes();
    return true;
  }));
}

int64_t KvLeases::num_leases() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(leases_.size());
}

int64_t KvLeases::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace quire::net
