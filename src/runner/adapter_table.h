// Where a runner finds the adapters that plans name.
#pragma once

#include <cstdint>

#include "runner/adapter.h"

namespace quire::runner {

class AdapterTable {
 public:
  virtual ~AdapterTable() = default;
  // The one of this number (AdapterLease::number()), of which somebody holds a lease; nullptr: there is none.
  // Thread-safe.
  virtual const Adapter* in_use(int32_t number) const = 0;
};

}  // namespace quire::runner
