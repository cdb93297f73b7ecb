// Where cuBLASLt and NCCL may lie on a machine whose loader does not know of them: pip puts it beside Python's
// packages.
#pragma once

#include <string>
#include <vector>

#include "base/python_packages.h"

namespace quire::cli {

// Of the process; empty where a variable is not set.
struct LibraryEnvironment {
  std::string cublas_lt;  // QUIRE_CUBLASLT: the library or its folder
  std::string nccl;       // QUIRE_NCCL: the same
  PythonEnvironment python;
};

// What is named, then the folders of Python's packages that hold a libcublasLt.so: nvidia/cu13/lib and its like, in the
// order of python_packages(). root: the system's, for tests.
std::vector<std::string> cublas_lt_paths(const LibraryEnvironment& environment, const std::string& root = "/");
// The same of a libnccl.so: nvidia/nccl/lib.
std::vector<std::string> nccl_paths(const LibraryEnvironment& environment, const std::string& root = "/");

}  // namespace quire::cli
