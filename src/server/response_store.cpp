#include "server/response_store.h"

#include <algorithm>
#include <utility>

#include "server/api_error.h"

namespace quire::server {

namespace {

Status no_response(std::string_view id) {
  return not_found("There is no response {}: it never was, was deleted, was not to be stored, or is long over.",
                   in_quotes(id))
      .with_param("response_id");
}

}  // namespace

void ResponseStore::erase(Entries::iterator entry) {
  bytes_ -= (*entry)->bytes();
  by_id_.erase((*entry)->id);
  entries_.erase(entry);
}

// The oldest that are over go, until what is there fits.
bool ResponseStore::make_room() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entries_.size() <= max_count_ && bytes_ <= max_bytes_) return true;
    const auto next = std::next(entry);
    if (!(*entry)->in_progress) erase(entry);
    entry = next;
  }
  return entries_.size() <= max_count_ && bytes_ <= max_bytes_;
}

Status ResponseStore::add(StoredResponse response) {
  if (response.bytes() > max_bytes_) return {};  // alone it would drive out all others, and then itself
  const std::lock_guard lock(mutex_);
  const std::string id = response.id;
  bytes_ += response.bytes();
  entries_.push_back(std::make_shared<const StoredResponse>(std::move(response)));
  by_id_[id] = std::prev(entries_.end());
  if (make_room()) return {};
  if (const auto own = by_id_.find(id); own != by_id_.end()) erase(own->second);
  return resource_exhausted("The server holds as many responses in progress as it has room for; try again later.");
}

void ResponseStore::finish(std::string_view id, std::string body, std::string conversation) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || !(*found->second)->in_progress) return;
  StoredResponse response = **found->second;
  bytes_ -= response.bytes();
  response.body = std::move(body);
  response.conversation = std::move(conversation);
  response.in_progress = false;
  response.work.reset();
  bytes_ += response.bytes();
  *found->second = std::make_shared<const StoredResponse>(std::move(response));
  make_room();
}

ResponseStore::Entries::const_iterator ResponseStore::lookup(std::string_view id, int32_t tenant) const {
  const auto found = by_id_.find(std::string(id));
  return found != by_id_.end() && (*found->second)->tenant == tenant ? Entries::const_iterator(found->second)
                                                                     : entries_.end();
}

Result<std::shared_ptr<const StoredResponse>> ResponseStore::find(std::string_view id, int32_t tenant) const {
  const std::lock_guard lock(mutex_);
  const auto entry = lookup(id, tenant);
  if (entry == entries_.end()) return no_response(id);
  return *entry;
}

Status ResponseStore::remove(std::string_view id, int32_t tenant) {
  std::shared_ptr<LocalExchange> work;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = lookup(id, tenant);
    if (entry == entries_.end()) return no_response(id);
    work = (*entry)->work.lock();
    erase(by_id_.at(std::string(id)));
  }
  if (work != nullptr) work->cancel();
  return {};
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace quire::server
