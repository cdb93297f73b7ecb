#include "cli/cuda_libraries.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace quire::cli {
namespace {

using testing::ElementsAre;

class CudaLibraries : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  // Returns the folder.
  std::string install(const std::string& folder, const std::string& file = "libcublasLt.so.13") {
    const std::string whole = root_ + folder;
    std::filesystem::create_directories(whole);
    std::ofstream(whole + "/" + file) << "a library";
    return whole;
  }
  std::string root_ = testing::TempDir() + "cuda_libraries/";
};

TEST_F(CudaLibraries, AreLookedForWherePipPutsThemOfAnyPythonThere) {
  const std::string newest = install("usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib");
  const std::string older = install("usr/local/lib/python3.11/site-packages/nvidia/cublas/lib", "libcublasLt.so.12");
  const std::string users = install("home/me/.local/lib/python3.11/site-packages/nvidia/cu13/lib");
  const std::string active = install("work/env/lib/python3.11/site-packages/nvidia/cu13/lib");
  const std::string in_path = install("opt/python/lib/python3.10/site-packages/nvidia/cu13/lib");
  const std::string pyenvs = install("home/me/.pyenv/versions/3.11.4/lib/python3.11/site-packages/nvidia/cu13/lib");
  install("opt/python/bin", "python3");
  install("usr/lib/python3/dist-packages/nvidia/cudnn/lib", "libcudnn.so");
  EXPECT_THAT(cublas_lt_paths({.cublas_lt = "/named/libcublasLt.so.13",
                               .python = {.path = "/nowhere::" + root_ + "opt/python/bin",
                                          .home = root_ + "home/me",
                                          .virtual_env = root_ + "work/env"}},
                              root_),
              ElementsAre("/named/libcublasLt.so.13", active, in_path, users, pyenvs, newest, older));
}

TEST_F(CudaLibraries, NcclLiesBesideThem) {
  const std::string system = install("usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib", "libnccl.so.2");
  const std::string active = install("work/env/lib/python3.11/site-packages/nvidia/nccl/lib", "libnccl.so.2");
  install("work/env/lib/python3.11/site-packages/nvidia/cu13/lib");
  const LibraryEnvironment environment{.nccl = "/named", .python = {.virtual_env = root_ + "work/env"}};
  EXPECT_THAT(nccl_paths(environment, root_), ElementsAre("/named", active, system));
}

TEST_F(CudaLibraries, AreNowhereWhereThereIsNoPython) {
  EXPECT_THAT(cublas_lt_paths({}, root_), ElementsAre());
  EXPECT_THAT(cublas_lt_paths({.cublas_lt = "/named", .python = {.path = ":", .home = "/nowhere"}}, root_),
              ElementsAre("/named"));
}

}  // namespace
}  // namespace quire::cli
