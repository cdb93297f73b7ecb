#include "ops/cuda/attention_trial.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/cuda/attention_limits.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

struct Shape {
  DType dtype;
  int32_t head_dim;
  int32_t window;
};
// One of each kernel's, with a window where it makes no more of them.
constexpr Shape kShapes[] = {{DType::kF16, 64, 0},     {DType::kF16, 128, 0},  {DType::kF16, 128, 40},
                             {DType::kF16, 256, 40},   {DType::kBF16, 64, 40}, {DType::kBF16, 128, 0},
                             {DType::kBF16, 128, 40},  {DType::kBF16, 256, 0}, {DType::kF8E4M3, 64, 0},
                             {DType::kF8E4M3, 128, 40}};

// A prompt, a piece of one whose beginning is in the cache, and a sequence that is decoded, which is quire's own.
struct Sequence {
  int32_t queries;
  int32_t context;
};
constexpr Sequence kSequences[] = {{70, 70}, {21, 150}, {1, 40}};
constexpr int32_t kNumSequences = std::size(kSequences);
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeads = 8;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kBlocks = 10;  // of a sequence
constexpr size_t kTrialScratchBytes = size_t{32} << 20;

class TrialBatch {
 public:
  TrialBatch(const Shape& shape, Allocator& memory, cudaStream_t stream)
      : shape_(shape), memory_(memory), stream_(stream) {
    std::vector<int64_t> slots;
    offsets_ = {0};
    for (int32_t s = 0; s < kNumSequences; ++s) {
      offsets_.push_back(offsets_.back() + kSequences[s].queries);
      lengths_.push_back(kSequences[s].context);
      // Blocks of a sequence do not follow each other.
      for (int32_t b = 0; b < kBlocks; ++b) tables_.push_back((kBlocks - 1 - b) * kNumSequences + s);
      for (int32_t p = 0; p < kSequences[s].context; ++p)
        slots.push_back(int64_t{tables_[static_cast<size_t>(s * kBlocks + p / kBlockSize)]} * kBlockSize +
                        p % kBlockSize);
    }
    cache_ = {.dtype = shape.dtype,
              .num_blocks = kBlocks * kNumSequences,
              .num_kv_heads = kKvHeads,
              .head_dim = shape.head_dim,
              .block_size = kBlockSize,
              .keys_by_token = true};
    const auto bytes = static_cast<size_t>(cache_.num_blocks * block_bytes(cache_));
    cache_.keys = take(bytes);
    cache_.values = take(bytes);
    scratch_ = take(kTrialScratchBytes);
    out_ = static_cast<float*>(take(out_numbers() * sizeof(float)));
    if (!has_memory_) return;
    const int64_t token = int64_t{kKvHeads} * shape.head_dim;
    const float* kv = on_card(numbers(slots.size() * 2 * static_cast<size_t>(token)));
    const int64_t* card_slots = on_card(slots);
    queries_ = on_card(numbers(out_numbers()));
    card_offsets_ = on_card(offsets_);
    card_lengths_ = on_card(lengths_);
    card_tables_ = on_card(tables_);
    if (!has_memory_) return;
    write_kv({.keys = kv,
              .values = kv + token,
              .token_stride = 2 * token,
              .num_tokens = std::ssize(slots),
              .slots = {slots.data(), card_slots},
              .cache = cache_},
             stream_);
  }

  bool has_memory() const { return has_memory_; }

  // What compute(args, scratch) writes; NaN where it writes nothing.
  template <typename Compute>
  std::vector<float> answers(const Compute& compute) {
    std::vector<float> out(out_numbers());
    const size_t bytes = out.size() * sizeof(float);
    check_cuda(cudaMemsetAsync(out_, 0xff, bytes, stream_), "cudaMemsetAsync");
    PagedAttentionArgs args;
    args.queries = queries_;
    args.query_stride = int64_t{kHeads} * shape_.head_dim;
    args.num_heads = kHeads;
    args.cache = cache_;
    args.num_sequences = kNumSequences;
    args.query_offsets = {offsets_.data(), card_offsets_};
    args.context_lengths = {lengths_.data(), card_lengths_};
    args.block_tables = {tables_.data(), card_tables_};
    args.block_table_stride = kBlocks;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window = shape_.window;
    args.out = out_;
    compute(args, scratch_);
    check_cuda(cudaMemcpyAsync(out.data(), out_, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return out;
  }

 private:
  size_t out_numbers() const {
    return static_cast<size_t>(offsets_.back()) * kHeads * static_cast<size_t>(shape_.head_dim);
  }

  void* take(size_t bytes) {
    owned_.emplace_back(memory_, bytes);
    has_memory_ = has_memory_ && owned_.back().data() != nullptr;
    return owned_.back().data();
  }
  template <typename T>
  const T* on_card(const std::vector<T>& values) {
    auto* to = static_cast<T*>(take(values.size() * sizeof(T)));
    if (to == nullptr) return nullptr;
    check_cuda(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return to;
  }
  // Between -2 and 2: scores that differ enough for the weights of a softmax to.
  std::vector<float> numbers(size_t count) {
    std::vector<float> all(count);
    for (float& value : all) value = static_cast<float>(random_() % 4096) / 1024.0f - 2.0f;
    return all;
  }

  const Shape shape_;
  Allocator& memory_;
  const cudaStream_t stream_;
  std::minstd_rand random_{17};
  std::vector<Buffer> owned_;
  bool has_memory_ = true;
  KvCacheView cache_;
  std::vector<int32_t> offsets_;
  std::vector<int32_t> lengths_;
  std::vector<BlockId> tables_;
  const int32_t* card_offsets_ = nullptr;
  const int32_t* card_lengths_ = nullptr;
  const BlockId* card_tables_ = nullptr;
  const float* queries_ = nullptr;
  float* out_ = nullptr;
  void* scratch_ = nullptr;
};

// The largest difference of the sequences that were computed; answers are below 2.
float distance(const Shape& shape, Attended done, const std::vector<float>& theirs, const std::vector<float>& own) {
  const size_t row = static_cast<size_t>(kHeads) * static_cast<size_t>(shape.head_dim);
  float most = 0;
  size_t at = 0;
  for (const Sequence& sequence : kSequences) {
    const size_t end = at + static_cast<size_t>(sequence.queries) * row;
    const bool computed = done == Attended::kAll || sequence.queries > kFewQueries;
    for (; at < end; ++at) {
      const float difference = std::fabs(theirs[at] - own[at]);
      if (computed && !(difference <= most))
        most = std::isnan(difference) ? std::numeric_limits<float>::infinity() : difference;
    }
  }
  return most;
}

}  // namespace

Status compare_with_own(PromptAttention& attention, Allocator& memory, cudaStream_t stream) {
  // Queries and weights of attention are rounded to 16 bits on the way, of BF16 to 8 bits of fraction.
  constexpr float kMost = 2e-2f;
  constexpr float kMostOfBf16 = 6e-2f;
  for (const Shape& shape : kShapes) {
    TrialBatch batch(shape, memory, stream);
    if (!batch.has_memory()) return resource_exhausted("no memory on the card for a trial of attention");
    Attended done = Attended::kNothing;
    const std::vector<float> theirs = batch.answers([&](const PagedAttentionArgs& args, void* scratch) {
      done = attention.attend(args, kNotRecorded, scratch, kTrialScratchBytes);
    });
    if (done == Attended::kNothing) continue;
    const std::vector<float> own = batch.answers([&](const PagedAttentionArgs& args, void* scratch) {
      attend(args, /*may_round=*/false, scratch, static_cast<int64_t>(kTrialScratchBytes), stream);
    });
    const float most = distance(shape, done, theirs, own);
    if (!(most <= (shape.dtype == DType::kBF16 ? kMostOfBf16 : kMost))) {
      return internal_error("attention of prompts in a cache of {}, heads of {}, window {}: {} off quire's own kernel",
                            name(shape.dtype), shape.head_dim, shape.window, most);
    }
  }
  return {};
}

}  // namespace quire::ops::cuda
