#include "runner/rank_adapters.h"

#include <algorithm>
#include <utility>

#include "checkpoint/adapter_file.h"
#include "types/memory_plan.h"

namespace quire::runner {

RankAdapters::RankAdapters(AdapterHost host, const AdapterLimits& limits, ops::Backend& backend)
    : host_(std::move(host)), most_bytes_(limits.most_bytes), backend_(backend) {
  if (backend.computes_in_host_memory()) return;
  device_memory_ = std::make_unique<AdapterMemory>(backend.allocator(), static_cast<size_t>(limits.device_bytes()));
}

bool RankAdapters::has_memory() const {
  return device_memory_ == nullptr || device_memory_->has_memory();
}

AdapterReport RankAdapters::read(const AdapterOrder& order) {
  AdapterReport report{.handle = order.handle, .most_bytes = most_bytes_};
  const auto refused = [&](Status why) {
    report.status = std::move(why);
    return report;
  };
  const auto file = checkpoint::AdapterFile::open(order.path, host_.file_allocator);
  if (!file.ok()) return refused(file.status());
  if ((*file)->revision != order.revision) {
    return refused(invalid_argument(
        "{}: the adapter's files are others than those that the engine has read: they have changed since, or hosts "
        "have unlike copies",
        order.path));
  }
  auto adapter = Adapter::read(**file, host_, backend_);
  if (!adapter.ok()) return refused(adapter.status());
  report.bytes = (*adapter)->bytes();
  report.rank = (*adapter)->rank();
  const std::lock_guard lock(mutex_);
  held_[order.handle] = {.adapter = std::move(*adapter)};
  return report;
}

// What has left in a step that is not done has its memory until then; there is no room only where it is too little with
// that.
Status RankAdapters::place(Adapter& adapter) {
  const auto all_have_left = [this] { return leaving_.empty(); };
  while (true) {
    std::unique_lock lock(mutex_);
    const bool was_all = all_have_left();
    lock.unlock();
    if (adapter.take_place(*device_memory_)) break;
    if (was_all) {
      return resource_exhausted("no piece of the {} for adapters is free that has room for {}",
                                format_bytes(most_bytes_), format_bytes(adapter.bytes()));
    }
    lock.lock();
    step_done_.wait(lock, all_have_left);
  }
  const Status uploaded = adapter.upload(backend_);
  return uploaded.ok() ? uploaded : unavailable("{}", uploaded.message());
}

AdapterReport RankAdapters::use(const AdapterOrder& order) {
  AdapterReport report{.handle = order.handle, .most_bytes = most_bytes_};
  std::shared_ptr<Adapter> adapter;
  {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(order.handle);
    if (found != held_.end()) adapter = found->second.adapter;
  }
  if (adapter == nullptr) {
    report.status = internal_error("there is no adapter {} here", order.handle);
    return report;
  }
  if (!adapter->has_place()) report.status = place(*adapter);
  if (!report.status.ok()) {
    if (report.status.code() != StatusCode::kResourceExhausted) drop(order.handle);
    return report;
  }
  const std::lock_guard lock(mutex_);
  held_.at(order.handle).number = order.number;
  return report;
}

// Its memory is another's when it is gone. What a step reads is read when the step is done, on the device too.
void RankAdapters::drop(uint64_t handle) {
  std::shared_ptr<Adapter> gone;  // outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(handle);
  if (found == held_.end()) return;
  gone = std::move(found->second.adapter);
  held_.erase(found);
  if (in_step_) leaving_.push_back(std::move(gone));
}

AdapterReport RankAdapters::carry_out(const AdapterOrder& order) {
  switch (order.kind) {
    case AdapterOrder::Kind::kRead:
      return read(order);
    case AdapterOrder::Kind::kUse:
      return use(order);
    case AdapterOrder::Kind::kDrop:
      break;
  }
  drop(order.handle);
  return {};
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
  {
    const std::lock_guard lock(mutex_);
    in_step_ = false;
    leaving_.clear();
  }
  step_done_.notify_all();
}

}  // namespace quire::runner
