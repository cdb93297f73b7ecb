// Where cuBLASLt may lie on a machine whose loader does not know of it: pip puts it beside Python's packages.
#pragma once

#include <string>
#include <vector>

namespace quire::cli {

// Of the process; empty where a variable is not set.
struct LibraryEnvironment {
  std::string cublas_lt;     // QUIRE_CUBLASLT: the library or its folder
  std::string path;          // PATH
  std::string home;          // HOME
  std::string virtual_env;   // VIRTUAL_ENV
  std::string conda_prefix;  // CONDA_PREFIX
};
LibraryEnvironment library_environment();

// What is named, then the folders of Python's packages that hold a libcublasLt.so: nvidia/cu13/lib and its like, of the
// environment that is active, of the Pythons in PATH, of the user's own and of the system's, newest Python first.
// root: the system's, for tests.
std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root = "/");

}  // namespace quire::cli
