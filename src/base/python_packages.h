// Where Python's packages lie on a machine: pip puts libraries beside them that no loader knows of.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quire {

// Variables of the process's environment; empty where one is not set.
struct PythonEnvironment {
  std::string path;          // PATH
  std::string home;          // HOME
  std::string virtual_env;   // VIRTUAL_ENV
  std::string conda_prefix;  // CONDA_PREFIX
};

// The folders of packages (prefix/lib/python3.11/site-packages) of the environment that is active, of the Pythons in
// PATH, of the user's own and of the system's, newest Python first; each once. root: the system's, for tests.
std::vector<std::filesystem::path> python_packages(const PythonEnvironment& environment, const std::string& root = "/");

// Sub-folders whose names begin so, the last name first. A folder that cannot be read has none.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder, const std::string& prefix);

}  // namespace quire
