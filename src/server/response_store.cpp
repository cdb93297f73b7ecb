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

void ResponseStore::count(const StoredResponse& response, bool more) {
  Tenant& tenant = tenants_[response.tenant];
  const auto change = [more](size_t& number, size_t by) { number = more ? number + by : number - by; };
  for (size_t* bytes : {&bytes_, &tenant.bytes}) change(*bytes, response.bytes());
  change(tenant.count, 1);
  if (response.in_progress) {
    for (size_t* number : {&in_progress_, &tenant.in_progress}) change(*number, 1);
  }
  if (tenant.count == 0) tenants_.erase(response.tenant);
}

void ResponseStore::erase(Entries::iterator entry) {
  count(**entry, /*more=*/false);
  by_id_.erase((*entry)->id);
  entries_.erase(entry);
}

// Over the heaviest one's; a tenant that is none any more is the lightest.
double ResponseStore::weight(int32_t tenant) const {
  if (weights_.empty()) return 1;
  const auto [least, most] = std::ranges::minmax(weights_);
  return (tenant >= 0 && static_cast<size_t>(tenant) < weights_.size() ? weights_[static_cast<size_t>(tenant)]
                                                                       : least) /
         most;
}

bool ResponseStore::may_begin(int32_t tenant) const {
  if (weights_.size() < 2) return true;
  const auto found = tenants_.find(tenant);
  const size_t own = found == tenants_.end() ? 0 : found->second.in_progress;
  const size_t free = max_count_ - std::min(in_progress_, max_count_);
  return own == 0 || static_cast<double>(own + 1) <= static_cast<double>(free) * weight(tenant);
}

// Those that are over go, the oldest first, until what is there fits.
bool ResponseStore::make_room() {
  while (!fits()) {
    const bool too_many = entries_.size() > max_count_;
    auto payer = entries_.end();
    double most = 0;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if ((*entry)->in_progress) continue;
      const Tenant& tenant = tenants_.at((*entry)->tenant);
      const double share = static_cast<double>(too_many ? tenant.count : tenant.bytes) / weight((*entry)->tenant);
      if (share <= most) continue;  // of one tenant's the first that is met is the oldest
      most = share;
      payer = entry;
    }
    if (payer == entries_.end()) return false;
    erase(payer);
  }
  return true;
}

Status ResponseStore::add(StoredResponse response) {
  if (response.bytes() > max_bytes_) return {};  // alone it would drive out all others, and then itself
  const std::lock_guard lock(mutex_);
  if (response.in_progress && !may_begin(response.tenant)) {
    return resource_exhausted(
        "This API key has as many responses in progress as there is room for beside others; try again later.");
  }
  const std::string id = response.id;
  count(response, /*more=*/true);
  entries_.push_back(std::make_shared<const StoredResponse>(std::move(response)));
  by_id_[id] = std::prev(entries_.end());
  if (make_room()) return {};
  if (const auto own = by_id_.find(id); own != by_id_.end()) erase(own->second);
  return resource_exhausted("The server holds as many responses in progress as it has room for; try again later.");
}

bool ResponseStore::finish(std::string_view id, std::string body, std::string conversation) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || !(*found->second)->in_progress) return false;
  StoredResponse response = **found->second;
  count(response, /*more=*/false);
  response.body = std::move(body);
  response.conversation = std::move(conversation);
  response.in_progress = false;
  response.work.reset();
  count(response, /*more=*/true);
  *found->second = std::make_shared<const StoredResponse>(std::move(response));
  make_room();
  return true;
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
