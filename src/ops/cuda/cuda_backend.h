// A card: kernels of our own and cuBLASLt's matrix products, in order on one stream.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"

namespace quire::ops {

// Which kernels compute attention: quire's own, FlashInfer's for any card from compute capability 8.0 on, or those of
// FlashAttention-3 for Hopper (docs/cuda.md). What was asked for takes what it has kernels for; the rest is quire's
// own.
enum class AttentionBackend { kAuto, kNative, kFlashInfer, kFa3 };
std::string_view name(AttentionBackend backend);  // as --attention-backend says it

struct CudaBackendOptions {
  int device = 0;
  int host_threads = 0;          // that sample; 0: one a core of `cores`
  std::vector<int> cores;        // for the host's threads; empty: those that this process may use
  bool batch_invariant = false;  // products are summed in one order, however many rows they have
  // Inputs of many rows to weights of F8_E4M3 are rounded to it, where the card multiplies it: twice as fast as 16
  // bits.
  bool rounds_activations = true;
  AttentionBackend attention = AttentionBackend::kAuto;
  bool synchronous = false;     // each op waits until it is done: for finding out which one failed
  bool check_pointers = false;  // that what an op is given is memory of the card or known to it: for tests
};

// Cards that this machine has and this program can use; 0 where there is no driver.
int cuda_device_count();

// Errors: unavailable where there is no driver, no such card or no cuBLASLt, or where the kernels of attention that
// were asked for were not built; invalid_argument where they cannot be on the card or with batch_invariant;
// resource_exhausted.
Result<std::unique_ptr<Backend>> make_cuda_backend(CudaBackendOptions options = {});

}  // namespace quire::ops
