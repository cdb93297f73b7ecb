// A model whose layers cache what they will: few kv heads behind a window, many without, and latent rows.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "models/decoder.h"
#include "models/registry.h"
#include "nn/latent_attention.h"
#include "runner/model_runner.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using testing::ElementsAre;

constexpr int32_t kWindow = 20;

Result<ModelConfig> read_differing(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const models::Family llama, models::find_family(config));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, llama.read_config(config, generation));
  out.num_layers = 6;
  out.layer_windows = {kWindow, 0, 0, kWindow, 0, 0};
  return out;
}

std::unique_ptr<nn::SelfAttention> make_attention(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t layer) {
  if (layer % 3 == 2) {
    return std::make_unique<nn::LatentAttention>(
        loader, prefix + "self_attn",
        nn::LatentAttentionOptions{
            .sizes = {.kv_rank = 32, .nope_head_dim = 8, .rope_head_dim = config.head_dim, .value_head_dim = 16},
            .hidden_size = config.hidden_size,
            .num_heads = config.num_heads,
            .scale = 0.2f});
  }
  nn::AttentionConfig attention = models::attention_config({}, config, layer);
  attention.num_kv_heads = layer % 3 == 0 ? 1 : 4;
  return std::make_unique<nn::Attention>(loader, prefix + "self_attn", attention);
}

Result<std::unique_ptr<models::Model>> build_differing(const ModelConfig& config, int64_t num_positions,
                                                       nn::Loader& loader) {
  return models::build_decoder({.attention = make_attention}, config, num_positions, loader);
}

constexpr models::Family kDiffering{.read_config = read_differing, .build = build_differing};

TinyModel differing_model(ops::Backend& backend, const std::string& kv_cache_dtype = "auto") {
  return {"llama", backend, kv_cache_dtype, {}, "", LoadFormat::kDummy, WeightDType::kAuto, &kDiffering};
}

std::vector<TokenId> prompt_of(int32_t length) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((i * 37 + 5) % 500);
  return prompt;
}

// The same groups, but every layer in a memory of its own.
KvLayout each_apart(KvLayout layout) {
  layout.pieces.clear();
  layout.block_bytes = 0;
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const nn::KvLayerSpec& spec = layout.layers[i];
    layout.pieces.push_back(
        {.bytes = spec.key_bytes() * layout.block_size, .num_memories = spec.value_bytes() > 0 ? 2 : 1});
    layout.places[i] = {.group = layout.places[i].group, .piece = static_cast<int32_t>(i)};
    layout.block_bytes += layout.pieces.back().block_bytes();
  }
  return layout;
}

void expect_same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t row = 0; row < a.size(); ++row) {
    for (const float logit : a[row]) ASSERT_TRUE(std::isfinite(logit)) << "row " << row;
    ASSERT_EQ(std::memcmp(a[row].data(), b[row].data(), a[row].size() * sizeof(float)), 0) << "row " << row;
  }
}

class DifferingLayers : public testing::TestWithParam<std::string> {};

TEST_P(DifferingLayers, ArePlannedEachWithItsOwnBytes) {
  auto backend = ops::make_reference_backend();
  const TinyModel model = differing_model(*backend, GetParam());
  const PlannedModel& planned = model.planned();
  const auto vector = [&](int64_t numbers) { return ops::kv_vector_bytes(planned.kv_dtype, numbers); };
  std::vector<int64_t> bytes;
  for (const nn::KvLayerSpec& layer : planned.kv_layout.layers) bytes.push_back(layer.token_bytes());
  EXPECT_THAT(bytes,
              ElementsAre(2 * vector(16), 8 * vector(16), vector(48), 2 * vector(16), 8 * vector(16), vector(48)));
  EXPECT_EQ(planned.memory.kv_token_bytes, 20 * vector(16) + 2 * vector(48));
  // The window's two layers; each of the large ones; the latent ones together.
  EXPECT_THAT(planned.memory.windows, ElementsAre(kWindow, 0, 0, 0));
  EXPECT_EQ(planned.memory.layers_per_block, 2);
  EXPECT_EQ(planned.memory.block_bytes, 8 * vector(16) * TinyModel::kBlockSize);
  EXPECT_EQ(planned.memory.num_blocks, (1 << 20) / planned.memory.block_bytes);
}

TEST_P(DifferingLayers, GiveTheBitsOfLayersThatHaveAMemoryEachHoweverThePromptIsCut) {
  auto backend = make_test_backend("auto");
  TinyModel model = differing_model(*backend, GetParam());
  const std::vector<TokenId> prompt = prompt_of(77);
  // All ones are NaN in any float format: what is read before it is written shows.
  model.fill_memory(0xff);
  const auto whole = model.logits(prompt, 2048);
  for (const int32_t chunk : {1, 7, 16}) {
    model.fill_memory(0xff);
    expect_same_bits(model.logits(prompt, chunk), whole);
  }
  model.use_layout(each_apart(model.planned().kv_layout));
  model.fill_memory(0xff);
  expect_same_bits(model.logits(prompt, 7), whole);
}

INSTANTIATE_TEST_SUITE_P(Formats, DifferingLayers, testing::Values("float32", "float16", "fp8_e5m2", "int8"),
                         [](const auto& test) { return test.param; });

TEST(DifferingLayersOnKernels, AgreeWithTheReference) {
  auto reference = ops::make_reference_backend();
  const auto expected = differing_model(*reference).logits(prompt_of(50), 2048);
  for (const char* kind : {"portable", "avx2", "cuda"}) {
    auto backend = make_test_backend(kind);
    if (backend == nullptr) continue;  // not of this machine
    const auto found = differing_model(*backend).logits(prompt_of(50), 13);
    ASSERT_EQ(found.size(), expected.size());
    double sum = 0;
    for (size_t row = 0; row < found.size(); ++row) {
      for (size_t i = 0; i < found[row].size(); ++i)
        sum += std::fabs(static_cast<double>(found[row][i]) - expected[row][i]);
    }
    EXPECT_LT(sum / static_cast<double>(found.size() * found[0].size()), kind[0] == 'c' ? 2e-2 : 1e-2) << kind;
  }
}

// Greedy tokens and their logprobs of a prompt, in steps of the runner. With `moves`: between two steps all blocks go
// out to the second pool, another prompt takes their place, and they come back elsewhere.
struct GreedyAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const GreedyAnswer&) const = default;
};

class DifferingConversation {
 public:
  DifferingConversation(ops::Backend& backend, std::vector<TokenId> prompt)
      : prompt_(std::move(prompt)), tiny_(differing_model(backend)) {
    PlannedModel planned = tiny_.planned();
    planned.memory.num_blocks = 64;
    planned.memory.num_swap_blocks = 32;
    num_groups_ = static_cast<int32_t>(planned.memory.windows.size());
    auto runner = ModelRunner::create(planned, tiny_.take_model(), backend);
    EXPECT_TRUE(runner.ok()) << runner.status().message();
    runner_ = std::move(*runner);
  }

  GreedyAnswer run(bool moves) {
    GreedyAnswer answer;
    BlockId first = 0;
    for (int32_t step = 0; step < 8; ++step) {
      StepPlan plan;
      if (step == 0) add(plan, 1, prompt_);
      if (step == 4 && moves) {
        move(plan, &StepPlan::swap_out, first);
        add(plan, 2, prompt_of(3 * TinyModel::kBlockSize));
        schedule(plan, 2, 0, 3 * TinyModel::kBlockSize, first);
        execute(plan);
        plan = StepPlan();
        plan.retired.push_back(2);
        first = 40;
        move(plan, &StepPlan::swap_in, first);
      }
      const auto size = static_cast<int32_t>(prompt_.size());
      schedule(plan, 1, step == 0 ? 0 : size + step - 1, step == 0 ? size : 1, first);
      const SequenceResult result = execute(plan);
      answer.tokens.push_back(result.tokens.at(0));
      answer.logprobs.push_back(result.logprobs.at(0).chosen.logprob);
    }
    return answer;
  }

 private:
  static constexpr int32_t kBlocksEach = 3;  // of each group

  void add(StepPlan& plan, SequenceId id, std::vector<TokenId> prompt) const {
    plan.added.push_back({.id = id, .prompt = std::move(prompt), .params = params_});
  }
  void move(StepPlan& plan, std::vector<SwapCopy> StepPlan::*way, BlockId first) const {
    for (BlockId i = 0; i < num_groups_ * kBlocksEach; ++i)
      (plan.*way).push_back({.block = first + i, .slot = static_cast<SwapSlot>((i * 5 + 2) % 32)});
  }
  void schedule(StepPlan& plan, SequenceId id, int32_t computed, int32_t count, BlockId first) {
    plan.scheduled.push_back({.id = id, .num_computed_tokens = computed, .num_new_tokens = count, .samples = true});
    const int32_t blocks = (computed + count + TinyModel::kBlockSize - 1) / TinyModel::kBlockSize;
    for (int32_t group = 0; group < num_groups_; ++group) {
      std::vector<BlockId> table;
      for (int32_t block = 0; block < blocks; ++block) table.push_back(first + block * num_groups_ + group);
      tell_whole_table(plan, id, group, table);
    }
  }
  SequenceResult execute(StepPlan& plan) {
    plan.step = ++step_;
    for (const ScheduledSequence& run : plan.scheduled) plan.num_tokens += run.num_new_tokens;
    runner_->launch(plan);
    runner_->choose();
    const ExecutedStep done = runner_->finish();
    EXPECT_TRUE(done.result.sequences.at(0).error.ok()) << done.result.sequences.at(0).error.message();
    return done.result.sequences.at(0);
  }

  std::vector<TokenId> prompt_;
  TinyModel tiny_;  // whose checkpoint the model reads
  std::shared_ptr<const SamplingParams> params_ =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .logprobs = 0});
  std::unique_ptr<ModelRunner> runner_;
  int32_t num_groups_ = 0;
  uint64_t step_ = 0;
};

TEST(DifferingLayersInTheRunner, AnswerAlikeWhenTheirBlocksWereSwappedOutAndBackElsewhere) {
  auto backend = make_test_backend("auto");
  const GreedyAnswer stayed = DifferingConversation(*backend, prompt_of(35)).run(/*moves=*/false);
  const GreedyAnswer moved = DifferingConversation(*backend, prompt_of(35)).run(/*moves=*/true);
  EXPECT_EQ(stayed, moved);
}

TEST(DifferingLayersInTheRunner, OfAnotherModelAreABug) {
  auto backend = ops::make_reference_backend();
  TinyModel tiny = differing_model(*backend);
  PlannedModel planned = tiny.planned();
  planned.kv_layout = make_kv_layout({planned.kv_layout.layers.front()}, 16).value();
  EXPECT_DEATH((void)ModelRunner::create(planned, tiny.take_model(), *backend), "a cache of another model's layers");
}

}  // namespace
}  // namespace quire::runner
