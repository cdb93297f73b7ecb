#include "ops/cuda/cuda_backend.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "base/thread_pool.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/matrix_product.h"
#include "ops/cuda/prompt_attention.h"
#include "ops/cuda/weights.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::ops {
namespace cuda {

void check_cuda(cudaError_t error, const char* what) {
  QUIRE_CHECK_MSG(error == cudaSuccess, fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

namespace {

// Of the kernels: rounded rows, expanded weights, partial results of attention. Ops take turns on it.
constexpr size_t kScratchBytes = size_t{256} << 20;
constexpr auto kHalfOfScratch = static_cast<int64_t>(kScratchBytes / 2);
// Blocks of few bits are read again for each kFewRows rows until that costs as much as expanding them to F16 once,
// which writes and reads 32 bits a weight: 4 bits are read 8 times for that.
constexpr int64_t kFewRowsOfBlocks = 64;

// CUDA graphs, with calls of attention between them.
class CudaRecording final : public OpRecording {
 public:
  CudaRecording() = default;
  ~CudaRecording() override {
    for (const cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
  }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  void add(cudaGraphExec_t graph) { graphs_.push_back(graph); }  // nullptr: there was no memory for it
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
    attention_.reset();
    for (const cudaEvent_t event : downloaded_) cudaEventDestroy(event);
    for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
    cudaEventDestroy(called_);
    cudaStreamDestroy(side_stream_);
    cudaStreamDestroy(stream_);
  }

  Status begin() {
    cudaDeviceProp properties = {};
    check_cuda(cudaSetDevice(options_.device), "cudaSetDevice");
    check_cuda(cudaGetDeviceProperties(&properties, options_.device), "cudaGetDeviceProperties");
    QUIRE_ASSIGN_OR_RETURN(library_, load_matrix_library());
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
    description_ = fmt::format("cuda:{}, {}, {}, {} host thread{}", options_.device, properties.name,
                               library_->description(), pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s");
    if (attention_ != nullptr) description_ += fmt::format(", attention: {}", name(options_.attention));
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
    return std::unique_ptr<PackedMatrix>(std::move(matrix));
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
    const bool rounds = way_of(matrix, num_rows) == Way::kRounded;
    return rounds ? matrix.stored().dtype : DType::kF32;
  }
  // The head is most of a small model: it is read once for all rows that have room in 256 MiB.
  int64_t logit_rows(int64_t vocab_size) const override {
    constexpr int64_t kBytes = 256 << 20;
    return std::max<int64_t>(64, kBytes / (vocab_size * static_cast<int64_t>(sizeof(float))));
  }
  bool keys_by_token() const override { return true; }
  bool shares_spans() const override { return !options_.batch_invariant; }

  bool can_record() const override { return true; }
  Result<std::unique_ptr<OpRecording>> record(FunctionRef<void()> body, bool renews_attention) override {
    auto recording = std::make_unique<CudaRecording>();
    recording_ = recording.get();
    recording_number_ = ++num_recordings_;
    renews_attention_ = renews_attention;
    begin_graph();
    body();
    end_graph();
    recording_ = nullptr;
    recording_number_ = kNotRecorded;
    if (std::ranges::find(recording->graphs(), nullptr) != recording->graphs().end()) {
      return resource_exhausted("no memory on the card for a graph");
    }
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

  void beside(int mark, FunctionRef<void()> body) override {
    QUIRE_CHECK(recording_ == nullptr && !is_beside_);
    while (marks_.size() <= static_cast<size_t>(mark)) marks_.push_back(make_event());
    check_cuda(cudaEventRecord(called_, stream_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(side_stream_, called_), "cudaStreamWaitEvent");
    is_beside_ = true;
    body();
    is_beside_ = false;
    check_cuda(cudaEventRecord(marks_[static_cast<size_t>(mark)], side_stream_), "cudaEventRecord");
  }
  void wait_for(int mark) override {
    QUIRE_CHECK(recording_ == nullptr);
    check_cuda(cudaStreamWaitEvent(stream_, marks_.at(static_cast<size_t>(mark))), "cudaStreamWaitEvent");
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
    multiply(args);
    finish();
  }
  void run(const GatedLinearArgs& args) override {
    const LinearArgs& product = args.product;
    const auto& matrix = static_cast<const CudaMatrix&>(*product.weight);
    const StoredMatrix& weight = matrix.stored();
    if (product.num_rows == 0) return;
    const bool few = way_of(matrix, product.num_rows) == Way::kFewRows && args.out.dtype == DType::kF32;
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
      begin_graph();
      return;
    }
    const Attended done = attention_ == nullptr
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
    cudaStream_t stream = is_beside_ ? side_stream_ : stream_;
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
                               .bias = args.bias,
                               .bias_stride = args.bias_stride,
                               .out = args.out,
                               .out_stride = args.out_stride,
                               .out_group_stride = args.out_group_stride};
    const bool many = args.num_rows > kFewRows * int64_t{group.size()};
    if (many && has_tiles(work.shape.dtype) && !options_.batch_invariant) {
      multiply_grouped_tiles(work, stream_);
    } else {
      multiply_grouped_rows(work, stream_);
    }
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
    start(choose_tokens, args, args.num_rows, {args.in, args.choices.device, args.tokens});
  }

 private:
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
    QUIRE_CHECK_MSG(!is_beside_, "an op beside others that copies no blocks");
    finish_on(stream_);
  }
  void finish_on(cudaStream_t stream) {
    if (options_.synchronous && recording_ == nullptr)
      check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  void begin_graph() {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  void end_graph() {
    cudaGraph_t calls = nullptr;
    cudaGraphExec_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream_, &calls), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&graph, calls, 0);
    check_cuda(cudaGraphDestroy(calls), "cudaGraphDestroy");
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      graph = nullptr;
    } else {
      check_cuda(error, "cudaGraphInstantiate");
    }
    recording_->add(graph);
  }

  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
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

  // How a product of so many rows is computed.
  enum class Way {
    kFewRows,   // by our own kernel, which reads the weight as it is stored and x as floats
    kFloats,    // by the library: of floats
    kRounded,   //   x rounded to the weight's 16 bits
    kEightBit,  //   x rounded to F8_E4M3, with a scale a row or for every 128 columns of it
    kExpanded,  //   the weight expanded to F16 or floats
  };
  Way way_of(const CudaMatrix& matrix, int64_t num_rows) const {
    if (options_.batch_invariant) return Way::kFewRows;
    const StoredMatrix& weight = matrix.stored();
    const bool has_eight_bits =
        matrix.library_scales() != nullptr && weight.rows % 16 == 0 &&
        weight.columns % (weight.dtype == DType::kF8E4M3_128 ? kScaleColumns : int64_t{16}) == 0;
    if (has_eight_bits && options_.rounds_activations && library_->has_f8())
      return num_rows <= kFewRows ? Way::kFewRows : Way::kEightBit;
    if (info(weight.dtype).block_values > 1 || has_row_scales(weight.dtype))
      return num_rows <= kFewRowsOfBlocks ? Way::kFewRows : Way::kExpanded;
    if (num_rows <= kFewRows) return Way::kFewRows;
    return weight.dtype == DType::kF32 ? Way::kFloats : Way::kRounded;
  }

  void multiply(const LinearArgs& args) {
    const auto& matrix = static_cast<const CudaMatrix&>(*args.weight);
    const StoredMatrix& weight = matrix.stored();
    switch (way_of(matrix, args.num_rows)) {
      case Way::kFewRows:
        return multiply_few_rows({.weight = weight,
                                  .x = args.x.floats(),
                                  .x_stride = args.x_stride,
                                  .num_rows = args.num_rows,
                                  .bias = args.bias,
                                  .out = args.out.floats(),
                                  .out_stride = args.out_stride},
                                 stream_);
      case Way::kFloats:
        return multiply_by_library(args, product_of(weight, args.x.floats(), args.x_stride), 0, args.num_rows);
      case Way::kRounded:
        return multiply_rounded(args, weight);
      case Way::kEightBit:
        return multiply_eight_bit(args, matrix);
      case Way::kExpanded:
        return multiply_expanded(args, weight);
    }
  }

  static MatrixProduct product_of(const StoredMatrix& weight, const void* x, int64_t x_stride) {
    return {.dtype = weight.dtype,
            .x = x,
            .x_stride = x_stride,
            .weight = weight.data,
            .weight_stride = weight.row_bytes / row_bytes(weight.dtype, 1),
            .rows = weight.rows,
            .columns = weight.columns};
  }

  // Rows [first, first + count) of what was asked for.
  void multiply_by_library(const LinearArgs& args, MatrixProduct product, int64_t first, int64_t count) {
    product.num_rows = count;
    product.bias = args.bias;
    product.out = args.out.from(first * args.out_stride);
    product.out_stride = args.out_stride;
    library_->multiply(product, library_workspace_.data(), stream_);
  }

  // x is rounded as the weight is, unless it comes so: as many rows at once as the scratch has room for.
  void multiply_rounded(const LinearArgs& args, const StoredMatrix& weight) {
    if (args.x.dtype == weight.dtype)
      return multiply_by_library(args, product_of(weight, args.x.data, args.x_stride), 0, args.num_rows);
    const int64_t most = static_cast<int64_t>(kScratchBytes) / row_bytes(weight.dtype, weight.columns);
    QUIRE_CHECK(most > 0);
    for (int64_t row = 0; row < args.num_rows; row += most) {
      const int64_t count = std::min(most, args.num_rows - row);
      round_rows(args.x.floats() + row * args.x_stride, args.x_stride, count, weight.columns, weight.dtype,
                 scratch_.data(), stream_);
      multiply_by_library(args, product_of(weight, scratch_.data(), weight.columns), row, count);
    }
  }

  // Codes of as many rows as there is room for and their scales lie in the first half of the scratch. The library adds
  // no floats to products of 8 bits, and those of scaled blocks it makes of whole fours of rows: what is left over is
  // filled up with zeros and comes out in the second half. Few rows do so together: copying them costs less than
  // reading the weight a second time.
  void multiply_eight_bit(const LinearArgs& args, const CudaMatrix& matrix) {
    constexpr int64_t kMostCopied = 512;
    const StoredMatrix& weight = matrix.stored();
    const bool blocks = weight.dtype == DType::kF8E4M3_128;
    const int64_t unit = blocks ? 4 : 1;
    const int64_t most = kHalfOfScratch / quantised_row_bytes(weight.dtype, weight.columns) / unit * unit;
    const int64_t most_copied = std::min(kMostCopied, kHalfOfScratch / row_bytes(DType::kF32, weight.rows));
    QUIRE_CHECK(most > 0 && most_copied >= unit);
    auto* codes = scratch_.as<uint8_t>();
    for (int64_t row = 0, count = 0; row < args.num_rows; row += count) {
      count = std::min(most, args.num_rows - row);
      if (count > most_copied) count -= count % unit;
      const int64_t padded = (count + unit - 1) / unit * unit;
      auto* scales = reinterpret_cast<float*>(codes + padded * weight.columns);
      const Rows x = args.x.from(row * args.x_stride);
      if (blocks) {
        round_blocks_to_f8(x, args.x_stride, count, padded, weight.columns, codes, scales, stream_);
      } else {
        round_rows_to_f8(x, args.x_stride, count, weight.columns, codes, weight.columns, scales, stream_);
      }
      MatrixProduct product = product_of(weight, codes, weight.columns);
      product.x_scales = scales;
      product.weight_scales = matrix.library_scales();
      product.num_rows = padded;
      product.out = args.out.from(row * args.out_stride);
      product.out_stride = args.out_stride;
      float* out = product.out.floats();
      if (padded != count) {
        product.out = reinterpret_cast<float*>(codes + kHalfOfScratch);
        product.out_stride = weight.rows;
      }
      library_->multiply(product, library_workspace_.data(), stream_);
      finish_rows(nullptr, args.bias, count, weight.rows, product.out.floats(), product.out_stride, out,
                  args.out_stride, stream_);
    }
  }

  // In F16, as exact as the tensor cores' way with floats (TF32), twice as fast and half the memory; or in floats.
  void multiply_expanded(const LinearArgs& args, const StoredMatrix& weight) {
    if (!options_.rounds_activations) return multiply_by_expanded(args, weight);
    const int64_t row_size = row_bytes(DType::kF16, weight.columns);
    const int64_t most = kHalfOfScratch / (row_size + static_cast<int64_t>(sizeof(float)));
    QUIRE_CHECK(most > 0);
    for (int64_t row = 0; row < args.num_rows; row += most) {
      LinearArgs some = args;
      some.num_rows = std::min(most, args.num_rows - row);
      some.x = {scratch_.data(), DType::kF16};
      some.x_stride = weight.columns;
      some.bias = nullptr;
      some.out = args.out.from(row * args.out_stride);
      auto* factors = reinterpret_cast<float*>(scratch_.as<uint8_t>() + some.num_rows * row_size);
      round_rows_in_range(args.x.floats() + row * args.x_stride, args.x_stride, some.num_rows, weight.columns,
                          scratch_.data(), factors, stream_);
      multiply_by_expanded(some, weight);
      finish_rows(factors, args.bias, some.num_rows, weight.rows, some.out.floats(), args.out_stride, some.out.floats(),
                  args.out_stride, stream_);
    }
  }

  // The weight in the dtype of x, as many of its rows at once as the second half of the scratch has room for.
  void multiply_by_expanded(const LinearArgs& args, const StoredMatrix& weight) {
    auto* expanded = scratch_.as<uint8_t>() + kHalfOfScratch;
    const int64_t most = kHalfOfScratch / row_bytes(args.x.dtype, weight.columns);
    QUIRE_CHECK(most > 0);
    for (int64_t row = 0; row < weight.rows; row += most) {
      const int64_t count = std::min(most, weight.rows - row);
      expand_rows(weight, row, count, {expanded, args.x.dtype}, stream_);
      library_->multiply({.dtype = args.x.dtype,
                          .x = args.x.data,
                          .x_stride = args.x_stride,
                          .weight = expanded,
                          .weight_stride = weight.columns,
                          .num_rows = args.num_rows,
                          .rows = count,
                          .columns = weight.columns,
                          .bias = args.bias == nullptr ? nullptr : args.bias + row,
                          .out = args.out.from(row),
                          .out_stride = args.out_stride},
                         library_workspace_.data(), stream_);
    }
  }

  const CudaBackendOptions options_;
  std::string description_;
  CudaAllocator allocator_;
  PinnedAllocator pinned_;
  ThreadPool pool_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t side_stream_ = nullptr;  // of what is done beside the other
  cudaEvent_t called_ = nullptr;        // on stream_, what beside() begins after
  std::vector<cudaEvent_t> marks_;      // on side_stream_
  bool is_beside_ = false;
  std::unique_ptr<Uploader> uploader_;
  std::unique_ptr<MatrixLibrary> library_;
  std::unique_ptr<PromptAttention> attention_;  // nullptr: all is of our own kernels
  Buffer scratch_;
  Buffer library_workspace_;
  CudaRecording* recording_ = nullptr;  // that ops are taken down for
  bool renews_attention_ = false;
  int recording_number_ = kNotRecorded;
  int num_recordings_ = kNotRecorded;
  std::array<cudaEvent_t, kMostDownloads> downloaded_{};
  int next_download_ = 0;
};

}  // namespace
}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaBackendOptions options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return unavailable("no card can be used: {}. Install NVIDIA's driver, or choose --device cpu",
                       cudaGetErrorString(error));
  }
  if (options.device < 0 || options.device >= count) {
    return unavailable("there is no card {}: this machine has {}", options.device, count);
  }
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  QUIRE_RETURN_IF_ERROR(backend->begin());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace quire::ops
