// Which of the built instruction sets runs here.
#pragma once

#include <string_view>

#include "base/status.h"
#include "ops/cpu/kernels.h"

namespace quire::ops::cpu {

// "auto": the best set that this machine and this build have; or a set by name. Errors: invalid_argument for a name
// that is none, unavailable for a set that the machine or the build lacks.
Result<const Kernels*> select_kernels(std::string_view isa);

}  // namespace quire::ops::cpu
