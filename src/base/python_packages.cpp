#include "base/python_packages.h"

#include <algorithm>
#include <functional>
#include <sstream>

namespace quire {
namespace {

namespace fs = std::filesystem;

void add_packages_of(const fs::path& prefix, std::vector<fs::path>& folders) {
  for (const fs::path& python : folders_in(prefix / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      std::error_code error;
      const fs::path folder = python / packages;
      if (fs::is_directory(folder, error) && std::ranges::find(folders, folder) == folders.end())
        folders.push_back(folder);
    }
  }
}

}  // namespace

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

std::vector<fs::path> python_packages(const PythonEnvironment& environment, const std::string& root) {
  std::vector<fs::path> folders;
  for (const std::string& prefix : {environment.virtual_env, environment.conda_prefix}) {
    if (!prefix.empty()) add_packages_of(prefix, folders);
  }
  std::istringstream programs(environment.path);
  for (std::string folder; std::getline(programs, folder, ':');) {
    std::error_code error;
    if (!folder.empty() && fs::exists(fs::path(folder) / "python3", error))
      add_packages_of(fs::path(folder).parent_path(), folders);
  }
  if (!environment.home.empty()) {
    add_packages_of(fs::path(environment.home) / ".local", folders);
    for (const fs::path& version : folders_in(fs::path(environment.home) / ".pyenv/versions", "3"))
      add_packages_of(version, folders);
  }
  for (const char* prefix : {"usr/local", "usr", "opt/conda"}) add_packages_of(fs::path(root) / prefix, folders);
  return folders;
}

}  // namespace quire
