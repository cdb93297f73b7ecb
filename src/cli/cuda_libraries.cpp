#include "cli/cuda_libraries.h"

#include <filesystem>

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

bool has_library(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with("libcublasLt.so")) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root) {
  std::vector<std::string> paths;
  if (!environment.cublas_lt.empty()) paths.push_back(environment.cublas_lt);
  for (const fs::path& packages : python_packages(environment.python, root)) {
    for (const fs::path& package : folders_in(packages / "nvidia", "cu")) {
      if (has_library(package / "lib")) paths.push_back((package / "lib").string());
    }
  }
  return paths;
}

}  // namespace quire::cli
