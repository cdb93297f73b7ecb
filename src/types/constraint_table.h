// Constraints by a number: a plan names them so, and whoever carries it out finds them here, or, in another process,
// asks for their masks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "types/token_constraint.h"

namespace quire {

using ConstraintId = uint64_t;  // 0: none

// Thread-safe.
class ConstraintSource {
 public:
  virtual ~ConstraintSource() = default;
  // nullptr: nobody holds one of this number any more.
  virtual std::shared_ptr<const TokenMasks> find(ConstraintId id) const = 0;
};

// Has a number as long as somebody holds this.
struct HeldConstraint {
  ConstraintId id = 0;
  std::shared_ptr<const TokenConstraint> constraint;
};

// The engine's.
class ConstraintTable final : public ConstraintSource {
 public:
  std::shared_ptr<const HeldConstraint> add(std::shared_ptr<const TokenConstraint> constraint);
  std::shared_ptr<const TokenMasks> find(ConstraintId id) const override;
  size_t size() const;  // those that nobody holds may be among them

 private:
  mutable std::mutex mutex_;
  std::unordered_map<ConstraintId, std::weak_ptr<const HeldConstraint>> held_;  // guarded by mutex_, like all below
  ConstraintId last_id_ = 0;
  size_t swept_size_ = 0;
};

}  // namespace quire
