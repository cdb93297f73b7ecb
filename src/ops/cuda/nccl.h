// NCCL: sums and messages between cards. Loaded when several of them compute one model; the few functions that are
// called are declared here, so that nothing of it need be there to compile.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/device_link.h"

namespace quire::ops::cuda {

struct NcclId {
  char bytes[128];
};

// As nccl.h of version 2 has them: results are 0, or errors that error_string() puts into words; a communicator is a
// pointer.
struct NcclFunctions {
  static constexpr int kUint8 = 1;    // ncclDataType_t
  static constexpr int kFloat32 = 7;  // the same
  static constexpr int kSum = 0;      // ncclRedOp_t
  int (*get_version)(int* version) = nullptr;
  int (*get_id)(NcclId* id) = nullptr;
  int (*init_rank)(void** communicator, int size, NcclId id, int rank) = nullptr;
  int (*all_reduce)(const void* in, void* out, size_t count, int type, int op, void* communicator,
                    cudaStream_t stream) = nullptr;
  int (*send)(const void* in, size_t count, int type, int peer, void* communicator, cudaStream_t stream) = nullptr;
  int (*receive)(void* out, size_t count, int type, int peer, void* communicator, cudaStream_t stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*abort)(void* communicator) = nullptr;
  const char* (*error_string)(int result) = nullptr;
};

// Loads it, for as long as the process runs: from the first of the paths that is one (a file, or a folder that holds
// it), then where the loader looks. How it sums follows from the environment that the process was started with
// (NCCL_ALGO). Errors: unavailable.
Result<NcclFunctions> load_nccl(const std::vector<std::string>& paths);

// Called by all ranks of the group at once, each with its card the current one. functions: of load_nccl(), or why there
// are none, which all ranks are to learn. Errors: unavailable on all ranks where one has none, another version, or
// cannot begin. peer_sums: small sums are taken out of each other's memory, where all cards reach it (peer_sums.h).
Result<std::unique_ptr<DeviceLink>> make_nccl_link(const Result<NcclFunctions>& functions, const LinkGroup& group,
                                                   cudaStream_t stream, bool peer_sums);

}  // namespace quire::ops::cuda
