#include "ops/cuda/cuda_backend.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "ops/cuda/attention_trial.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/graph_capture.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/matrix_product.h"
#include "ops/cuda/nccl.h"
#include "ops/cuda/products.h"
#include "ops/cuda/prompt_attention.h"
#include "ops/cuda/recurrent.h"
#include "ops/cuda/weights.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::ops {
namespace cuda {
namespace {

// Of the kernels: rounded rows, expanded weights, partial results of attention. Ops take turns on it.
constexpr size_t kScratchBytes = size_t{256} << 20;

// CUDA graphs, with calls of attention between them.
class CudaRecording final : public OpRecording {
 public:
  CudaRecording() = default;
  ~CudaRecording() override {
    for (const cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  void add(cudaGraphExec_t graph) { graphs_.push_back(graph); }
  void add(const PagedAttentionArgs& attention) { attentions_.push_back(attention); }
  const std::vector<cudaGraphExec_t>& graphs() const { return graphs_; }
  const std::vector<PagedAttentionArgs>& attentions() const { return attentions_; }  // each behind a graph

 private:
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<PagedAttentionArgs> attentions_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaBackendOptions& options)
      : options_(options),
        allocator_(options.device),
        pool_({.num_threads = options.host_threads, .cores = options.cores}) {}

  ~CudaBackend() override {
    if (stream_ == nullptr) return;
    cudaSetDevice(options_.device);
    synchronise();
    uploader_.reset();
    side_uploader_.reset();
    attention_.reset();
    for (const cudaEvent_t event : downloaded_) cudaEventDestroy(event);
    for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
    for (const cudaEvent_t event : timed_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    cudaEventDestroy(called_);
    cudaStreamDestroy(side_stream_);
    cudaStreamDestroy(stream_);
  }

  Status begin() {
    cudaDeviceProp properties = {};
    check_cuda(cudaSetDevice(options_.device), "cudaSetDevice");
    check_cuda(cudaGetDeviceProperties(&properties, options_.device), "cudaGetDeviceProperties");
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<MatrixLibrary> library,
                           load_matrix_library(options_.cublas_lt_paths, 10 * properties.major + properties.minor));
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    // Few blocks keep the bus busy, and the next layer waits for them: they go first.
    int least_priority = 0;
    int greatest_priority = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least_priority, &greatest_priority), "cudaDeviceGetStreamPriority");
    check_cuda(cudaStreamCreateWithPriority(&side_stream_, cudaStreamNonBlocking, greatest_priority),
               "cudaStreamCreate");
    called_ = make_event();
    for (cudaEvent_t& event : downloaded_) event = make_event();
    uploader_ = std::make_unique<Uploader>(stream_);
    scratch_ = Buffer(allocator_, kScratchBytes);
    library_workspace_ = Buffer(allocator_, MatrixLibrary::kWorkspaceBytes);
    if (!uploader_->begin() || scratch_.data() == nullptr || library_workspace_.data() == nullptr) {
      return resource_exhausted("no memory for the scratch of {} MiB on card {} ({})", kScratchBytes >> 20,
                                options_.device, properties.name);
    }
    QUIRE_ASSIGN_OR_RETURN(attention_, make_prompt_attention(options_.attention,
                                                             {.major = properties.major,
                                                              .minor = properties.minor,
                                                              .batch_invariant = options_.batch_invariant},
                                                             allocator_, stream_));
    leave_untrusted_attention();
    description_ = fmt::format("cuda:{}, {}, {}, {} host thread{}", options_.device, properties.name,
                               library->description(), pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s");
    if (attention_ != nullptr) description_ += fmt::format(", attention: {}", name(options_.attention));
    products_ = std::make_unique<Products>(std::move(library), options_.batch_invariant, options_.rounds_activations,
                                           options_.products, scratch_, library_workspace_, stream_);
    return {};
  }

  std::string description() const override { return description_; }
  Allocator& allocator() override { return allocator_; }
  Allocator& host_allocator() override { return pinned_; }
  int64_t free_memory() const override {
    size_t free = 0;
    size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

  void upload(void* device, const void* host, size_t bytes) override { uploader_->upload(device, host, bytes); }
  Status upload_on_side_stream(void* device, const void* host, size_t bytes) override {
    const std::lock_guard lock(side_uploader_mutex_);
    check_cuda(cudaSetDevice(options_.device), "cudaSetDevice");
    if (side_uploader_ == nullptr) {
      QUIRE_ASSIGN_OR_RETURN(side_uploader_, SideStreamUploader::begin());
    }
    side_uploader_->upload(device, host, bytes);
    return {};
  }
  void download(void* host, const void* device, size_t bytes) override {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    synchronise();
  }
  int begin_download(void* host, const void* device, size_t bytes) override {
    const int download = next_download_;
    next_download_ = (next_download_ + 1) % kMostDownloads;
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(downloaded_[static_cast<size_t>(download)], stream_), "cudaEventRecord");
    return download;
  }
  void finish_download(int download) override {
    check_cuda(cudaEventSynchronize(downloaded_[static_cast<size_t>(download)]), "cudaEventSynchronize");
  }
  void copy_to_host(void* host, const void* device, const CopyShape& shape) override {
    copy(host, shape.host_stride, device, shape.device_stride, shape, cudaMemcpyDeviceToHost);
  }
  void copy_to_device(void* device, const void* host, const CopyShape& shape) override {
    copy(device, shape.device_stride, host, shape.host_stride, shape, cudaMemcpyHostToDevice);
  }
  void synchronise() override {
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    check_cuda(cudaStreamSynchronize(side_stream_), "cudaStreamSynchronize");
  }

  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) override {
    QUIRE_ASSIGN_OR_RETURN(auto matrix, CudaMatrix::upload(parts, allocator_, *uploader_, stream_));
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }
  Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) override {
    QUIRE_ASSIGN_OR_RETURN(auto matrix, CudaMatrix::quantise(parts, dtype, allocator_, *uploader_, scratch_, stream_));
    // Products ask for weights before the kernel in front of them has ended (begin_kernel()), which made this one.
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
  }
  InputForm heeded(const InputForm& form, bool in_group) const override {
    if (in_group && form.order != nullptr) return {};
    return {.order = form.order, .factor = form.factor};
  }
  Status set_input(PackedMatrix& matrix, InputForm form) override {
    return static_cast<CudaMatrix&>(matrix).hold_input(std::move(form), allocator_, *uploader_);
  }
  std::unique_ptr<PackedGroup> group(std::vector<const PackedMatrix*> matrices) override {
    return std::make_unique<CudaGroup>(std::move(matrices), allocator_, *uploader_);
  }
  Result<ResidentTable> table(const TensorView& stored) override {
    if (!is_weight_format(stored.dtype)) return unimplemented("a table of {} has no kernel", name(stored.dtype));
    QUIRE_ASSIGN_OR_RETURN(const auto matrix, CudaMatrix::upload({&stored, 1}, allocator_, *uploader_, stream_));
    const StoredMatrix& held = matrix->stored();
    return ResidentTable{
        .view = {held.data, held.dtype, stored.shape}, .row_stride = held.row_bytes, .memory = matrix->memory()};
  }
  int64_t table_bytes(const TensorView& stored) const override {
    return held_bytes(stored.dtype, stored.shape[0], stored.shape[1]);
  }
  bool tables_are_weights() const override { return true; }
  std::unique_ptr<PackedMatrix> weight_of(const ResidentTable& table, const TensorView& stored) override {
    return CudaMatrix::of_table(table, stored.dtype);
  }
  int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const override {
    return held_bytes(dtype, rows, columns);
  }
  int64_t scratch_bytes(int64_t /*max_num_tokens*/) const override {
    return static_cast<int64_t>(kScratchBytes + MatrixLibrary::kWorkspaceBytes);
  }

  DType input_dtype(const PackedMatrix& weight, int64_t num_rows) const override {
    const auto& matrix = static_cast<const CudaMatrix&>(weight);
    return products_->input_dtype(matrix, num_rows);
  }
  // The head is most of a small model: it is read once for 256 sequences, and for all rows that have room in 256 MiB.
  int64_t logit_rows(int64_t vocab_size) const override {
    constexpr int64_t kBytes = 256 << 20;
    return std::max<int64_t>(256, kBytes / (vocab_size * static_cast<int64_t>(sizeof(float))));
  }
  bool keys_by_token() const override { return true; }
  bool has_low_rank() const override { return true; }
  bool shares_spans() const override { return !options_.batch_invariant; }

  bool can_record() const override { return true; }
  Result<std::unique_ptr<OpRecording>> record(FunctionRef<void()> body, bool renews_attention) override {
    // A kernel that has not run yet is loaded with its first launch, which may not be a captured one. With attention
    // apart the step that has run was this very one.
    recording_number_ = ++num_recordings_;
    if (!renews_attention) body();
    auto recording = std::make_unique<CudaRecording>();
    recording_ = recording.get();
    recording_number_ = ++num_recordings_;
    renews_attention_ = renews_attention;
    capture_status_ = {};
    capture_.begin(stream_);
    body();
    end_graph();
    recording_ = nullptr;
    recording_number_ = kNotRecorded;
    QUIRE_RETURN_IF_ERROR(capture_status_);
    return std::unique_ptr<OpRecording>(std::move(recording));
  }
  void replay(const OpRecording& recording, FunctionRef<void(PagedAttentionArgs& args)> renew) override {
    const auto& recorded = static_cast<const CudaRecording&>(recording);
    for (size_t i = 0; i < recorded.graphs().size(); ++i) {
      check_cuda(cudaGraphLaunch(recorded.graphs()[i], stream_), "cudaGraphLaunch");
      if (i == recorded.attentions().size()) break;
      PagedAttentionArgs args = recorded.attentions()[i];
      renew(args);
      (*this)(args);
    }
    finish();
  }

  void call_on_host(void (*function)(const void*), const void* argument) override {
    // CUDA's own call hands on one pointer, of memory that may be written.
    const HostCall& call = *host_calls_.insert({function, argument}).first;
    const auto run = [](void* opaque) {
      const HostCall& known = *static_cast<const HostCall*>(opaque);
      known.function(known.argument);
    };
    check_cuda(cudaLaunchHostFunc(stream_, run, const_cast<HostCall*>(&call)), "cudaLaunchHostFunc");
    finish();
  }

  double seconds_of(FunctionRef<void()> body) override {
    synchronise();
    for (cudaEvent_t& event : timed_) {
      if (event == nullptr) check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    }
    check_cuda(cudaEventRecord(timed_[0], stream_), "cudaEventRecord");
    body();
    check_cuda(cudaEventRecord(timed_[1], stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(timed_[1]), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, timed_[0], timed_[1]), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

  void on_side_stream(int mark, FunctionRef<void()> body) override {
    QUIRE_CHECK(recording_ == nullptr && !is_on_side_stream_);
    while (marks_.size() <= static_cast<size_t>(mark)) marks_.push_back(make_event());
    check_cuda(cudaEventRecord(called_, stream_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(side_stream_, called_), "cudaStreamWaitEvent");
    is_on_side_stream_ = true;
    body();
    is_on_side_stream_ = false;
    check_cuda(cudaEventRecord(marks_[static_cast<size_t>(mark)], side_stream_), "cudaEventRecord");
  }
  void wait_for(int mark) override {
    QUIRE_CHECK(recording_ == nullptr);
    check_cuda(cudaStreamWaitEvent(stream_, marks_.at(static_cast<size_t>(mark))), "cudaStreamWaitEvent");
  }

  Result<std::unique_ptr<DeviceLink>> link(const LinkGroup& group) override {
    check_cuda(cudaSetDevice(options_.device), "cudaSetDevice");
    return make_nccl_link(load_nccl(options_.nccl_paths), group, stream_, options_.peer_sums);
  }

  void bind_thread() override {
    check_cuda(cudaSetDevice(options_.device), "cudaSetDevice");
    pool_.bind_caller();
  }
  int num_host_threads() const override { return pool_.num_threads(); }
  void host_parallel_for(int64_t num_tasks, FunctionRef<void(int64_t, int)> body) override {
    pool_.parallel_for(num_tasks, body);
  }

 protected:
  void run(const EmbeddingArgs& args) override {
    start(embed, args, args.num_tokens, {args.ids.device, args.table.data, args.out});
  }
  void run(const RmsNormArgs& args) override {
    start(rms_norm, args, args.num_tokens, {args.hidden, args.delta, args.weight, args.out.data});
  }
  void run(const LayerNormArgs& args) override {
    start(layer_norm, args, args.num_tokens, {args.hidden, args.delta, args.weight, args.bias, args.out});
  }
  void run(const AddArgs& args) override { start(add, args, args.num_tokens, {args.hidden, args.delta}); }
  void run(const ScaleArgs& args) override { start(scale, args, args.num_rows, {args.values}); }
  void run(const LinearArgs& args) override {
    if (args.num_rows == 0) return;
    expect_reachable({args.x.data, args.bias, args.out.data});
    products_->multiply(args);
    finish();
  }
  void run(const GatedLinearArgs& args) override {
    const LinearArgs& product = args.product;
    const auto& matrix = static_cast<const CudaMatrix&>(*product.weight);
    const StoredMatrix& weight = matrix.stored();
    if (product.num_rows == 0) return;
    const bool few = products_->takes_few_rows(matrix, product.num_rows) && args.out.dtype == DType::kF32;
    if (!few) return run_in_steps(args);
    expect_reachable({product.x.data, product.bias, args.out.data});
    multiply_few_rows({.weight = weight,
                       .x = product.x.floats(),
                       .x_stride = product.x_stride,
                       .num_rows = product.num_rows,
                       .bias = product.bias,
                       .out = args.out.floats(),
                       .out_stride = weight.rows / 2,
                       .gate = {true, args.function}},
                      stream_);
    finish();
  }
  void run(const RopeArgs& args) override {
    start(rope, args, args.num_tokens * args.rotary_dim, {args.heads, args.positions.device, args.table});
  }
  void run(const KvWriteArgs& args) override {
    start(write_kv, args, args.num_tokens,
          {args.keys, args.values, args.slots.device, args.cache.keys, args.cache.values});
  }
  void run(const PagedAttentionArgs& args) override {
    if (args.num_sequences == 0 || args.query_offsets.host[args.num_sequences] == 0) return;
    expect_reachable({args.queries, args.cache.keys, args.cache.values, args.query_offsets.device,
                      args.context_lengths.device, args.block_tables.device, args.span_places.device, args.sinks,
                      args.out});
    if (recording_ != nullptr && renews_attention_) {
      end_graph();
      recording_->add(args);
      capture_.begin(stream_);
      return;
    }
    const Attended done = attention_ == nullptr || args.both_ways
                              ? Attended::kNothing
                              : attention_->attend(args, recording_number_, scratch_.data(), kScratchBytes);
    if (done != Attended::kAll) {
      attend(args, /*may_round=*/!options_.batch_invariant, scratch_.data(), static_cast<int64_t>(kScratchBytes),
             stream_, /*only_few=*/done == Attended::kPrompts);
    }
    finish();
  }
  void run(const CopyBlocksArgs& args) override {
    if (args.num_copies == 0) return;
    // Copies one by one cost the host some microseconds each; only a file in memory is out of the card's reach.
    const bool reachable = is_reachable(args.source.parts[0]) && is_reachable(args.destination.parts[0]);
    cudaStream_t stream = is_on_side_stream_ ? side_stream_ : stream_;
    if (!reachable || !copy_blocks(args, stream)) {
      const auto bytes = static_cast<size_t>(args.source.bytes);
      for (int64_t i = 0; i < args.num_copies; ++i) {
        for (size_t part = 0; part < static_cast<size_t>(args.source.num_parts()); ++part) {
          copy_block(args.source.parts[part], args.destination.parts[part], args.copies[i], bytes, stream);
        }
      }
    }
    finish_on(stream);
  }
  void run(const ActivationArgs& args) override {
    start(activate, args, args.num_tokens * args.size, {args.in.data, args.out.data});
  }
  void run(const GatherRowsArgs& args) override {
    start(gather_rows, args, args.num_rows * args.size, {args.in, args.rows.device, args.out});
  }
  void run(const CopyHeadsArgs& args) override {
    start(copy_heads, args, args.num_tokens * args.num_heads * args.size, {args.in, args.out});
  }
  void run(const XieluArgs& args) override { start(cuda::xielu, args, args.num_tokens * args.size, {args.values}); }
  void run(const GateArgs& args) override { start(gate, args, args.num_tokens * args.size, {args.gates, args.values}); }
  void run(const ShortConvArgs& args) override {
    start(convolve, args, args.num_tokens, {args.in, args.weight, args.bias, args.out, args.runs.cache.states});
  }
  void run(const RecurrenceArgs& args) override {
    start(apply_recurrence, args, args.num_tokens,
          {args.queries, args.keys, args.values, args.updates, args.decays, args.rates, args.decay_biases, args.skips,
           args.out, args.runs.cache.states});
  }
  void run(const MoeRoutingArgs& args) override {
    expect_reachable({args.logits, args.correction_bias, args.weights, args.rows, args.tokens, args.offsets});
    QUIRE_CHECK(route_scratch_bytes(args.num_tokens, args.num_experts, args.experts_per_token) <=
                static_cast<int64_t>(kScratchBytes));
    route(args, scratch_.data(), stream_);
    finish();
  }
  void run(const GroupedLinearArgs& args) override {
    if (args.num_rows == 0) return;
    expect_reachable({args.x, args.offsets, args.bias, args.out});
    const auto& group = static_cast<const CudaGroup&>(*args.weights);
    const GroupedRowsWork work{.shape = group.shape(),
                               .weights = group.weights(),
                               .num_groups = group.size(),
                               .offsets = args.offsets,
                               .num_rows = args.num_rows,
                               .x = args.x,
                               .x_stride = args.x_stride,
                               .x_group_stride = args.x_group_stride,
                               .bias = group.factors() == nullptr ? args.bias : nullptr,
                               .bias_stride = args.bias_stride,
                               .out = args.out,
                               .out_stride = args.out_stride,
                               .out_group_stride = args.out_group_stride};
    // Rows of a group on the mean, of which its tensor cores' kernels are for some and for many.
    constexpr int64_t kSome = 32;
    const bool many = args.num_rows > kFewRows * int64_t{group.size()};
    const bool some = args.num_rows > kFewRows && args.num_rows <= kSome * int64_t{group.size()};
    if (some && has_grouped_halves(work) && !options_.batch_invariant) {
      multiply_grouped_halves(work, stream_);
    } else if (many && has_tiles(work.shape.dtype) && !options_.batch_invariant) {
      const bool coded = options_.rounds_activations &&
                         multiply_grouped_codes(work, scratch_.data(), static_cast<int64_t>(kScratchBytes), stream_);
      if (!coded) multiply_grouped_tiles(work, scratch_.data(), static_cast<int64_t>(kScratchBytes), stream_);
    } else {
      multiply_grouped_rows(work, stream_);
    }
    if (group.factors() != nullptr) multiply_groups(work, group.factors(), args.bias, stream_);
    finish();
  }
  void run(const AdaptedLinearArgs& args) override { run_in_steps(args); }
  void run(const LowRankArgs& args) override {
    QUIRE_CHECK_MSG(args.runs.empty(), "runs of low-rank adapters, which a card reads from its own memory");
    if (args.num_rows == 0 || args.rows.of_token == nullptr) return;
    expect_reachable({args.x, args.ids.device, args.rows.of_token, args.rows.tokens, args.rows.offsets, args.out});
    add_low_rank(args, options_.batch_invariant, scratch_.data(), static_cast<int64_t>(kScratchBytes), stream_);
    finish();
  }
  void run(const ClampedSwigluArgs& args) override {
    start(cuda::clamped_swiglu, args, args.num_tokens * args.size, {args.in, args.out});
  }
  void run(const MoeCombineArgs& args) override {
    start(combine_experts, args, args.num_tokens * args.size,
          {args.experts, args.rows, args.weights, args.shared, args.shared_gate, args.out});
  }
  void run(const PrepareHeadsArgs& args) override {
    start(prepare_heads, args, args.num_tokens,
          {args.heads, args.query_weight, args.key_weight, args.positions.device, args.table, args.slots.device,
           args.cache.keys, args.cache.values});
  }
  void run(const EditLogitsArgs& args) override {
    if (args.num_rows == 0) return;
    expect_reachable(
        {args.in, args.rows.device, args.edits.device, args.masks.device, args.lists, args.drawn, args.out});
    bool any_mask = false;
    bool any_edit = false;
    for (int64_t t = 0; t < args.num_rows; ++t) {
      any_mask = any_mask || args.rows.host[t].mask >= 0;
      any_edit = any_edit || args.rows.host[t].num_edits > 0 || args.rows.host[t].list >= 0;
    }
    edit_logits(args, any_mask, any_edit, stream_);
    finish();
  }
  void run(const TopLogprobsArgs& args) override {
    start(top_logprobs, args, args.num_rows, {args.in, args.rows.device, args.chosen, args.out});
  }
  void run(const PlaceTokensArgs& args) override {
    start(place_tokens, args, args.num_tokens, {args.tokens, args.sources.device, args.ids});
  }
  void run(const ChooseTokensArgs& args) override {
    expect_reachable({args.in, args.choices.device, args.tokens});
    choose_tokens(args, scratch_.data(), static_cast<int64_t>(kScratchBytes), stream_);
    finish();
  }

 private:
  void leave_untrusted_attention() {
    if (attention_ == nullptr || options_.attention != AttentionBackend::kAuto || !options_.attention_trial) return;
    const Status tried = options_.attention_trial();
    if (tried.ok()) return;
    attention_.reset();
    log_warning(
        "card {}: kernels of attention that are not quire's own have failed their trial ({}) and are left alone; "
        "prompts take longer. --attention-backend flashinfer insists on them, native spares the trial",
        options_.device, tried.message());
  }

  // An op that is one call, unless there is nothing to do.
  template <typename Args>
  void start(void (*op)(const Args&, cudaStream_t), const Args& args, int64_t work,
             std::initializer_list<const void*> pointers) {
    if (work == 0) return;
    expect_reachable(pointers);
    op(args, stream_);
    finish();
  }
  void finish() {
    QUIRE_CHECK_MSG(!is_on_side_stream_, "an op on the side stream that copies no blocks");
    finish_on(stream_);
  }
  void finish_on(cudaStream_t stream) {
    if (options_.synchronous && recording_ == nullptr)
      check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  void end_graph() {
    Result<cudaGraphExec_t> graph = capture_.end(stream_);
    if (graph.ok()) {
      recording_->add(*graph);
    } else if (capture_status_.ok()) {
      capture_status_ = graph.status();
    }
  }

  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }

  void copy(void* to, size_t to_stride, const void* from, size_t from_stride, const CopyShape& shape,
            cudaMemcpyKind kind) {
    if (shape.row_bytes == 0 || shape.num_rows == 0) return;
    // One row has no distance from the next, and CUDA wants none that is too short.
    const bool one = shape.num_rows == 1;
    check_cuda(cudaMemcpy2DAsync(to, one ? shape.row_bytes : to_stride, from, one ? shape.row_bytes : from_stride,
                                 shape.row_bytes, shape.num_rows, kind, stream_),
               "cudaMemcpy2DAsync");
    finish();
  }

  void expect_reachable(std::initializer_list<const void*> pointers) const {
    if (!options_.check_pointers) return;
    for (const void* pointer : pointers) {
      QUIRE_CHECK_MSG(pointer == nullptr || is_reachable(pointer), "an op was given the host's own memory");
    }
  }
  static bool is_reachable(const void* pointer) {
    cudaPointerAttributes attributes = {};
    check_cuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
    return attributes.type != cudaMemoryTypeUnregistered;
  }

  static void copy_block(const void* from, void* to, const BlockCopy& copy, size_t bytes, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(static_cast<uint8_t*>(to) + static_cast<size_t>(copy.destination) * bytes,
                               static_cast<const uint8_t*>(from) + static_cast<size_t>(copy.source) * bytes, bytes,
                               cudaMemcpyDefault, stream),
               "cudaMemcpyAsync");
  }

  // Of call_on_host(). Kept as long as the backend: recordings call them again.
  struct HostCall {
    void (*function)(const void*);
    const void* argument;
    bool operator<(const HostCall& other) const {
      return std::pair(reinterpret_cast<uintptr_t>(function), argument) <
             std::pair(reinterpret_cast<uintptr_t>(other.function), other.argument);
    }
  };

  const CudaBackendOptions options_;
  std::string description_;
  CudaAllocator allocator_;
  PinnedAllocator pinned_;
  ThreadPool pool_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t side_stream_ = nullptr;  // of what runs while stream_ goes on
  cudaEvent_t called_ = nullptr;        // on stream_, what on_side_stream() begins after
  std::vector<cudaEvent_t> marks_;      // on side_stream_
  bool is_on_side_stream_ = false;
  std::unique_ptr<Uploader> uploader_;
  std::mutex side_uploader_mutex_;                     // of the one below
  std::unique_ptr<SideStreamUploader> side_uploader_;  // made when it is first asked for
  std::unique_ptr<Products> products_;
  std::unique_ptr<PromptAttention> attention_;  // nullptr: all is of our own kernels
  Buffer scratch_;
  Buffer library_workspace_;
  CudaRecording* recording_ = nullptr;  // that ops are taken down for
  GraphCapture capture_;
  Status capture_status_;  // of the recording so far
  bool renews_attention_ = false;
  int recording_number_ = kNotRecorded;
  int num_recordings_ = kNotRecorded;
  std::array<cudaEvent_t, kMostDownloads> downloaded_{};
  int next_download_ = 0;
  std::set<HostCall> host_calls_;
  std::array<cudaEvent_t, 2> timed_{};  // of seconds_of(), made when it is first asked
};

}  // namespace
}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

namespace {

Status check_card(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return unavailable("no card can be used: {}. Install NVIDIA's driver, or choose --device cpu",
                       cudaGetErrorString(error));
  }
  if (device < 0 || device >= count) return unavailable("there is no card {}: this machine has {}", device, count);
  return {};
}

}  // namespace

Status try_attention(int device) {
  QUIRE_RETURN_IF_ERROR(check_card(device));
  cudaDeviceProp properties = {};
  cudaStream_t stream = nullptr;
  cuda::check_cuda(cudaSetDevice(device), "cudaSetDevice");
  cuda::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  cuda::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  Status done;
  {
    cuda::CudaAllocator allocator(device);
    QUIRE_ASSIGN_OR_RETURN(
        const auto attention,
        cuda::make_prompt_attention(AttentionBackend::kAuto, {.major = properties.major, .minor = properties.minor},
                                    allocator, stream));
    if (attention != nullptr) done = cuda::compare_with_own(*attention, allocator, stream);
  }
  cudaStreamDestroy(stream);
  return done;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaBackendOptions options) {
  QUIRE_RETURN_IF_ERROR(check_card(options.device));
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  QUIRE_RETURN_IF_ERROR(backend->begin());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace quire::ops
