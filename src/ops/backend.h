// A device with its kernels, behind one interface. Call an op by its arguments:
//   backend(RmsNormArgs{...});
// which checks shapes (a wrong one is a bug and ends the process) and runs the kernel. Calls of one backend come from
// one thread at a time and take effect in order.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"
#include "ops/activation.h"
#include "ops/add.h"
#include "ops/clamped_swiglu.h"
#include "ops/copy_blocks.h"
#include "ops/copy_heads.h"
#include "ops/embedding.h"
#include "ops/gather_rows.h"
#include "ops/grouped_linear.h"
#include "ops/kv_cache.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/moe_combine.h"
#include "ops/moe_routing.h"
#include "ops/packed_matrix.h"
#include "ops/paged_attention.h"
#include "ops/quantise.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "tensor/tensor.h"

namespace quire::ops {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string description() const = 0;  // "cpu, avx2, 2 threads": for people
  virtual Allocator& allocator() = 0;

  // The weight of a Linear out of its rows as stored: each part is [n_i, k] of one dtype, stacked along n (Q, K and V,
  // or gate and up, make one product). Reads the parts once; they may go afterwards. Errors: unimplemented for a dtype
  // without a kernel; resource_exhausted.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) = 0;
  // The same of parts of F32, F16 and BF16 (each of its own), rounded to `dtype` as ops/quantise.h says. No row is kept
  // as floats for longer than it takes to round it. Errors: as pack().
  virtual Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) = 0;
  // What pack() or quantise() will hold, without packing.
  virtual int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const = 0;
  // Scratch of the kernels themselves for batches up to this size, beyond what callers pass in.
  virtual int64_t scratch_bytes(int64_t max_num_tokens) const = 0;

  // Told by the thread that will make all further calls, so that it can be given a core of its own.
  virtual void bind_thread() {}

  // The host's compute threads, for work beside the kernels (sampling): body(task, thread) for each task in [0,
  // num_tasks), thread in [0, num_host_threads()).
  virtual int num_host_threads() const = 0;
  virtual void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) = 0;

  template <typename Args>
  void operator()(const Args& args) {
    check(args);
    run(args);
  }

 protected:
  virtual void run(const EmbeddingArgs& args) = 0;
  virtual void run(const RmsNormArgs& args) = 0;
  virtual void run(const LayerNormArgs& args) = 0;
  virtual void run(const AddArgs& args) = 0;
  virtual void run(const ScaleArgs& args) = 0;
  virtual void run(const LinearArgs& args) = 0;
  virtual void run(const RopeArgs& args) = 0;
  virtual void run(const KvWriteArgs& args) = 0;
  virtual void run(const PagedAttentionArgs& args) = 0;
  virtual void run(const CopyBlocksArgs& args) = 0;
  virtual void run(const ActivationArgs& args) = 0;
  virtual void run(const GatherRowsArgs& args) = 0;
  virtual void run(const CopyHeadsArgs& args) = 0;
  virtual void run(const MoeRoutingArgs& args) = 0;
  virtual void run(const GroupedLinearArgs& args) = 0;
  virtual void run(const ClampedSwigluArgs& args) = 0;
  virtual void run(const MoeCombineArgs& args) = 0;
};

}  // namespace quire::ops
