#include "runner/adapter_ranks.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/log.h"

namespace quire::runner {
namespace {

Status ranks_are_gone() {
  return unavailable("the workers that would read the adapter are gone");
}

// Of all ranks: the first error, or what they need.
AdapterReport taken_together(const std::vector<AdapterReport>& reports, int64_t most_bytes) {
  const auto failed = std::ranges::find_if(reports, [](const auto& report) { return !report.status.ok(); });
  if (failed == reports.end()) {
    AdapterReport all = reports.front();
    for (const AdapterReport& report : reports) {
      const auto most = static_cast<double>(std::max<int64_t>(report.most_bytes, 1));
      const double part = static_cast<double>(report.bytes) / most;
      all.bytes = std::max<int64_t>(all.bytes, std::llround(part * static_cast<double>(most_bytes)));
    }
    return all;
  }
  const auto says_so = [&](const AdapterReport& report) { return report.status.message() == failed->status.message(); };
  if (std::ranges::all_of(reports, says_so)) return *failed;
  AdapterReport refused = *failed;
  refused.status = std::move(refused.status).with_prefix(fmt::format("rank {}: ", failed - reports.begin()));
  return refused;
}

}  // namespace

Result<AdapterReport> AdapterRanks::tell_ranks(AdapterLink& link, const AdapterOrder& order) const {
  const std::string message = encode(order);
  for (int rank = 0; rank < link.num_ranks(); ++rank) {
    const std::lock_guard lock(writing_);
    QUIRE_RETURN_IF_ERROR(link.write(rank, message));
  }
  std::vector<AdapterReport> reports;
  for (int rank = 0; rank < link.num_ranks(); ++rank) {
    QUIRE_ASSIGN_OR_RETURN(const std::string answer, link.read(rank));
    QUIRE_ASSIGN_OR_RETURN(AdapterReport report, decode_adapter_report(answer));
    if (report.handle != order.handle) {
      return data_loss("rank {} reports of adapter {}, and was told of {}", rank, report.handle, order.handle);
    }
    if (report.bytes < 0 || report.most_bytes < 0 || report.rank < 0) {
      return data_loss("rank {} reports of an adapter of {} bytes, rank {}, in {} bytes", rank, report.bytes,
                       report.rank, report.most_bytes);
    }
    reports.push_back(std::move(report));
  }
  return taken_together(reports, most_bytes_);
}

// First all have it, then steps may find it: what one rank refuses none of them has ever used.
Result<AdapterReport> AdapterRanks::read_on(AdapterLink& link, uint64_t handle, const Entry& entry) const {
  QUIRE_ASSIGN_OR_RETURN(AdapterReport read, tell_ranks(link, {.kind = AdapterOrder::Kind::kRead,
                                                               .handle = handle,
                                                               .number = entry.number,
                                                               .path = entry.path,
                                                               .revision = entry.revision}));
  if (!read.status.ok()) send_drop(link, handle);
  return read;
}

Result<AdapterReport> AdapterRanks::use_on(AdapterLink& link, uint64_t handle, const Entry& entry) const {
  return tell_ranks(link, {.kind = AdapterOrder::Kind::kUse, .handle = handle, .number = entry.number});
}

// Ranks that have room while others have none keep it: they are asked again when some has been made.
Result<bool> AdapterRanks::begin_use(uint64_t handle) {
  std::shared_ptr<AdapterLink> link;
  while (true) {
    link = await_link(link);
    if (link == nullptr) return ranks_are_gone();
    const std::lock_guard one_at_a_time(exchange_);
    Entry entry;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return ranks_are_gone();
      if (link_ != link) continue;
      const auto found = entries_.find(handle);
      if (found == entries_.end())
        return unavailable("the adapter's files have changed while workers were started again");
      entry = found->second;
    }
    const Result<AdapterReport> report = use_on(*link, handle, entry);
    if (!report.ok()) {
      link->end(report.status().message());
      continue;
    }
    if (report->status.code() == StatusCode::kResourceExhausted) return false;
    QUIRE_RETURN_IF_ERROR(report->status);
    const std::lock_guard lock(mutex_);
    entries_.at(handle).in_use = true;
    return true;
  }
}

// Where it fails the ranks are gone, and what they had with them.
void AdapterRanks::send_drop(AdapterLink& link, uint64_t handle) const {
  const std::string message = encode(AdapterOrder{.kind = AdapterOrder::Kind::kDrop, .handle = handle});
  for (int rank = 0; rank < link.num_ranks(); ++rank) {
    const std::lock_guard lock(writing_);
    if (!link.write(rank, message).ok()) return;
  }
}

void AdapterRanks::let_go(uint64_t handle) {
  std::shared_ptr<AdapterLink> link;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.erase(handle) == 0) return;
    link = link_;
  }
  if (link != nullptr) send_drop(*link, handle);
}

std::shared_ptr<AdapterLink> AdapterRanks::await_link(const std::shared_ptr<AdapterLink>& last) {
  std::unique_lock lock(mutex_);
  if (last != nullptr && !restarts_) return nullptr;
  changed_.wait(lock, [&] { return closed_ || (link_ != nullptr && link_ != last); });
  return closed_ ? nullptr : link_;
}

std::shared_ptr<Adapter> AdapterRanks::stand_in(uint64_t handle, const AdapterReport& report,
                                                const checkpoint::AdapterFile& file) {
  const bool is_prompt = file.kind != checkpoint::AdapterKind::kLowRank;
  const auto ranks = shared_from_this();
  return Adapter::elsewhere({.bytes = report.bytes,
                             .rank = report.rank,
                             .num_virtual_tokens = is_prompt ? static_cast<int32_t>(file.prompt.shape[0]) : 0,
                             .revision = file.revision},
                            {.take_place = [ranks, handle] { return ranks->begin_use(handle); },
                             .let_go = [ranks, handle] { ranks->let_go(handle); }});
}

Result<std::shared_ptr<Adapter>> AdapterRanks::load(const checkpoint::AdapterFile& file, const std::string& path,
                                                    int32_t number) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  const Entry entry{.number = number, .path = error ? path : absolute.string(), .revision = file.revision};
  std::shared_ptr<AdapterLink> link;
  while (true) {
    link = await_link(link);
    if (link == nullptr) return ranks_are_gone();
    const std::lock_guard one_at_a_time(exchange_);
    uint64_t handle = 0;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return ranks_are_gone();
      handle = ++last_handle_;
    }
    const Result<AdapterReport> report = read_on(*link, handle, entry);
    if (!report.ok()) {  // of the link: those who come after them are told once more
      link->end(report.status().message());
      continue;
    }
    QUIRE_RETURN_IF_ERROR(report->status);
    {
      const std::lock_guard lock(mutex_);
      if (link_ != link) continue;
      entries_.emplace(handle, entry);
    }
    return stand_in(handle, *report, file);
  }
}

Result<std::vector<int32_t>> AdapterRanks::connect(std::shared_ptr<AdapterLink> link) {
  const std::lock_guard one_at_a_time(exchange_);
  std::map<uint64_t, Entry> known;
  {
    const std::lock_guard lock(mutex_);
    link_ = nullptr;
    known = entries_;
  }
  std::vector<int32_t> lost;
  for (const auto& [handle, entry] : known) {
    QUIRE_ASSIGN_OR_RETURN(AdapterReport report, read_on(*link, handle, entry));
    if (report.status.ok() && entry.in_use) {
      QUIRE_ASSIGN_OR_RETURN(report, use_on(*link, handle, entry));
      if (!report.status.ok()) send_drop(*link, handle);
    }
    if (report.status.ok()) continue;
    log_warning("adapter {} is lost with the workers: {}", entry.path, report.status.message());
    lost.push_back(entry.number);
    const std::lock_guard lock(mutex_);
    entries_.erase(handle);
  }
  std::vector<uint64_t> gone;  // that were let go of meanwhile
  {
    const std::lock_guard lock(mutex_);
    link_ = link;
    for (const auto& [handle, entry] : known) {
      if (!entries_.contains(handle)) gone.push_back(handle);
    }
  }
  for (const uint64_t handle : gone) send_drop(*link, handle);
  changed_.notify_all();
  return lost;
}

void AdapterRanks::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    link_ = nullptr;
  }
  changed_.notify_all();
  // Whoever is talking to the ranks has done so when this returns.
  const std::lock_guard one_at_a_time(exchange_);
  const std::lock_guard last_word(writing_);
}

}  // namespace quire::runner
