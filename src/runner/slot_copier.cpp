#include "runner/slot_copier.h"

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire::runner {

SlotCopier::SlotCopier(SlotParts slot_parts) : slot_parts_(std::move(slot_parts)), thread_([this] { loop(); }) {}

SlotCopier::~SlotCopier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    bell_.notify_all();
  }
  thread_.join();
}

void SlotCopier::order(std::vector<OffloadExport> exports, std::vector<OffloadImport> imports) {
  const std::lock_guard lock(mutex_);
  exports_.insert(exports_.end(), exports.begin(), exports.end());
  std::move(imports.begin(), imports.end(), std::back_inserter(imports_));
  bell_.notify_all();
}

void SlotCopier::take_reports(OffloadReports& reports) {
  const std::lock_guard lock(mutex_);
  std::move(reports_.exported.begin(), reports_.exported.end(), std::back_inserter(reports.exported));
  reports.imported.insert(reports.imported.end(), reports_.imported.begin(), reports_.imported.end());
  reports_ = {};
}

void SlotCopier::carry_out(const OffloadExport& order, OffloadReports& done) const {
  std::string bytes;
  for (const std::span<uint8_t> part : slot_parts_(order.slot)) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  done.exported.push_back({.id = order.id, .bytes = std::move(bytes)});
}

void SlotCopier::carry_out(const OffloadImport& order, OffloadReports& done) const {
  size_t begin = 0;
  for (const std::span<uint8_t> part : slot_parts_(order.slot)) {
    QUIRE_CHECK(begin + part.size() <= order.bytes.size());
    std::memcpy(part.data(), order.bytes.data() + begin, part.size());
    begin += part.size();
  }
  QUIRE_CHECK(begin == order.bytes.size());
  done.imported.push_back(order.id);
}

void SlotCopier::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    bell_.wait(lock, [this] { return stopping_ || !exports_.empty() || !imports_.empty(); });
    if (stopping_) return;
    const std::deque<OffloadExport> exports = std::exchange(exports_, {});
    const std::deque<OffloadImport> imports = std::exchange(imports_, {});
    lock.unlock();
    OffloadReports done;
    for (const OffloadImport& order : imports) carry_out(order, done);
    for (const OffloadExport& order : exports) carry_out(order, done);
    lock.lock();
    std::move(done.exported.begin(), done.exported.end(), std::back_inserter(reports_.exported));
    reports_.imported.insert(reports_.imported.end(), done.imported.begin(), done.imported.end());
    lock.unlock();
    if (notify_) notify_();
    lock.lock();
  }
}

}  // namespace quire::runner
