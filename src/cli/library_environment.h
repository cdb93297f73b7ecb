// What the process's environment says of libraries that no loader knows of: read here, looked for elsewhere.
#pragma once

#include "cli/cuda_libraries.h"
#include "comm/ray_ranks.h"

namespace quire::cli {

LibraryEnvironment library_environment();
comm::RayEnvironment ray_environment();

}  // namespace quire::cli
