// Which of the built instruction sets runs here.
#pragma once

#include "base/status.h"
#include "ops/cpu/kernels.h"
#include "types/engine_choices.h"

namespace quire::ops::cpu {

// kAuto: the best set that this machine and this build have. Errors: unavailable for a set that the machine or the
// build lacks.
Result<const Kernels*> select_kernels(Isa isa);

}  // namespace quire::ops::cpu
