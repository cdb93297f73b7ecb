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

int32_t num_queries(const PagedAttentionArgs& args, int32_t s) {
  return args.query_offsets.host[s + 1] - args.query_offsets.host[s];
}

// FA2 takes the others as short runs.
bool is_prompt(Kind kind, const PagedAttentionArgs& args, int32_t s) {
  const int32_t queries = num_queries(args, s);
  if (kind == Kind::kFa3) return queries > kFewQueries;
  const KvCacheView& cache = args.cache;
  return queries > 0 && !is_short(queries, args.num_heads / cache.num_kv_heads, most_short_rows(cache.head_dim));
}

// Whether a kind's prompts are those sequences that quire's own kernel of few queries leaves out.
bool leaves_the_few(Kind kind, const PagedAttentionArgs& args) {
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    if (is_prompt(kind, args, s) != (num_queries(args, s) > kFewQueries)) return false;
  }
  return true;
}

bool any_prompt(Kind kind, const PagedAttentionArgs& args) {
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    if (is_prompt(kind, args, s)) return true;
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
      if (!is_prompt(kind, args, s)) continue;
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
      if (is_prompt(kind, args, s)) pages.insert(pages.end(), table(args, s), table(args, s) + num_pages(args, s));
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

PromptNumbers numbers_of(Kind kind, const PagedAttentionArgs& args) {
  PromptNumbers numbers;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    if (!is_prompt(kind, args, s)) continue;
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
// is to do so, for 0 times NaN is NaN. False: the last page alone is there, whose end holds no NaNs.
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

CardBatch card_batch(const PagedAttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  const int32_t* contexts = args.context_lengths.host;
  return {.query_offsets = args.query_offsets,
          .context_lengths = args.context_lengths,
          .num_sequences = args.num_sequences,
          .table_stride = static_cast<int32_t>(args.block_table_stride),
          .page_size = cache.block_size,
          .num_kv_heads = cache.num_kv_heads,
          .group = args.num_heads / cache.num_kv_heads,
          .most_rows = most_short_rows(cache.head_dim),
          .window = args.window,
          .longest_context = *std::max_element(contexts, contexts + args.num_sequences)};
}

// Plans that are made where the card reads them. What is recorded has places of its own: it plans anew whenever it is
// replayed.
template <typename Size, typename Numbers>
class CardPlans {
 public:
  struct Plan {
    int recording = -1;
    CardBatch made_of;  // but for its pointers
    std::vector<int32_t> query_offsets;
    std::vector<int32_t> context_lengths;
    Size size;
    Numbers numbers;
    bool usable = false;  // false: there is no room
  };

  // recording: as PromptAttention::attend() is given it.
  const Plan& plan_of(const CardBatch& batch, int recording, Size (*size_of)(const CardBatch&), Allocator& memory,
                      cudaStream_t stream) {
    const bool recorded = recording != kNotRecorded;
    const size_t first = recorded ? kPlans : 0;
    for (size_t i = first; i < first + kPlans; ++i) {
      if (is_of(plans_[i], batch, recording)) return plans_[i];
    }
    size_t& next = recorded ? next_recorded_ : next_;
    const size_t place = first + next;
    next = (next + 1) % kPlans;
    Plan& plan = plans_[place];
    plan.recording = recording;
    plan.made_of = batch;
    plan.query_offsets.assign(batch.query_offsets.host, batch.query_offsets.host + batch.num_sequences + 1);
    plan.context_lengths.assign(batch.context_lengths.host, batch.context_lengths.host + batch.num_sequences);
    plan.size = size_of(batch);
    if (memory_.data() == nullptr && !recorded) memory_ = Buffer(memory, 2 * kPlans * kPlanBytes);
    const size_t bytes = lay_out(plan.size, memory_.as<uint8_t>() + place * kPlanBytes, plan.numbers);
    // The kernels number positions of all tables in 31 bits.
    const int64_t positions = int64_t{batch.num_sequences} * batch.table_stride * batch.page_size;
    plan.usable = memory_.data() != nullptr && bytes <= kPlanBytes && positions < int64_t{1} << 31;
    if (plan.usable && plan.size.num_runs > 0) plan_on_card(batch, plan.size, plan.numbers, stream);
    return plan;
  }

 private:
  // Layers of one model have two kinds at most, with a window and without.
  static constexpr size_t kPlans = 4;
  static constexpr size_t kPlanBytes = size_t{1} << 20;

  static bool is_of(const Plan& plan, const CardBatch& batch, int recording) {
    const CardBatch& of = plan.made_of;
    return plan.recording == recording && of.num_sequences == batch.num_sequences &&
           of.table_stride == batch.table_stride && of.page_size == batch.page_size &&
           of.num_kv_heads == batch.num_kv_heads && of.group == batch.group && of.most_rows == batch.most_rows &&
           of.window == batch.window &&
           std::equal(plan.query_offsets.begin(), plan.query_offsets.end(), batch.query_offsets.host) &&
           std::equal(plan.context_lengths.begin(), plan.context_lengths.end(), batch.context_lengths.host);
  }

  Buffer memory_;
  std::array<Plan, 2 * kPlans> plans_;
  size_t next_ = 0;
  size_t next_recorded_ = 0;
};
using ShortRunsPlans = CardPlans<ShortSize, ShortPlan>;
using LatentPlans = CardPlans<LatentSize, LatentPlan>;

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

  Attended attend(const PagedAttentionArgs& args, int recording, void* scratch, size_t scratch_bytes) override {
    if (args.cache.values_are_keys) {
      if (is_auto()) return Attended::kNothing;
      return attend_latent(args, recording, scratch, scratch_bytes) ? Attended::kAll : Attended::kNothing;
    }
    const Choice choice = choose(args);
    const bool prompts = any_prompt(choice.kind, args);
    const bool prompts_alone = is_auto() || choice.kind == Kind::kFa3;
    if (!prompts && prompts_alone) return Attended::kNothing;
    if (choice.launch == nullptr) {
      if (!is_auto()) tell(args);
      return Attended::kNothing;
    }
    if (is_auto() && !leaves_the_few(choice.kind, args)) return Attended::kNothing;
    // Plans of prompts are the host's.
    if (prompts && recording != kNotRecorded) return Attended::kNothing;
    const Plan* plan = prompts ? &plan_of(choice.kind, args) : nullptr;
    if (prompts && (!plan->usable || bytes_of(room_of(*plan, choice.kind, args)) > scratch_bytes)) {
      tell_of_room(plan->num_tokens);
      return Attended::kNothing;
    }
    if (!prompts_alone) {
      const ShortRunsPlans::Plan& runs =
          short_plans_.plan_of(card_batch(args), recording, size_of_short_runs, memory_, stream_);
      if (!runs.usable || bytes_of(room_of(runs, args)) > scratch_bytes) return Attended::kNothing;
      if (runs.size.num_runs > 0) attend_short_runs(args, choice, runs, scratch);
    }
    if (prompts) attend_prompts(args, choice, *plan, scratch);
    return prompts_alone ? Attended::kPrompts : Attended::kAll;
  }

 private:
  // Layers of one model have two shapes at most, with a window and without.
  static constexpr size_t kPlans = 4;
  static constexpr size_t kFirstBytes = size_t{256} << 10;

  // Nobody asked for these kernels by name: they take prompts, where there are some for them; what is decoded is
  // quire's own kernel's, which reads shared prefixes once.
  bool is_auto() const { return asked_ == AttentionBackend::kAuto; }
  bool may_fa3() const { return asked_ != AttentionBackend::kFlashInfer && has_hopper_; }
  static bool is_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }
  static bool is_aligned(const KvCacheView& cache) {
    return is_aligned(cache.keys) && is_aligned(cache.values) && block_stride(cache) % 16 == 0;
  }
  // Numbers from a block to the next.
  static int64_t page_stride(const KvCacheView& cache) { return block_stride(cache) / row_bytes(cache.dtype, 1); }

  struct Choice {
    Kind kind = Kind::kFa2;
    LaunchAttention launch = nullptr;
  };
  // What kernels there are, from the fastest on; nullptr where what is asked for none has.
  Choice choose(const PagedAttentionArgs& args) const {
    const KvCacheView& cache = args.cache;
    const bool may_fa2 = asked_ != AttentionBackend::kFa3;
    const bool has_soft_cap = args.soft_cap > 0;
    Choice choice{may_fa2 ? Kind::kFa2 : Kind::kFa3, nullptr};
    if (args.sinks != nullptr || !cache.keys_by_token || !is_aligned(cache)) return choice;
    if (may_fa3() && !has_soft_cap) choice = {Kind::kFa3, fa3_kernel(cache.dtype, cache.head_dim)};
    if (may_fa2 && choice.launch == nullptr)
      choice = {Kind::kFa2, fa2_kernel(cache.dtype, cache.head_dim, has_soft_cap)};
    return choice;
  }

  // Once: a user who asked for these kernels is to know that a layer has others.
  void tell(const PagedAttentionArgs& args) {
    if (told_) return;
    told_ = true;
    log_warning(
        "attention_backend \"{}\" has no kernel for a layer with heads of {}, a cache of {}{}{}{}: quire's own is used",
        name(asked_), args.cache.head_dim, quire::name(args.cache.dtype), args.sinks != nullptr ? ", sinks" : "",
        args.soft_cap > 0 ? ", a soft cap" : "", args.cache.values_are_keys ? ", values that are keys" : "");
  }

  void tell_of_room(int64_t num_tokens) {
    if (told_of_room_) return;
    told_of_room_ = true;
    log_info(
        "attention of {} tokens of prompts in a step has no plan or no room in the scratch for FlashInfer's kernels: "
        "quire's own are used, which are slower; a smaller --max-num-batched-tokens avoids that",
        num_tokens);
  }

  // Pieces of the scratch: rounded queries, then answers that do not go to their place at once, then the workspace.
  struct Room {
    size_t queries = 0;
    size_t out = 0;
    size_t workspace = 0;
  };
  static size_t bytes_of(const Room& room) { return room.queries + room.out + room.workspace; }
  static int64_t row_of(const PagedAttentionArgs& args) { return int64_t{args.num_heads} * args.cache.head_dim; }
  static Room room_of(const Plan& plan, Kind kind, const PagedAttentionArgs& args) {
    const auto numbers = static_cast<size_t>(plan.num_tokens * row_of(args));
    const size_t out = kind == Kind::kFa3 ? numbers * 2 : plan.together ? 0 : numbers * sizeof(float);
    return {round_up(numbers * 2), round_up(out), plan.bytes.workspace};
  }
  static Room room_of(const ShortRunsPlans::Plan& plan, const PagedAttentionArgs& args) {
    const auto numbers = static_cast<size_t>(plan.size.num_tokens * row_of(args));
    const auto parts = static_cast<size_t>(plan.size.num_parts * (row_of(args) + args.num_heads));
    return {round_up(numbers * 2), round_up(plan.size.together ? 0 : numbers * sizeof(float)), parts * sizeof(float)};
  }

  // A launch of what both kinds of plans tell of.
  template <typename Numbers>
  static AttentionLaunch launch_of(const PagedAttentionArgs& args, const Numbers& numbers, const Room& room,
                                   void* scratch, int32_t first_token) {
    auto* queries = static_cast<uint8_t*>(scratch);
    return {.workspace = queries + room.queries + room.out,
            .queries = queries,
            .keys = args.cache.keys,
            .values = args.cache.values,
            .out = room.out > 0 ? queries + room.queries : static_cast<void*>(args.out + first_token * row_of(args)),
            .query_offsets = numbers.query_offsets,
            .page_offsets = numbers.page_offsets,
            .last_page_lengths = numbers.last_page_lengths,
            .num_heads = args.num_heads,
            .num_kv_heads = args.cache.num_kv_heads,
            .page_size = args.cache.block_size,
            .page_stride = page_stride(args.cache),
            .window = args.window,
            .scale = args.scale,
            .soft_cap = args.soft_cap};
  }

  // Between the rounding of queries and the way of answers to their place.
  void run(const PagedAttentionArgs& args, const Choice& choice, const AttentionLaunch& launch, const int32_t* tokens,
           bool is_in_place) {
    gather_rounded(args.queries, args.query_stride, tokens, launch.num_tokens, row_of(args),
                   query_dtype(args.cache.dtype), launch.queries, stream_);
    choice.launch(launch, stream_);
    const DType dtype = choice.kind == Kind::kFa3 ? args.cache.dtype : DType::kF32;
    if (!is_in_place) {
      scatter_floats(launch.out, dtype, tokens, launch.num_tokens, row_of(args), args.out, row_of(args), stream_);
    }
  }

  void attend_prompts(const PagedAttentionArgs& args, const Choice& choice, const Plan& plan, void* scratch) {
    const Room room = room_of(plan, choice.kind, args);
    AttentionLaunch launch = launch_of(args, plan, room, scratch, plan.first_token);
    launch.plan = &plan.numbers;
    launch.plan_integers = plan.planned;
    launch.pages = plan.pages;
    launch.num_sequences = plan.num_sequences;
    launch.num_tokens = plan.num_tokens;
    run(args, choice, launch, plan.tokens, room.out == 0);
  }

  void attend_short_runs(const PagedAttentionArgs& args, const Choice& choice, const ShortRunsPlans::Plan& plan,
                         void* scratch) {
    const Room room = room_of(plan, args);
    AttentionLaunch launch = launch_of(args, plan.numbers, room, scratch, plan.size.first_token);
    launch.short_plan = &plan.numbers;
    launch.num_items = plan.size.num_items;
    launch.num_parts = plan.size.num_parts;
    launch.pages = const_cast<BlockId*>(args.block_tables.device);  // which it only reads
    launch.num_sequences = plan.size.num_runs;
    launch.num_tokens = plan.size.num_tokens;
    run(args, choice, launch, plan.numbers.tokens, room.out == 0);
  }

  // False: there is no kernel for this.
  bool attend_latent(const PagedAttentionArgs& args, int recording, void* scratch, size_t scratch_bytes) {
    const KvCacheView& cache = args.cache;
    const LaunchLatent kernel = latent_kernel(cache.dtype, may_fa3());
    const int32_t positions = latent_positions();
    if (kernel == nullptr || positions == 0 || cache.head_dim != kLatentKeyDim || args.value_dim != kLatentDim ||
        cache.num_kv_heads != 1 || args.window > 0 || args.soft_cap > 0 || args.sinks != nullptr ||
        !is_aligned(cache)) {
      tell(args);
      return false;
    }
    const LatentPlans::Plan& plan =
        latent_plans_.plan_of(card_batch(args), recording, size_of_latent, memory_, stream_);
    if (!plan.usable) return false;
    const int64_t heads = plan.size.num_tokens * int64_t{args.num_heads};  // of all tokens
    const int64_t parts = latent_parts(plan.size);
    const auto numbers = [](int64_t rows, int64_t size) { return round_up(static_cast<size_t>(rows * size) * 2); };
    const size_t queries = numbers(heads, kLatentKeyDim);
    const size_t out = numbers(heads, kLatentDim);
    const size_t sums = numbers(parts, kLatentDim);
    if (queries + out + sums + static_cast<size_t>(parts) * sizeof(float) > scratch_bytes) return false;
    auto* at = static_cast<uint8_t*>(scratch);
    gather_rounded(args.queries, args.query_stride, nullptr, plan.size.num_tokens, row_of(args), cache.dtype, at,
                   stream_);
    kernel({.plan = &plan.numbers,
            .size = plan.size,
            .positions = positions,
            .queries = at,
            .keys = cache.keys,
            .pages = const_cast<BlockId*>(args.block_tables.device),  // which it only reads
            .out = at + queries,
            .parts = at + queries + out,
            .states = at + queries + out + sums,
            .num_heads = args.num_heads,
            .page_size = cache.block_size,
            .page_stride = page_stride(cache),
            .scale = args.scale},
           stream_);
    scatter_floats(at + queries, cache.dtype, nullptr, heads, kLatentDim, args.out, cache.head_dim, stream_);
    return true;
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
    const PromptNumbers numbers = numbers_of(kind, args);
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
    if (kind == Kind::kFa3 && !has_fa3_schedule(prompts)) return;
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
  ShortRunsPlans short_plans_;
  LatentPlans latent_plans_;
  size_t next_ = 0;
  bool told_ = false;
  bool told_of_room_ = false;
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
