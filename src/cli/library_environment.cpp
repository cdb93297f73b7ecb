#include "cli/library_environment.h"

#include <cstdlib>

namespace quire::cli {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

PythonEnvironment python_environment() {
  return {.path = variable("PATH"),
          .home = variable("HOME"),
          .virtual_env = variable("VIRTUAL_ENV"),
          .conda_prefix = variable("CONDA_PREFIX")};
}

}  // namespace

LibraryEnvironment library_environment() {
  return {.cublas_lt = variable("QUIRE_CUBLASLT"), .nccl = variable("QUIRE_NCCL"), .python = python_environment()};
}

comm::RayEnvironment ray_environment() {
  return {.ray_cpp = variable("QUIRE_RAY_CPP"), .python = python_environment()};
}

}  // namespace quire::cli
