// Which of the built instruction sets runs here.
#pragma once

#include <string_view>

#include "base/status.h"
#include "ops/cpu/kernels.h"

namespace quire::ops::cpu {

// "auto": the best set that this machine has; or a set by name. Errors: invalid_argument for a name that this build
// does not know, unavailable for a set that the machine lacks.
Result<const Kernels*> select_kernels(std::string_view isa);

}  // namespace quire::ops::cpu
