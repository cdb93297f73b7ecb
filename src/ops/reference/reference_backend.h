// The oracle of every op: scalar, one loop nest an op, sums in double. Slow on purpose; kernels are tested against it.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace quire::ops {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace quire::ops
