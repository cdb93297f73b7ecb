// Adapters of a model that several workers compute, each on a card of its own: the answers of one card, from steps that
// are replayed and that are not, while adapters come and go.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <utility>

#include "nccl_on_host.h"
#include "peers_on_host.h"
#include "ranks_on_cards.h"
#include "runner/rank_adapters.h"
#include "tests/runner/adapter_steps.h"

namespace quire::runner {
namespace {

using AdapterUse = std::shared_ptr<const AdapterLease>;

// A request, which joins the others in this step.
struct Asked {
  std::string adapter;  // "": none
  uint64_t first_step = 0;
  size_t num_tokens = 7;
  std::vector<int32_t> chunks = {};  // of the prompt's beginning, a step each
};
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};
struct Answers {
  std::vector<Answer> of;
  std::vector<bool> replayed;  // of each step
};

EngineConfig adapted_cards_config(int32_t tensor, int32_t pipeline, const std::string& family = "llama") {
  EngineConfig config = cards_config(tensor, pipeline);
  config.model = tiny_path(family);
  config.max_num_seqs = 8;
  config.num_gpu_blocks_override = 64;
  config.enable_lora = true;
  config.max_loras = 8;
  config.enable_prompt_adapter = true;
  config.max_prompt_adapters = 2;
  return config;
}

void load_all(Executor& executor, const std::string& family, const std::vector<Asked>& asked) {
  for (const Asked& one : asked) {
    if (one.adapter.empty() || acquire_adapter(executor, one.adapter).ok()) continue;
    const Status loaded = load_shared_adapter(executor, one.adapter, workers_adapter_path(family + "/" + one.adapter));
    ASSERT_TRUE(loaded.ok()) << one.adapter << ": " << loaded.message();
  }
}

// What one executor is asked, plan by plan.
class Conversation {
 public:
  explicit Conversation(Executor& executor) : executor_(executor) {}

  // All with the same prompt, greedy. Who has all tokens is gone in the next step.
  Answers answer(const std::vector<Asked>& asked) {
    Answers answers{.of = std::vector<Answer>(asked.size()), .replayed = {}};
    std::vector<Sequence> sequences(asked.size());
    for (uint64_t step = 0; !std::ranges::all_of(sequences, &Sequence::is_done); ++step) {
      StepPlan plan;
      plan.step = num_steps_++;
      plan.retired = std::exchange(retired_, {});
      for (size_t i = 0; i < asked.size(); ++i) {
        if (asked[i].first_step == step) join(plan, asked[i], i, sequences[i]);
        if (asked[i].first_step <= step && !sequences[i].is_done) run(plan, asked[i], answers.of[i], i, sequences[i]);
      }
      for (const ScheduledSequence& run : plan.scheduled) plan.num_tokens += run.num_new_tokens;
      executor_.submit(std::move(plan));
      const auto done = executor_.collect();
      EXPECT_TRUE(done.ok()) << done.status().message();
      if (!done.ok()) return answers;
      answers.replayed.push_back(done->timings.replayed);
      for (const SequenceResult& result : done->result.sequences) {
        EXPECT_TRUE(result.error.ok()) << result.error.message();
        if (result.tokens.empty()) continue;
        const size_t i = result.id - first_id_;
        answers.of[i].tokens.push_back(result.tokens.at(0));
        answers.of[i].logprobs.push_back(result.logprobs.at(0).chosen.logprob);
        if (answers.of[i].tokens.size() < asked[i].num_tokens) continue;
        sequences[i] = {.is_done = true};
        retired_.push_back(result.id);
      }
    }
    first_id_ += asked.size();
    return answers;
  }

 private:
  struct Sequence {
    AdapterUse use = nullptr;
    int32_t num_prompt = 0;
    int32_t num_computed = 0;
    size_t num_chunks = 0;
    bool is_done = false;
  };

  void join(StepPlan& plan, const Asked& asked, size_t i, Sequence& sequence) {
    NewSequence added{.id = first_id_ + i};
    if (!asked.adapter.empty()) {
      sequence.use = acquire_adapter(executor_, asked.adapter).value();
      added.adapter = sequence.use->number();
      added.num_virtual_tokens = sequence.use->adapter().num_virtual_tokens();
    }
    added.prompt.resize(static_cast<size_t>(added.num_virtual_tokens));
    std::iota(added.prompt.begin(), added.prompt.end(), 0);
    added.prompt.insert(added.prompt.end(), {5, 9, 11, 7, 30, 31, 32, 33, 34, 35});
    added.params = std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .logprobs = 0});
    sequence.num_prompt = static_cast<int32_t>(added.prompt.size());
    const auto block = static_cast<BlockId>(4 * i);
    const std::vector<BlockId> table = {block + 3, block + 1, block, block + 2};
    tell_whole_table(plan, added.id, 0, table);
    plan.added.push_back(std::move(added));
  }
  void run(StepPlan& plan, const Asked& asked, const Answer& known, size_t i, Sequence& sequence) {
    ScheduledSequence next{.id = first_id_ + i, .num_computed_tokens = sequence.num_computed};
    if (!known.tokens.empty()) {
      plan.sampled.push_back({.id = next.id, .token = known.tokens.back()});
      next.num_new_tokens = 1;
    } else if (sequence.num_chunks < asked.chunks.size()) {
      next.num_new_tokens = asked.chunks[sequence.num_chunks++];
    } else {
      next.num_new_tokens = sequence.num_prompt - sequence.num_computed;
    }
    sequence.num_computed += next.num_new_tokens;
    next.samples = sequence.num_computed >= sequence.num_prompt;
    plan.scheduled.push_back(next);
  }

  Executor& executor_;
  uint64_t num_steps_ = 0;
  SequenceId first_id_ = 1;
  std::vector<SequenceId> retired_;
};

void expect_nearly(const Answers& found, const Answers& expected, float tolerance) {
  for (size_t i = 0; i < expected.of.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    EXPECT_EQ(found.of[i].tokens, expected.of[i].tokens);
    ASSERT_EQ(found.of[i].logprobs.size(), expected.of[i].logprobs.size());
    for (size_t t = 0; t < expected.of[i].logprobs.size(); ++t)
      EXPECT_NEAR(found.of[i].logprobs[t], expected.of[i].logprobs[t], tolerance) << "token " << t;
  }
}

class RankAdaptersOnCards : public WithCards {
 protected:
  Answers on_ranks(const EngineConfig& config, const std::string& family, const std::vector<Asked>& asked) {
    auto executor = start_workers(config);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    if (!executor.ok()) return {};
    load_all(**executor, family, asked);
    return Conversation(**executor).answer(asked);
  }
  static Answers on_one(const EngineConfig& config, const std::string& family, const std::vector<Asked>& asked) {
    const auto executor = start_one(config);
    load_all(*executor, family, asked);
    return Conversation(*executor).answer(asked);
  }
};

// Each joins while those before it decode, so that steps are recorded anew as kinds of adapters are added: of all
// products, of rows' lengths, of embedding and head, of one stage alone.
const std::vector<Asked> kOfEveryKind = {{"", 0, 12},
                                         {"some_layers", 1},
                                         {"prompt_tuning", 2, 7, {3}},
                                         {"all_linear", 3},
                                         {"prefix_tuning", 4, 7, {4}},
                                         {"dora", 5},
                                         {"embed_head", 6},
                                         {"tokens", 7}};

TEST_F(RankAdaptersOnCards, AnswerAsOneCardDoesBesideEachOtherAndTheBase) {
  const Answers expected = on_one(adapted_cards_config(1, 1), "llama", kOfEveryKind);
  EXPECT_GE(std::ranges::count(expected.replayed, true), 3);
  for (size_t i = 1; i < kOfEveryKind.size(); ++i) {
    EXPECT_NE(expected.of[i].logprobs.front(), expected.of[0].logprobs.front()) << kOfEveryKind[i].adapter;
  }
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("{} stages of {}", pipeline, tensor));
    const Answers found = on_ranks(adapted_cards_config(tensor, pipeline), "llama", kOfEveryKind);
    expect_nearly(found, expected, tensor == 1 ? 0 : 1e-4f);
    EXPECT_EQ(found.replayed, expected.replayed);
  }
}

TEST_F(RankAdaptersOnCards, AnswersOfEagerStepsAndByOtherWaysAreTheSameBits) {
  const EngineConfig config = adapted_cards_config(2, 2);
  const Answers expected = on_ranks(config, "llama", kOfEveryKind);
  EngineConfig eager = config;
  eager.enforce_eager = true;
  const Answers call_by_call = on_ranks(eager, "llama", kOfEveryKind);
  expect_nearly(call_by_call, expected, 0);
  EXPECT_EQ(std::ranges::count(call_by_call.replayed, true), 0);
  // Of two numbers there is one sum, by NCCL or out of each other's memory.
  ops::cuda::offer_nccl(true);
  for (const bool reach : {false, true}) {
    cuda_on_host::let_cards_reach_each_other(reach);
    const int sums = ops::cuda::nccl_sums();
    const int messages = ops::cuda::nccl_messages();
    expect_nearly(on_ranks(config, "llama", kOfEveryKind), expected, 0);
    EXPECT_EQ(ops::cuda::nccl_sums() > sums, !reach);
    EXPECT_GT(ops::cuda::nccl_messages(), messages);
  }
  ops::cuda::offer_nccl(false);
}

// Where experts are whole a rank adds to its own alone; of latent attention to its heads.
TEST_F(RankAdaptersOnCards, OfExpertsAndOfLatentAttentionAnswerAsOneCardDoes) {
  struct Case {
    std::string family;
    std::vector<Asked> asked;
    int32_t tensor;
    int32_t pipeline;
    bool whole_experts;
  };
  const std::vector<Asked> of_experts = {{"", 0, 8}, {"all_linear", 1}, {"stacks", 3}};
  const std::vector<Asked> of_latents = {{"kv_b", 0}, {"", 1}, {"latent", 2}};
  const std::vector<Case> cases = {{"mixtral", of_experts, 2, 1, false},
                                   {"mixtral", of_experts, 2, 2, true},
                                   {"deepseek_v2", of_latents, 2, 2, false}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.family);
    EngineConfig config = adapted_cards_config(one.tensor, one.pipeline, one.family);
    config.enable_expert_parallel = one.whole_experts;
    const Answers expected = on_one(config, one.family, one.asked);
    const Answers found = on_ranks(config, one.family, one.asked);
    expect_nearly(found, expected, 1e-4f);
    EXPECT_EQ(found.replayed, expected.replayed);
  }
}

// A stage that has nothing of an adapter records with those that have some of it: a step that is recorded exchanges
// once more than one that is replayed.
TEST_F(RankAdaptersOnCards, StagesRecordAnewTogetherWhicheverOfThemAnAdapterIsOf) {
  // The first step with the soft prompt is of a row of its own alone.
  const std::vector<std::vector<Asked>> all = {{{"some_layers"}}, {{"prompt_tuning", 0, 7, {1, 3, 1}}},
                                               {{"some_layers"}}, {{"prompt_tuning"}},
                                               {{"embed_head"}},  {{""}}};
  EngineConfig config = adapted_cards_config(1, 2);
  const auto one = start_one(config);
  auto ranks = start_workers(config);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  Conversation on_one(*one);
  Conversation on_ranks(**ranks);
  for (const std::vector<Asked>& asked : all) {
    SCOPED_TRACE(asked[0].adapter);
    load_all(*one, "llama", asked);
    load_all(**ranks, "llama", asked);
    const Answers expected = on_one.answer(asked);
    const Answers found = on_ranks.answer(asked);
    expect_nearly(found, expected, 0);
    EXPECT_EQ(found.replayed, expected.replayed);
    EXPECT_TRUE(found.replayed.back());
  }
}

// Memory of two of the largest: a smaller one between them leaves pieces of which none has room for another.
TEST_F(RankAdaptersOnCards, TakeTurnsOnMemoryThatMayBeInPieces) {
  EngineConfig config = adapted_cards_config(2, 1);
  config.enable_prompt_adapter = false;
  config.max_prompt_adapters = 1;
  config.max_loras = 2;
  const auto load = [](Executor& executor, const std::string& name, const std::string& files) {
    const Status loaded = load_shared_adapter(executor, name, workers_adapter_path("llama/" + files));
    EXPECT_TRUE(loaded.ok()) << loaded.message();
  };
  auto ranks = start_workers(config);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  Executor& executor = **ranks;
  load(executor, "small", "all_linear");
  load(executor, "first", "rslora");
  load(executor, "second", "rslora");
  EXPECT_EQ(executor.adapters()->statistics().num_loaded, 1) << "the small one's bytes were enough, and not its place";
  Conversation conversation(executor);
  const Answers expected = conversation.answer({{"second"}});

  ASSERT_TRUE(executor.adapters()->unload("second").ok());
  const Answers of_small = conversation.answer({{"small"}});
  EXPECT_NE(of_small.of, expected.of);
  AdapterUse used = acquire_adapter(executor, "first").value();
  std::promise<AdapterStore::LeaseOr> loaded;
  executor.adapters()->load("third", workers_adapter_path("llama/rslora"), /*replace=*/false,
                            [&](AdapterStore::LeaseOr lease) { loaded.set_value(std::move(lease)); });
  auto third = loaded.get_future();
  EXPECT_EQ(third.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout) << "nothing else may leave";
  used.reset();
  EXPECT_TRUE(third.get().ok());
  EXPECT_EQ(conversation.answer({{"third"}}).of, expected.of);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(conversation.answer({{"small"}}).of, of_small.of);
    EXPECT_EQ(conversation.answer({{"first"}}).of, expected.of);
    EXPECT_EQ(conversation.answer({{"third"}}).of, expected.of);
  }
}

TEST_F(RankAdaptersOnCards, ComeBackWithTheWorkers) {
  const std::vector<Asked> asked = {{"dora", 0}, {"prompt_tuning", 1}, {"", 2}};
  auto ranks = start_workers(adapted_cards_config(2, 1));
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  load_all(**ranks, "llama", asked);
  const Answers expected = Conversation(**ranks).answer(asked);
  last_segment_->end("worker 1 of 2 was unwell");
  ASSERT_TRUE((*ranks)->recover().ok());
  EXPECT_EQ(Conversation(**ranks).answer(asked).of, expected.of);
}

// What has left while a step is under way keeps its memory until that is done, for whom the next one waits.
TEST_F(RankAdaptersOnCards, ThePlaceOfOneThatLeavesIsFreeWhenTheStepIsDone) {
  const auto host_backend = ops::make_reference_backend();
  const TinyModel model("llama", *host_backend);
  const auto card = cli::make_backend(cards_config(1, 1)).value();
  const std::string path = workers_adapter_path("llama/rslora");
  const auto file = checkpoint::AdapterFile::open(path).value();
  AdapterHost host = model.adapter_host();
  const int64_t bytes = Adapter::read(*file, host, *card).value()->bytes();
  RankAdapters adapters(std::move(host), {.most_loaded = 1, .most_bytes = bytes + bytes / 2}, *card);
  ASSERT_TRUE(adapters.has_memory());
  const auto tell = [&](AdapterOrder::Kind kind, uint64_t handle) {
    const AdapterOrder order{.kind = kind, .handle = handle, .number = 7, .path = path, .revision = file->revision};
    return adapters.carry_out(order).status.code();
  };
  using Kind = AdapterOrder::Kind;
  EXPECT_EQ(tell(Kind::kRead, 1), StatusCode::kOk);
  EXPECT_EQ(adapters.in_use(7), nullptr);
  EXPECT_EQ(tell(Kind::kUse, 1), StatusCode::kOk);
  const Adapter* first = adapters.in_use(7);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(tell(Kind::kRead, 2), StatusCode::kOk);
  EXPECT_EQ(tell(Kind::kUse, 2), StatusCode::kResourceExhausted);
  EXPECT_EQ(adapters.in_use(7), first);
  adapters.begin_step();
  tell(Kind::kDrop, 1);
  EXPECT_NE(first->table(), nullptr) << "the step may read it";
  auto used = std::async(std::launch::async, [&] { return tell(Kind::kUse, 2); });
  EXPECT_EQ(used.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(adapters.in_use(7), nullptr);
  adapters.end_step();
  EXPECT_EQ(used.get(), StatusCode::kOk);
  EXPECT_NE(adapters.in_use(7), nullptr);
  tell(Kind::kDrop, 2);
  EXPECT_EQ(tell(Kind::kUse, 2), StatusCode::kInternal);
}

}  // namespace
}  // namespace quire::runner
