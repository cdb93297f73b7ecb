// Where cuBLASLt may lie on a machine whose loader does not know of it: pip puts it beside Python's packages.
#pragma once

#include <string>
#include <vector>

#include "base/python_packages.h"

namespace quire::cli {

// Of the process; empty where a variable is not set.
struct LibraryEnvironment {
  std::string cublas_lt;  // QUIRE_CUBLASLT: the library or its folder
  PythonEnvironment python;
};

// What is named, then the folders of Python's packages that hold a libcublasLt.so: nvidia/cu13/lib and its like, in the
// order of python_packages(). root: the system's, for tests.
std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root = "/");

}  // namespace quire::cli
