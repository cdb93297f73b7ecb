// A backend that stays when a test has done with it: to begin one takes a card longer than most tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "ops/backend.h"

namespace quire::cards {

// Each op of the lists given to another backend.
template <typename... Lists>
class ForwardsOps;

template <>
class ForwardsOps<> : public ops::Backend {
 public:
  explicit ForwardsOps(ops::Backend& real) : real_(real) {}

 protected:
  using ops::Backend::run;
  ops::Backend& real_;
};

template <typename... Lists>
class ForwardsOps<ops::OpList<>, Lists...> : public ForwardsOps<Lists...> {
 public:
  using ForwardsOps<Lists...>::ForwardsOps;
};

template <typename Args, typename... More, typename... Lists>
class ForwardsOps<ops::OpList<Args, More...>, Lists...> : public ForwardsOps<ops::OpList<More...>, Lists...> {
 public:
  using ForwardsOps<ops::OpList<More...>, Lists...>::ForwardsOps;

 protected:
  using ForwardsOps<ops::OpList<More...>, Lists...>::run;
  void run(const Args& args) override { this->real_(args); }
};

using ForwardsAllOps =
    ForwardsOps<ops::ValueOps, ops::ProductOps, ops::AttentionOps, ops::RecurrentOps, ops::ExpertOps, ops::SamplingOps>;

// One test's use of a backend, which must outlive it.
class LentBackend final : public ForwardsAllOps {
 public:
  using ForwardsAllOps::ForwardsAllOps;
  ~LentBackend() override { real_.synchronise(); }

  std::string description() const override { return real_.description(); }
  Allocator& allocator() override { return real_.allocator(); }
  int64_t free_memory() const override { return real_.free_memory(); }
  Allocator& host_allocator() override { return real_.host_allocator(); }
  void upload(void* device, const void* host, size_t bytes) override { real_.upload(device, host, bytes); }
  Status upload_on_side_stream(void* device, const void* host, size_t bytes) override {
    return real_.upload_on_side_stream(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override { real_.download(host, device, bytes); }
  int begin_download(void* host, const void* device, size_t bytes) override {
    return real_.begin_download(host, device, bytes);
  }
  void finish_download(int download) override { real_.finish_download(download); }
  void copy_to_host(void* host, const void* device, const CopyShape& shape) override {
    real_.copy_to_host(host, device, shape);
  }
  void copy_to_device(void* device, const void* host, const CopyShape& shape) override {
    real_.copy_to_device(device, host, shape);
  }
  void call_on_host(void (*function)(const void*), const void* argument) override {
    real_.call_on_host(function, argument);
  }
  void synchronise() override { real_.synchronise(); }

  Result<std::unique_ptr<ops::PackedMatrix>> pack(std::span<const TensorView> parts) override {
    return real_.pack(parts);
  }
  Result<std::unique_ptr<ops::PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) override {
    return real_.quantise(parts, dtype);
  }
  ops::InputForm heeded(const ops::InputForm& form, bool in_group) const override {
    return real_.heeded(form, in_group);
  }
  Status set_input(ops::PackedMatrix& matrix, ops::InputForm form) override {
    return real_.set_input(matrix, std::move(form));
  }
  std::unique_ptr<ops::PackedGroup> group(std::vector<const ops::PackedMatrix*> matrices) override {
    return real_.group(std::move(matrices));
  }
  Result<ops::ResidentTable> table(const TensorView& stored) override { return real_.table(stored); }
  int64_t table_bytes(const TensorView& stored) const override { return real_.table_bytes(stored); }
  bool tables_are_weights() const override { return real_.tables_are_weights(); }
  std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const TensorView& stored) override {
    return real_.weight_of(table, stored);
  }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return real_.packed_bytes(dtype, rows, columns);
  }

  bool can_record() const override { return real_.can_record(); }
  Result<std::unique_ptr<ops::OpRecording>> record(FunctionRef<void()> body, bool renews_attention) override {
    return real_.record(body, renews_attention);
  }
  void replay(const ops::OpRecording& recording, FunctionRef<void(ops::PagedAttentionArgs& args)> renew) override {
    real_.replay(recording, renew);
  }
  double seconds_of(FunctionRef<void()> body) override { return real_.seconds_of(body); }
  void on_side_stream(int mark, FunctionRef<void()> body) override { real_.on_side_stream(mark, body); }
  void wait_for(int mark) override { real_.wait_for(mark); }

  int64_t scratch_bytes(int64_t max_num_tokens) const override { return real_.scratch_bytes(max_num_tokens); }
  DType input_dtype(const ops::PackedMatrix& weight, int64_t num_rows) const override {
    return real_.input_dtype(weight, num_rows);
  }
  int64_t logit_rows(int64_t vocab_size) const override { return real_.logit_rows(vocab_size); }
  bool keys_by_token() const override { return real_.keys_by_token(); }
  bool shares_spans() const override { return real_.shares_spans(); }
  bool has_low_rank() const override { return real_.has_low_rank(); }
  Result<std::unique_ptr<ops::DeviceLink>> link(const ops::LinkGroup& group) override { return real_.link(group); }
  void bind_thread() override { real_.bind_thread(); }
  int num_host_threads() const override { return real_.num_host_threads(); }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) override {
    real_.host_parallel_for(num_tasks, body);
  }
};

// Backends by what they are used for, made when they are first asked for and there until the process ends.
template <typename Use>
class BackendPool {
 public:
  using Make = std::function<std::unique_ptr<ops::Backend>(const Use& use)>;
  explicit BackendPool(Make make) : make_(std::move(make)) {}

  // nullptr: there is none.
  std::unique_ptr<ops::Backend> lend(const Use& use) {
    auto found = backends_.find(use);
    if (found == backends_.end()) found = backends_.emplace(use, make_(use)).first;
    return found->second == nullptr ? nullptr : std::make_unique<LentBackend>(*found->second);
  }

 private:
  Make make_;
  std::map<Use, std::unique_ptr<ops::Backend>> backends_;
};

}  // namespace quire::cards
