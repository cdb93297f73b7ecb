#include "cli/cuda_libraries.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Sub-folders whose names begin so, the last name first. A folder that cannot be read has none.
std::vector<fs::path> folders_in(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code no_folder;
    if (at->path().filename().string().starts_with(prefix) && at->is_directory(no_folder)) found.push_back(at->path());
  }
  std::ranges::sort(found, std::greater());
  return found;
}

bool has_library(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with("libcublasLt.so")) return true;
  }
  return false;
}

// What Python's packages lie under: prefix/lib/python3.11/site-packages.
void add_packages_of(const fs::path& prefix, std::vector<std::string>& paths) {
  for (const fs::path& python : folders_in(prefix / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& package : folders_in(python / packages / "nvidia", "cu")) {
        const std::string folder = (package / "lib").string();
        if (std::ranges::find(paths, folder) == paths.end() && has_library(folder)) paths.push_back(folder);
      }
    }
  }
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

LibraryEnvironment library_environment() {
  return {.cublas_lt = variable("QUIRE_CUBLASLT"),
          .path = variable("PATH"),
          .home = variable("HOME"),
          .virtual_env = variable("VIRTUAL_ENV"),
          .conda_prefix = variable("CONDA_PREFIX")};
}

std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root) {
  std::vector<std::string> paths;
  if (!environment.cublas_lt.empty()) paths.push_back(environment.cublas_lt);
  for (const std::string& prefix : {environment.virtual_env, environment.conda_prefix}) {
    if (!prefix.empty()) add_packages_of(prefix, paths);
  }
  std::istringstream folders(environment.path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code error;
    if (!folder.empty() && fs::exists(fs::path(folder) / "python3", error))
      add_packages_of(fs::path(folder).parent_path(), paths);
  }
  if (!environment.home.empty()) {
    add_packages_of(fs::path(environment.home) / ".local", paths);
    for (const fs::path& version : folders_in(fs::path(environment.home) / ".pyenv/versions", "3"))
      add_packages_of(version, paths);
  }
  for (const char* prefix : {"usr/local", "usr", "opt/conda"}) add_packages_of(fs::path(root) / prefix, paths);
  return paths;
}

}  // namespace quire::cli
