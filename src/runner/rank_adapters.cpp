#include "runner/rank_adapters.h"

#include <algorithm>
#include <utility>

#include "checkpoint/adapter_file.h"

namespace quire::runner {

RankAdapters::RankAdapters(AdapterHost host, const AdapterLimits& limits, ops::Backend& backend)
    : host_(std::move(host)), most_bytes_(limits.most_bytes), backend_(backend) {}

AdapterReport RankAdapters::read(const AdapterOrder& order) {
  AdapterReport report{.handle = order.handle, .most_bytes = most_bytes_};
  const auto refused = [&](Status why) {
    report.status = std::move(why);
    return report;
  };
  const auto file = checkpoint::AdapterFile::open(order.path);
  if (!file.ok()) return refused(file.status());
  if ((*file)->revision != order.revision) {
    return refused(invalid_argument(
        "{}: the adapter's files are others than those that the engine has read: they have changed since, or hosts "
        "have unlike copies",
        order.path));
  }
  auto adapter = Adapter::make(**file, host_, backend_);
  if (!adapter.ok()) return refused(adapter.status());
  report.bytes = (*adapter)->bytes();
  report.rank = (*adapter)->rank();
  const std::lock_guard lock(mutex_);
  held_[order.handle] = {.adapter = std::move(*adapter)};
  return report;
}

AdapterReport RankAdapters::carry_out(const AdapterOrder& order) {
  if (order.kind == AdapterOrder::Kind::kRead) return read(order);
  AdapterReport report{.handle = order.handle, .most_bytes = most_bytes_};
  std::shared_ptr<const Adapter> gone;  // outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(order.handle);
  if (found == held_.end()) {
    report.status = internal_error("there is no adapter {} here", order.handle);
  } else if (order.kind == AdapterOrder::Kind::kUse) {
    found->second.number = order.number;
  } else {
    gone = std::move(found->second.adapter);
    held_.erase(found);
    if (in_step_) leaving_.push_back(std::move(gone));
  }
  return report;
}

const Adapter* RankAdapters::in_use(int32_t number) const {
  const std::lock_guard lock(mutex_);
  // The same adapter may be back before all who used it have let go of it: the later one is the one that stays.
  const Adapter* found = nullptr;
  for (const auto& [handle, held] : held_) {
    if (number != 0 && held.number == number) found = held.adapter.get();
  }
  return found;
}

void RankAdapters::begin_step() {
  const std::lock_guard lock(mutex_);
  in_step_ = true;
}

void RankAdapters::end_step() {
  std::vector<std::shared_ptr<const Adapter>> gone;
  const std::lock_guard lock(mutex_);
  in_step_ = false;
  gone.swap(leaving_);
}

}  // namespace quire::runner
