#include "ops/cuda/flashinfer/flashinfer_attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "ops/cuda/attention_limits.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/flashinfer/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

enum class Kind { kFa2, kFa3 };

constexpr size_t kAlignment = 256;
constexpr size_t round_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool is_prompt(const PagedAttentionArgs& args, int32_t s) {
  return args.query_offsets.host[s + 1] - args.query_offsets.host[s] > kFewQueries;
}

bool any_prompt(const PagedAttentionArgs& args) {
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    if (is_prompt(args, s)) return true;
  }
  return false;
}

// What a plan was made of. Layers of one shape ask for the same in a step, and it costs much less to see that than to
// plan again.
struct PlanKey {
  Kind kind = Kind::kFa2;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;
  int32_t window = 0;
  std::vector<int32_t> query_offsets;    // of all sequences
  std::vector<int32_t> context_lengths;  // of all sequences
  std::vector<int32_t> pages;            // of the prompts

  bool is_of(Kind wanted, const PagedAttentionArgs& args) const {
    const auto same = [](const std::vector<int32_t>& kept, const int32_t* given, int64_t count) {
      return std::ssize(kept) == count && std::equal(kept.begin(), kept.end(), given);
    };
    if (kind != wanted || num_heads != args.num_heads || num_kv_heads != args.cache.num_kv_heads ||
        head_dim != args.cache.head_dim || page_size != args.cache.block_size || window != args.window ||
        !same(query_offsets, args.query_offsets.host, int64_t{args.num_sequences} + 1) ||
        !same(context_lengths, args.context_lengths.host, args.num_sequences)) {
      return false;
    }
    const int32_t* kept = pages.data();
    for (int32_t s = 0; s < args.num_sequences; ++s) {
      if (!is_prompt(args, s)) continue;
      const int64_t count = num_pages(args, s);
      if (!std::equal(kept, kept + count, table(args, s))) return false;
      kept += count;
    }
    return true;
  }
  void become(Kind wanted, const PagedAttentionArgs& args) {
    kind = wanted;
    num_heads = args.num_heads;
    num_kv_heads = args.cache.num_kv_heads;
    head_dim = args.cache.head_dim;
    page_size = args.cache.block_size;
    window = args.window;
    query_offsets.assign(args.query_offsets.host, args.query_offsets.host + args.num_sequences + 1);
    context_lengths.assign(args.context_lengths.host, args.context_lengths.host + args.num_sequences);
    pages.clear();
    for (int32_t s = 0; s < args.num_sequences; ++s) {
      if (is_prompt(args, s)) pages.insert(pages.end(), table(args, s), table(args, s) + num_pages(args, s));
    }
  }

  static int64_t num_pages(const PagedAttentionArgs& args, int32_t s) {
    return ceil_div(args.context_lengths.host[s], args.cache.block_size);
  }
  static const BlockId* table(const PagedAttentionArgs& args, int32_t s) {
    return args.block_tables.host + s * args.block_table_stride;
  }
};

// The prompts of a batch, one behind the other.
struct PromptNumbers {
  std::vector<int32_t> query_offsets = {0};
  std::vector<int32_t> page_offsets = {0};
  std::vector<int32_t> context_lengths;
  std::vector<int32_t> last_page_lengths;
  std::vector<int32_t> tokens;  // of the batch, for each of theirs
};

PromptNumbers numbers_of(const PagedAttentionArgs& args) {
  PromptNumbers numbers;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    if (!is_prompt(args, s)) continue;
    for (int32_t token = args.query_offsets.host[s]; token < args.query_offsets.host[s + 1]; ++token)
      numbers.tokens.push_back(token);
    const int32_t context = args.context_lengths.host[s];
    const auto pages = static_cast<int32_t>(PlanKey::num_pages(args, s));
    numbers.query_offsets.push_back(static_cast<int32_t>(numbers.tokens.size()));
    numbers.page_offsets.push_back(numbers.page_offsets.back() + pages);
    numbers.context_lengths.push_back(context);
    numbers.last_page_lengths.push_back(context - (pages - 1) * args.cache.block_size);
  }
  return numbers;
}

// The prompts' pages one behind the other. Where a window has left pages behind there are none in the table; FA3 reads
// keys of a tile before the window and values of the very first, weighs them with 0, and gets the first page that there
// is to do so, for 0 times what is no number is none. False: the last page alone is there, whose end holds no numbers.
bool fill_gaps(const PromptNumbers& numbers, std::vector<int32_t>& pages) {
  bool filled = true;
  for (size_t s = 0; s < numbers.context_lengths.size(); ++s) {
    const auto begin = pages.begin() + numbers.page_offsets[s];
    const auto end = pages.begin() + numbers.page_offsets[s + 1];
    const auto there = std::find_if(begin, end, [](int32_t page) { return page >= 0; });
    if (there == begin) continue;
    QUIRE_CHECK(there != end);
    std::fill(begin, there, *there);
    filled = filled && there + 1 != end;
  }
  return filled;
}

// A plan, and its numbers where the card reads them.
struct Plan {
  PlanKey key;
  bool usable = false;    // false: FlashInfer would take other kernels for this batch, or there was no memory
  bool together = false;  // the prompts' tokens are one run of the batch's
  int32_t num_sequences = 0;
  int64_t num_tokens = 0;
  int32_t first_token = 0;
  PlanBytes bytes;
  PlanNumbers numbers;
  // Within `integers`.
  int32_t* query_offsets = nullptr;
  int32_t* page_offsets = nullptr;
  int32_t* last_page_lengths = nullptr;
  int32_t* pages = nullptr;
  int32_t* tokens = nullptr;
  void* planned = nullptr;

  Buffer integers;
  Buffer pinned;
  cudaEvent_t copied = nullptr;  // from pinned to integers
};

class FlashInferAttention final : public PromptAttention {
 public:
  FlashInferAttention(AttentionBackend asked, bool has_hopper, Allocator& memory, cudaStream_t stream)
      : asked_(asked), has_hopper_(has_hopper), memory_(memory), stream_(stream) {
    for (Plan& plan : plans_) check_cuda(cudaEventCreateWithFlags(&plan.copied, cudaEventDisableTiming), "an event");
  }
  ~FlashInferAttention() override {
    for (const Plan& plan : plans_) cudaEventDestroy(plan.copied);
  }
  FlashInferAttention(const FlashInferAttention&) = delete;
  FlashInferAttention& operator=(const FlashInferAttention&) = delete;

  bool attend(const PagedAttentionArgs& args, void* scratch, size_t scratch_bytes) override {
    if (!any_prompt(args)) return false;
    const Choice choice = choose(args);
    if (choice.launch == nullptr) {
      tell(args);
      return false;
    }
    const Plan& plan = plan_of(choice.kind, args);
    if (!plan.usable) return false;
    const KvCacheView& cache = args.cache;
    const int64_t row = int64_t{args.num_heads} * cache.head_dim;
    const Room room = room_of(plan, choice.kind, row);
    if (room.queries + room.out + plan.bytes.workspace > scratch_bytes) return false;
    auto* queries = static_cast<uint8_t*>(scratch);
    float* place = args.out + plan.first_token * row;
    void* out = room.out > 0 ? queries + room.queries : static_cast<void*>(place);
    gather_rounded(args.queries, args.query_stride, plan.tokens, plan.num_tokens, row, cache.dtype, queries, stream_);
    choice.launch({.plan = &plan.numbers,
                   .plan_integers = plan.planned,
                   .workspace = queries + room.queries + room.out,
                   .queries = queries,
                   .keys = cache.keys,
                   .values = cache.values,
                   .out = out,
                   .query_offsets = plan.query_offsets,
                   .page_offsets = plan.page_offsets,
                   .pages = plan.pages,
                   .last_page_lengths = plan.last_page_lengths,
                   .num_sequences = plan.num_sequences,
                   .num_tokens = plan.num_tokens,
                   .num_heads = args.num_heads,
                   .num_kv_heads = cache.num_kv_heads,
                   .page_size = cache.block_size,
                   .window = args.window,
                   .scale = args.scale},
                  stream_);
    if (room.out > 0) {
      const DType dtype = choice.kind == Kind::kFa3 ? cache.dtype : DType::kF32;
      scatter_floats(out, dtype, plan.tokens, plan.num_tokens, row, args.out, stream_);
    }
    return true;
  }

 private:
  // Layers of one model have two shapes at most, with a window and without.
  static constexpr size_t kPlans = 4;
  static constexpr size_t kFirstBytes = size_t{256} << 10;

  struct Choice {
    Kind kind = Kind::kFa2;
    LaunchPrompts launch = nullptr;
  };
  // What kernels there are, from the fastest on. Neither has sinks, values that are keys or a soft cap, nor numbers of
  // 8 bits or floats; nullptr where that is asked for.
  Choice choose(const PagedAttentionArgs& args) const {
    const KvCacheView& cache = args.cache;
    const auto is_aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
    if (args.sinks != nullptr || cache.values_are_keys || args.soft_cap > 0 || !cache.keys_by_token ||
        !is_aligned(cache.keys) || !is_aligned(cache.values)) {
      return {};
    }
    const bool may_fa2 = asked_ != AttentionBackend::kFa3;
    const bool may_fa3 = asked_ != AttentionBackend::kFlashInfer && has_hopper_;
    Choice choice;
    if (may_fa3) choice = {Kind::kFa3, fa3_kernel(cache.dtype, cache.head_dim)};
    if (may_fa2 && choice.launch == nullptr) choice = {Kind::kFa2, fa2_kernel(cache.dtype, cache.head_dim)};
    return choice;
  }

  // Once: a user who asked for these kernels is to know that a layer has others.
  void tell(const PagedAttentionArgs& args) {
    if (told_) return;
    told_ = true;
    log_warning(
        "attention_backend \"{}\" has no kernel for a layer with heads of {}, a cache of {}{}{}: quire's own is used",
        name(asked_), args.cache.head_dim, quire::name(args.cache.dtype), args.sinks != nullptr ? ", sinks" : "",
        args.soft_cap > 0 ? ", a soft cap" : "");
  }

  // Pieces of the scratch: rounded queries, then answers that do not go to their place at once, then the workspace.
  struct Room {
    size_t queries = 0;
    size_t out = 0;
  };
  static Room room_of(const Plan& plan, Kind kind, int64_t row) {
    const auto numbers = static_cast<size_t>(plan.num_tokens * row);
    if (kind == Kind::kFa3) return {round_up(numbers * 2), round_up(numbers * 2)};
    return {round_up(numbers * 2), plan.together ? 0 : round_up(numbers * sizeof(float))};
  }

  const Plan& plan_of(Kind kind, const PagedAttentionArgs& args) {
    for (Plan& plan : plans_) {
      if (plan.key.is_of(kind, args)) return plan;
    }
    Plan& plan = plans_[next_];
    next_ = (next_ + 1) % kPlans;
    plan.key.become(kind, args);
    make(plan, kind, args);
    return plan;
  }

  void make(Plan& plan, Kind kind, const PagedAttentionArgs& args) {
    const PromptNumbers numbers = numbers_of(args);
    plan.usable = false;
    plan.num_sequences = static_cast<int32_t>(numbers.context_lengths.size());
    plan.num_tokens = std::ssize(numbers.tokens);
    plan.first_token = numbers.tokens.front();
    plan.together = numbers.tokens.back() - numbers.tokens.front() + 1 == plan.num_tokens;
    const Prompts prompts = {.query_offsets = numbers.query_offsets.data(),
                             .page_offsets = numbers.page_offsets.data(),
                             .context_lengths = numbers.context_lengths.data(),
                             .num_sequences = plan.num_sequences,
                             .num_heads = args.num_heads,
                             .num_kv_heads = args.cache.num_kv_heads,
                             .head_dim = args.cache.head_dim,
                             .page_size = args.cache.block_size,
                             .window = args.window};
    if (kind == Kind::kFa2 ? !has_fa2_tile(prompts) : !has_fa3_schedule(prompts)) return;
    plan.bytes = kind == Kind::kFa2 ? fa2_plan_bytes(prompts) : fa3_plan_bytes(prompts);
    std::vector<int32_t> pages = plan.key.pages;
    if (!fill_gaps(numbers, pages) && kind == Kind::kFa3) return;
    const std::array<const std::vector<int32_t>*, 5> parts = {&numbers.query_offsets, &numbers.page_offsets,
                                                              &numbers.last_page_lengths, &pages, &numbers.tokens};
    const std::array<int32_t**, 5> places = {&plan.query_offsets, &plan.page_offsets, &plan.last_page_lengths,
                                             &plan.pages, &plan.tokens};
    size_t own = 0;
    for (const auto* part : parts) own += round_up(part->size() * sizeof(int32_t));
    if (!reserve(plan, own + plan.bytes.integers)) return;
    // A copy out of it may be under way.
    check_cuda(cudaEventSynchronize(plan.copied), "cudaEventSynchronize");
    size_t at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      *places[i] = reinterpret_cast<int32_t*>(plan.integers.as<uint8_t>() + at);
      std::memcpy(plan.pinned.as<uint8_t>() + at, parts[i]->data(), parts[i]->size() * sizeof(int32_t));
      at += round_up(parts[i]->size() * sizeof(int32_t));
    }
    check_cuda(cudaMemcpyAsync(plan.integers.data(), plan.pinned.data(), own, cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync");
    plan.planned = plan.integers.as<uint8_t>() + own;
    void* pinned = plan.pinned.as<uint8_t>() + own;
    plan.numbers = kind == Kind::kFa2 ? plan_fa2(prompts, plan.bytes, plan.planned, pinned, stream_)
                                      : plan_fa3(prompts, plan.bytes, plan.planned, pinned, stream_);
    check_cuda(cudaEventRecord(plan.copied, stream_), "cudaEventRecord");
    plan.usable = true;
  }

  // False when there is no memory.
  bool reserve(Plan& plan, size_t bytes) {
    if (plan.integers.bytes() >= bytes && plan.integers.data() != nullptr && plan.pinned.data() != nullptr) return true;
    // Kernels that read it may be under way.
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const size_t wanted = std::max(kFirstBytes, bytes + bytes / 2);
    plan.integers = Buffer();
    plan.integers = Buffer(memory_, wanted);
    plan.pinned = Buffer();
    plan.pinned = Buffer(pinned_memory_, wanted);
    return plan.integers.data() != nullptr && plan.pinned.data() != nullptr;
  }

  const AttentionBackend asked_;
  const bool has_hopper_;
  Allocator& memory_;
  const cudaStream_t stream_;
  PinnedAllocator pinned_memory_;
  std::array<Plan, kPlans> plans_;
  size_t next_ = 0;
  bool told_ = false;
};

}  // namespace

Result<std::unique_ptr<PromptAttention>> make_flashinfer_attention(AttentionBackend asked, const AttentionCard& card,
                                                                   Allocator& memory, cudaStream_t stream) {
  const bool has_hopper = card.major == 9 && card.minor == 0 && has_fa3();
  if (card.batch_invariant) return std::unique_ptr<PromptAttention>();
  if (asked == AttentionBackend::kFa3 && !has_fa3()) {
    return unavailable(
        "attention_backend \"fa3\": this quire was built without its kernels. Build it with "
        "QUIRE_CUDA_ARCHITECTURES that have 90a-real, or choose flashinfer or native");
  }
  if (asked == AttentionBackend::kFa3 && !has_hopper) {
    return invalid_argument(
        "attention_backend \"fa3\" is for Hopper, compute capability 9.0; the card has {}.{}: choose flashinfer or "
        "native",
        card.major, card.minor);
  }
  if (card.major < 8) {
    if (asked == AttentionBackend::kAuto) return std::unique_ptr<PromptAttention>();
    return invalid_argument(
        "attention_backend \"{}\" needs compute capability 8.0 or more; the card has {}.{}: choose native", name(asked),
        card.major, card.minor);
  }
  return std::unique_ptr<PromptAttention>(std::make_unique<FlashInferAttention>(asked, has_hopper, memory, stream));
}

}  // namespace quire::ops::cuda
