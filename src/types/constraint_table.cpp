#include "types/constraint_table.h"

#include <utility>

namespace quire {

std::shared_ptr<const HeldConstraint> ConstraintTable::add(std::shared_ptr<const TokenConstraint> constraint) {
  const std::lock_guard lock(mutex_);
  if (held_.size() >= 2 * swept_size_ + 16) {
    std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
    swept_size_ = held_.size();
  }
  auto held = std::make_shared<const HeldConstraint>(HeldConstraint{++last_id_, std::move(constraint)});
  held_.emplace(held->id, held);
  return held;
}

std::shared_ptr<const TokenMasks> ConstraintTable::find(ConstraintId id) const {
  const std::lock_guard lock(mutex_);
  const auto place = held_.find(id);
  const auto held = place == held_.end() ? nullptr : place->second.lock();
  return held == nullptr ? nullptr : held->constraint;
}

size_t ConstraintTable::size() const {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

}  // namespace quire
