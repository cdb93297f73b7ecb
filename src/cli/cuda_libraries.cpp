#include "cli/cuda_libraries.h"

#include <filesystem>

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

bool has_library(const fs::path& folder, const char* file) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(file)) return true;
  }
  return false;
}

// How pip lays a library out: nvidia/FOLDER.../lib/FILE... What is named comes first.
std::vector<std::string> library_paths(const std::string& named, const char* folder, const char* file,
                                       const PythonEnvironment& python, const std::string& root) {
  std::vector<std::string> paths;
  if (!named.empty()) paths.push_back(named);
  for (const fs::path& packages : python_packages(python, root)) {
    for (const fs::path& package : folders_in(packages / "nvidia", folder)) {
      if (has_library(package / "lib", file)) paths.push_back((package / "lib").string());
    }
  }
  return paths;
}

}  // namespace

std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root) {
  return library_paths(environment.cublas_lt, "cu", "libcublasLt.so", environment.python, root);
}

std::vector<std::string> nccl_paths(const LibraryEnvironment& environment, const std::string& root) {
  return library_paths(environment.nccl, "nccl", "libnccl.so", environment.python, root);
}

}  // namespace quire::cli
