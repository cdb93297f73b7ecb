// Finds and loads NCCL's library.
#include <dlfcn.h>

#include "ops/cuda/nccl.h"

namespace quire::ops::cuda {
namespace {

constexpr const char* kNcclFile = "libnccl.so.2";

template <typename Function>
bool find_nccl(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<NcclFunctions> load_nccl(const std::vector<std::string>& paths) {
  std::vector<std::string> tried;
  for (const std::string& path : paths) tried.insert(tried.end(), {path + "/" + kNcclFile, path});
  tried.push_back(kNcclFile);
  void* library = nullptr;
  for (size_t i = 0; i < tried.size() && library == nullptr; ++i)
    library = dlopen(tried[i].c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unavailable(
        "{} was not found: install NCCL (pip install nvidia-nccl-cu13 has it), and name the library or its folder in "
        "QUIRE_NCCL, or the folder in LD_LIBRARY_PATH",
        kNcclFile);
  }
  NcclFunctions f;
  const bool complete =
      find_nccl(library, "ncclGetVersion", f.get_version) && find_nccl(library, "ncclGetUniqueId", f.get_id) &&
      find_nccl(library, "ncclCommInitRank", f.init_rank) && find_nccl(library, "ncclAllReduce", f.all_reduce) &&
      find_nccl(library, "ncclSend", f.send) && find_nccl(library, "ncclRecv", f.receive) &&
      find_nccl(library, "ncclGroupStart", f.group_start) && find_nccl(library, "ncclGroupEnd", f.group_end) &&
      find_nccl(library, "ncclCommAbort", f.abort) && find_nccl(library, "ncclGetErrorString", f.error_string);
  if (!complete) return unavailable("{} lacks a function that NCCL 2.18 has", kNcclFile);
  return f;
}

}  // namespace quire::ops::cuda
