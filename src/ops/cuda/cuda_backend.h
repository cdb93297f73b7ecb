// A card: kernels of our own and cuBLASLt's matrix products, in order on one stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "ops/cuda/product_kernels.h"
#include "types/engine_choices.h"

namespace quire::ops {

struct CudaBackendOptions {
  int device = 0;
  int host_threads = 0;          // that sample; 0: one a core of `cores`
  std::vector<int> cores;        // for the host's threads; empty: those that this process may use
  bool batch_invariant = false;  // products are summed in one order, however many rows they have
  // Inputs of many rows to weights of F8_E4M3 are rounded to it, where the card multiplies it: twice as fast as 16
  // bits.
  bool rounds_activations = true;
  ProductKernels products = ProductKernels::kByRows;     // others: for measuring them beside each other
  AttentionBackend attention = AttentionBackend::kAuto;  // with batch_invariant none by name but kNative
  // What try_attention() said of the card, asked once where kAuto would take kernels that are not quire's own: after an
  // error they are left alone. Empty: they are taken.
  std::function<Status()> attention_trial;
  std::vector<std::string> cublas_lt_paths;  // files or folders to look for cuBLASLt at, before the loader's
  std::vector<std::string> nccl_paths;       // the same of NCCL, which link() looks for
  bool peer_sums = true;        // link()'s small sums by a kernel of our own that reads the other cards' memory
  bool synchronous = false;     // each op waits until it is done: for finding out which one failed
  bool check_pointers = false;  // that what an op is given is memory of the card or known to it: for tests
};

// Cards that this machine has and this program can use; 0 where there is no driver.
int cuda_device_count();

// Whether the kernels of attention that kAuto takes give what quire's own do, on a card of this machine: for a process
// of its own, which what CUDA refuses ends. Errors: internal where they do not; unavailable, resource_exhausted.
Status try_attention(int device);

// Errors: unavailable where there is no driver, no such card or no cuBLASLt, or where the kernels of attention that
// were asked for were not built; invalid_argument where they cannot be on the card; resource_exhausted.
Result<std::unique_ptr<Backend>> make_cuda_backend(CudaBackendOptions options = {});

}  // namespace quire::ops
