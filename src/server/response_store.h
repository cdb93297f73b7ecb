// The answers of /v1/responses that were asked to be kept, in memory and no longer than there is room: of the key that
// has the most for its weight the oldest go first. A response belongs to the key that asked for it; for others it does
// not exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/local_exchange.h"

namespace quire::server {

// Texts of JSON, which take less room than values.
struct StoredResponse {
  std::string id;
  int32_t tenant = 0;
  std::string body;          // the response as its client sees it
  std::string input_items;   // an array
  std::string conversation;  // an array of chat messages, this answer the last; empty: there is none to go on from
  // Made in the background: not over yet, by whom.
  bool in_progress = false;
  bool in_background = false;
  std::weak_ptr<LocalExchange> work;

  size_t bytes() const { return id.size() + body.size() + input_items.size() + conversation.size(); }
};

// Thread-safe.
class ResponseStore {
 public:
  // weights: of the tenants by number; one or none: there is one.
  ResponseStore(size_t max_count, size_t max_bytes, std::vector<double> weights = {})
      : max_count_(max_count), max_bytes_(max_bytes), weights_(std::move(weights)) {}

  // Errors: resource_exhausted when everything in it is still in progress, or as much of this tenant as may be: among
  // several one may have as many in progress as are left for others, times its weight over the heaviest one's.
  Status add(StoredResponse response);
  // The end of one that is in progress; nothing when it is no more.
  // False: it was finished, or is not there any more.
  bool finish(std::string_view id, std::string body, std::string conversation);
  // Errors: not_found.
  Result<std::shared_ptr<const StoredResponse>> find(std::string_view id, int32_t tenant) const;
  Status remove(std::string_view id, int32_t tenant);

  size_t size() const;

 private:
  using Entries = std::list<std::shared_ptr<const StoredResponse>>;
  struct Tenant {
    size_t count = 0;
    size_t bytes = 0;
    size_t in_progress = 0;
  };
  void erase(Entries::iterator entry);
  void count(const StoredResponse& response, bool more);
  bool make_room();
  bool fits() const { return entries_.size() <= max_count_ && bytes_ <= max_bytes_; }
  double weight(int32_t tenant) const;
  bool may_begin(int32_t tenant) const;
  // Under the lock; end() where there is none.
  Entries::const_iterator lookup(std::string_view id, int32_t tenant) const;

  const size_t max_count_;
  const size_t max_bytes_;
  const std::vector<double> weights_;
  mutable std::mutex mutex_;
  Entries entries_;  // the oldest first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
  size_t in_progress_ = 0;
  std::map<int32_t, Tenant> tenants_;  // those that have any
};

}  // namespace quire::server
