// A device with its kernels, behind one interface. Call an op by its arguments:
//   backend(RmsNormArgs{...});
// which checks shapes (a wrong one is a bug and ends the process) and runs the kernel. Calls of one backend come from
// one thread at a time and take effect in order.
//
// It is made of parts, each with a header of its own: memory, weights, recording, and the table of ops.
//
// Pointers of an op's arguments are the device's, memory of allocator() or of host_allocator(), unless a Mirrored gives
// both sides. A call may return before its op is done; download() and synchronise() wait.
#pragma once

#include <memory>
#include <string>

#include "base/function_ref.h"
#include "ops/device_link.h"
#include "ops/device_memory.h"
#include "ops/op_table.h"
#include "ops/quantise.h"
#include "ops/recording.h"
#include "ops/weight_memory.h"

namespace quire::ops {

class Backend : public DeviceMemory, public WeightMemory, public Recorder, protected RunsAllOps {
 public:
  virtual std::string description() const = 0;  // "cpu, avx2, 2 threads": for people

  // Scratch of the kernels themselves for batches up to this size, beyond what callers pass in.
  virtual int64_t scratch_bytes(int64_t max_num_tokens) const = 0;

  // What a Linear of this weight and so many rows is best given: F32, or what it would round its inputs to itself. Of
  // 16 bits that changes no bit of its outputs; of 8, floats are rounded once where else it would be twice.
  virtual DType input_dtype(const PackedMatrix& /*weight*/, int64_t /*num_rows*/) const { return DType::kF32; }
  // Whether products of bfloat16 weights round their inputs to bfloat16 from here on: where that is faster here, and
  // the configuration leaves it to the backend.
  virtual bool round_bfloat16_inputs() { return false; }
  // Rows of logits that are made at once at most, by one reading of the head.
  virtual int64_t logit_rows(int64_t /*vocab_size*/) const { return 64; }
  // Whether its attention wants the keys of one token side by side (KvCacheView::keys_by_token).
  virtual bool keys_by_token() const { return false; }
  // Whether its attention reads the blocks of a shared prefix once for all sequences of a group
  // (PagedAttentionArgs::span_places).
  virtual bool shares_spans() const { return false; }
  // Whether it has LowRankArgs: whose product it is not, ends the process.
  virtual bool has_low_rank() const { return false; }
  // Whether attention takes parts of the heads that read one kv head (PagedAttentionArgs::group).
  virtual bool cuts_groups() const { return false; }

  // The way to other devices that this kind has without the host. On all ranks of the group at once; it succeeds on all
  // of them or on none. The backend must outlive it. Errors: unavailable where there is none.
  virtual Result<std::unique_ptr<DeviceLink>> link(const LinkGroup& /*group*/) {
    return unavailable("this device has no way to others but by the host");
  }

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
  using RunsAllOps::run;

  // The product, then the activation.
  void run_in_steps(const GatedLinearArgs& args);
  // The product, then what is added.
  void run_in_steps(const AdaptedLinearArgs& args);
};

// Numbers that an op made on the device: the host reads them only where it is the device.
template <typename T>
Mirrored<T> made_on_device(Backend& backend, const T* numbers) {
  return {backend.computes_in_host_memory() ? numbers : nullptr, numbers};
}

}  // namespace quire::ops
