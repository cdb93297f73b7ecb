// A backend that checks every call's shapes and computes nothing: a model's largest step can be walked through at start
// in no time, to measure what it takes from the workspace.
#pragma once

#include "ops/backend.h"

namespace quire::runner {

class DryBackend final : public ops::Backend {
 public:
  // `real` must outlive it.
  explicit DryBackend(ops::Backend& real) : real_(real) {}

  std::string description() const override { return "dry " + real_.description(); }
  Allocator& allocator() override { return real_.allocator(); }
  Result<std::unique_ptr<ops::PackedMatrix>> pack(std::span<const TensorView> parts) override {
    return real_.pack(parts);
  }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return real_.packed_bytes(dtype, rows, columns);
  }
  int64_t scratch_bytes(int64_t max_num_tokens) const override { return real_.scratch_bytes(max_num_tokens); }
  int num_host_threads() const override { return real_.num_host_threads(); }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) override {
    real_.host_parallel_for(num_tasks, body);
  }

 protected:
  void run(const ops::EmbeddingArgs&) override {}
  void run(const ops::RmsNormArgs&) override {}
  void run(const ops::LinearArgs&) override {}
  void run(const ops::RopeArgs&) override {}
  void run(const ops::KvWriteArgs&) override {}
  void run(const ops::PagedAttentionArgs&) override {}
  void run(const ops::CopyBlocksArgs&) override {}
  void run(const ops::SiluAndMulArgs&) override {}
  void run(const ops::GatherRowsArgs&) override {}

 private:
  ops::Backend& real_;
};

}  // namespace quire::runner
