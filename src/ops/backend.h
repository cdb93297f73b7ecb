// A device with its kernels, behind one interface. Call an op by its arguments:
//   backend(RmsNormArgs{...});
// which checks shapes (a wrong one is a bug and ends the process) and runs the kernel. Calls of one backend come from
// one thread at a time and take effect in order.
//
// Pointers of an op's arguments are the device's, memory of allocator() or of host_allocator(), unless a Mirrored gives
// both sides. A call may return before its op is done; download() and synchronise() wait.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "ops/activation.h"
#include "ops/add.h"
#include "ops/choose_tokens.h"
#include "ops/clamped_swiglu.h"
#include "ops/copy_blocks.h"
#include "ops/copy_heads.h"
#include "ops/edit_logits.h"
#include "ops/embedding.h"
#include "ops/gated_linear.h"
#include "ops/gather_rows.h"
#include "ops/grouped_linear.h"
#include "ops/kv_cache.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/moe_combine.h"
#include "ops/moe_routing.h"
#include "ops/packed_matrix.h"
#include "ops/paged_attention.h"
#include "ops/place_tokens.h"
#include "ops/prepare_heads.h"
#include "ops/quantise.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/top_logprobs.h"
#include "tensor/tensor.h"

namespace quire::ops {

// A table of rows where the device reads it.
struct ResidentTable {
  TensorView view;
  int64_t row_stride = 0;  // EmbeddingArgs::row_stride
  // nullptr where the device reads the file's own. A weight of the same rows holds it too.
  std::shared_ptr<const Buffer> memory = {};
};

// Calls of ops that were taken down once, to be run again.
class OpRecording {
 public:
  virtual ~OpRecording() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string description() const = 0;  // "cpu, avx2, 2 threads": for people
  virtual Allocator& allocator() = 0;
  bool computes_in_host_memory() { return allocator().device().kind == DeviceKind::kCpu; }
  // Bytes of allocator() that may still be taken.
  virtual int64_t free_memory() const { return available_host_memory(); }
  // Memory of the host that the device reaches as well: of swapped blocks, and for downloads at full speed.
  virtual Allocator& host_allocator() { return allocator(); }

  // Copies between host and device in their turn with the ops. `host` may be written again when upload() returns.
  virtual void upload(void* device, const void* host, size_t bytes);
  virtual void download(void* host, const void* device, size_t bytes);
  // The same as download(), but that it does not wait: finish_download() does, with what this returned. `host` is
  // memory of host_allocator(). At most kMostDownloads may be under way; they finish in any order.
  virtual int begin_download(void* host, const void* device, size_t bytes) {
    download(host, device, bytes);
    return 0;
  }
  virtual void finish_download(int /*download*/) {}
  static constexpr int kMostDownloads = 4;
  // Waits until all that was called is done.
  virtual void synchronise() {}

  // The weight of a Linear out of its rows as stored: each part is [n_i, k] of one dtype, stacked along n (Q, K and V,
  // or gate and up, make one product). Reads the parts once; they may go afterwards. Errors: unimplemented for a dtype
  // without a kernel; resource_exhausted.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) = 0;
  // The same of parts of F32, F16 and BF16 (each of its own), rounded to `dtype` as ops/quantise.h says. No row is kept
  // as floats for longer than it takes to round it. Errors: as pack().
  virtual Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) = 0;
  // For products that take these weights together.
  virtual std::unique_ptr<PackedGroup> group(std::vector<const PackedMatrix*> matrices) {
    return std::make_unique<PackedGroup>(std::move(matrices));
  }
  // Rows as stored, for the Embedding op; the file must stay mapped. Errors: resource_exhausted.
  virtual Result<ResidentTable> table(const TensorView& stored) { return ResidentTable{.view = stored}; }
  // Bytes of table().
  virtual int64_t table_bytes(const TensorView& stored) const { return stored.bytes(); }
  // Whether it holds the rows of a table as those of a weight. Then weight_of() is the pack() of what the table was
  // made of without another copy: an embedding may be the head as well.
  virtual bool tables_are_weights() const { return false; }
  virtual std::unique_ptr<PackedMatrix> weight_of(const ResidentTable& table, const TensorView& stored);
  // What pack() or quantise() will hold, without packing.
  virtual int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const = 0;
  // Scratch of the kernels themselves for batches up to this size, beyond what callers pass in.
  virtual int64_t scratch_bytes(int64_t max_num_tokens) const = 0;

  // What a Linear of this weight and so many rows is best given: F32, or what it would round its inputs to itself, so
  // that giving it that changes no bit of its outputs.
  virtual DType input_dtype(const PackedMatrix& /*weight*/, int64_t /*num_rows*/) const { return DType::kF32; }
  // Rows of logits that are made at once at most, by one reading of the head.
  virtual int64_t logit_rows(int64_t /*vocab_size*/) const { return 64; }
  // How it wants keys kept: KvCacheView::keys_by_token.
  virtual bool keys_by_token() const { return false; }
  // Whether PagedAttentionArgs::span_places spares it anything.
  virtual bool shares_spans() const { return false; }

  // Whether calls can be recorded: where each of them costs the host time that the device waits for.
  virtual bool can_record() const { return false; }
  // Takes down the ops that `body` calls; they do not run. A recording keeps the pointers and the sizes that they were
  // given and what they decided by the host's side of a Mirrored; what lies on the device is read when it is replayed.
  // Errors: resource_exhausted. REQUIRES: can_record(); the same ops have run once before; `body` copies nothing
  // between host and device and does not wait. renews_attention: calls of attention are not recorded but kept beside
  // it, to be made anew in each replay.
  virtual Result<std::unique_ptr<OpRecording>> record(FunctionRef<void()> body, bool renews_attention);
  // In its turn with the ops. A recording may go when all is done that was replayed. renew: brings the arguments of
  // each kept call of attention, as they were recorded, up to date.
  virtual void replay(const OpRecording& recording, FunctionRef<void(PagedAttentionArgs& args)> renew);

  // Calls the ops of `body`, copies of blocks alone, to be done beside what is called later, but for what follows a
  // wait_for() of the same mark. They begin when all is done that was called before, and are done in the order of the
  // calls. mark: the caller's number for them, from 0, as small as may be; a later call may use it again.
  virtual void beside(int /*mark*/, FunctionRef<void()> body) { body(); }
  // Not while ops are recorded. REQUIRES: a call of beside() with this mark.
  virtual void wait_for(int /*mark*/) {}

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
  virtual void run(const GatedLinearArgs& args) = 0;
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
  virtual void run(const ChooseTokensArgs& args) = 0;
  virtual void run(const PlaceTokensArgs& args) = 0;
  virtual void run(const PrepareHeadsArgs& args) = 0;
  virtual void run(const EditLogitsArgs& args) = 0;
  virtual void run(const TopLogprobsArgs& args) = 0;

  // The product, then the activation.
  void run_in_steps(const GatedLinearArgs& args);
};

// Numbers that an op made on the device: the host reads them only where it is the device.
template <typename T>
Mirrored<T> made_on_device(Backend& backend, const T* numbers) {
  return {backend.computes_in_host_memory() ? numbers : nullptr, numbers};
}

}  // namespace quire::ops
