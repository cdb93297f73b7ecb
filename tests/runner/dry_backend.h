// A backend that checks every call's shapes and computes nothing, for tests to count or watch what is called.
#pragma once

#include "ops/backend.h"

namespace quire::runner {

class DryBackend : public ops::Backend {
 public:
  // `real` must outlive it.
  explicit DryBackend(ops::Backend& real) : real_(real) {}

  std::string description() const override { return "dry " + real_.description(); }
  Allocator& allocator() override { return real_.allocator(); }
  Result<std::unique_ptr<ops::PackedMatrix>> pack(std::span<const TensorView> parts) override {
    return real_.pack(parts);
  }
  Result<std::unique_ptr<ops::PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) override {
    return real_.quantise(parts, dtype);
  }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return real_.packed_bytes(dtype, rows, columns);
  }
  int64_t scratch_bytes(int64_t max_num_tokens) const override { return real_.scratch_bytes(max_num_tokens); }
  int64_t free_memory() const override { return real_.free_memory(); }
  Allocator& host_allocator() override { return real_.host_allocator(); }
  void upload(void* device, const void* host, size_t bytes) override { real_.upload(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { real_.download(host, device, bytes); }
  void synchronise() override { real_.synchronise(); }
  std::unique_ptr<ops::PackedGroup> group(std::vector<const ops::PackedMatrix*> matrices) override {
    return real_.group(std::move(matrices));
  }
  Result<ops::ResidentTable> table(const TensorView& stored) override { return real_.table(stored); }
  int64_t table_bytes(const TensorView& stored) const override { return real_.table_bytes(stored); }
  bool tables_are_weights() const override { return real_.tables_are_weights(); }
  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const TensorView& stored) override {
    return real_.weight_of(table, stored);
  }
  DType input_dtype(const ops::PackedMatrix& weight, int64_t num_rows) const override {
    return real_.input_dtype(weight, num_rows);
  }
  int64_t logit_rows(int64_t vocab_size) const override { return real_.logit_rows(vocab_size); }
  bool keys_by_token() const override { return real_.keys_by_token(); }
  int num_host_threads() const override { return real_.num_host_threads(); }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) override {
    real_.host_parallel_for(num_tasks, body);
  }

 protected:
  void run(const ops::EmbeddingArgs&) override {}
  void run(const ops::RmsNormArgs&) override {}
  void run(const ops::LayerNormArgs&) override {}
  void run(const ops::AddArgs&) override {}
  void run(const ops::ScaleArgs&) override {}
  void run(const ops::LinearArgs&) override {}
  void run(const ops::GatedLinearArgs&) override {}
  void run(const ops::RopeArgs&) override {}
  void run(const ops::KvWriteArgs&) override {}
  void run(const ops::PagedAttentionArgs&) override {}
  void run(const ops::CopyBlocksArgs&) override {}
  void run(const ops::ActivationArgs&) override {}
  void run(const ops::GateArgs&) override {}
  void run(const ops::XieluArgs&) override {}
  void run(const ops::ShortConvArgs&) override {}
  void run(const ops::RecurrenceArgs&) override {}
  void run(const ops::GatherRowsArgs&) override {}
  void run(const ops::CopyHeadsArgs&) override {}
  // What later ops check must be there, whatever the logits are.
  void run(const ops::MoeRoutingArgs& args) override { real_(args); }
  void run(const ops::GroupedLinearArgs&) override {}
  void run(const ops::LowRankArgs&) override {}
  void run(const ops::AdaptedLinearArgs&) override {}
  void run(const ops::ClampedSwigluArgs&) override {}
  void run(const ops::MoeCombineArgs&) override {}
  void run(const ops::ChooseTokensArgs&) override {}
  void run(const ops::PlaceTokensArgs&) override {}
  void run(const ops::PrepareHeadsArgs&) override {}
  void run(const ops::EditLogitsArgs&) override {}
  void run(const ops::TopLogprobsArgs&) override {}

 private:
  ops::Backend& real_;
};

}  // namespace quire::runner
