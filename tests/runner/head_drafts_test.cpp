// A head's guesses are those of a reference of its own (scripts/make_eagle3_data.py, make_mtp_data.py,
// make_eagle_data.py, make_dflash_data.py), however the model came by its states: all at once, in pieces, again, with
// guesses among its rows, or only from somewhere on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "models/dflash.h"
#include "models/eagle3.h"
#include "runner/drafting_executor.h"
#include "runner/hidden_store.h"
#include "runner/local_executor.h"
#include "runner/model_drafts.h"
#include "runner/multiprocess_executor.h"
#include "runner/tapped_states.h"
#include "tests/runner/thread_workers.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

std::string head_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/tiny_heads/" + name;
}

struct Guess {
  TokenId token = kNoToken;
  double probability = 0;
};
struct HeadCase {
  std::vector<TokenId> text;
  int32_t num_prompt_tokens = 0;
  std::map<int32_t, std::vector<Guess>> guesses;  // behind so many of its tokens
};

// The same model and layer in a GGUF file.
constexpr const char* kGgufCase = "qwen3_5_mtp_gguf";

std::vector<HeadCase> head_cases(const std::string& name) {
  std::ifstream file(head_path(name == kGgufCase ? "qwen3_5_mtp" : name) + "/golden.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<HeadCase> cases;
  const boost::json::value root = boost::json::parse(text);
  for (const boost::json::value& value : root.at("cases").as_array()) {
    HeadCase one;
    one.text = boost::json::value_to<std::vector<TokenId>>(value.at("text"));
    one.num_prompt_tokens = value.at("num_prompt_tokens").to_number<int32_t>();
    for (const auto& [size, guesses] : value.at("guesses").as_object()) {
      for (const boost::json::value& guess : guesses.as_array()) {
        one.guesses[std::stoi(size)].push_back(
            {guess.at("token").to_number<TokenId>(), guess.at("probability").to_number<double>()});
      }
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

// Ranks of each stage, stages: of more than one the head is beside workers, which have its model.
struct HeadLayout {
  int32_t tensor = 1;
  int32_t pipeline = 1;
  bool on_cards = false;  // emulated ones
};
Result<std::unique_ptr<Executor>> executor_with(const std::string& head, const std::string& model = "llama",
                                                SpeculativeMethod method = SpeculativeMethod::kEagle3,
                                                int32_t num_tokens = 0, const HeadLayout& layout = {}) {
  EngineConfig config{.model = tiny_path(model), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.speculative_config.method = method;
  config.speculative_config.model = head;
  config.speculative_config.num_speculative_tokens = num_tokens;
  if (layout.tensor * layout.pipeline == 1) return make_local_executor(config, make_test_backend("auto"));
  const std::string device = layout.on_cards ? "cuda" : "auto";
  if (layout.on_cards) config.kv_cache_dtype = KvCacheDType::kFloat32;
  QUIRE_ASSIGN_OR_RETURN(DraftsBesideWorkers drafts, make_drafts_beside_workers(config, make_test_backend(device)));
  config.state_layers = drafts.store->layers();
  config.tensor_parallel_size = layout.tensor;
  config.pipeline_parallel_size = layout.pipeline;
  static std::optional<WorkerSegment> last;
  const auto planner = make_test_backend("auto");
  const MakeBackend make_card = [](const EngineConfig&) -> Result<std::unique_ptr<ops::Backend>> {
    return make_test_backend("cuda");
  };
  auto launcher = std::make_unique<ThreadLauncher>(last, layout.on_cards ? make_card : MakeBackend(workers_backend));
  QUIRE_ASSIGN_OR_RETURN(auto workers, make_multiprocess_executor(config, std::move(launcher), *planner));
  return make_drafting_executor(std::move(workers), std::move(drafts));
}

// The tiny head of this name, over the model that it was made for.
Result<std::unique_ptr<Executor>> executor_of(const std::string& name, const HeadLayout& layout) {
  const auto over = [&](const std::string& model, SpeculativeMethod method) {
    return executor_with(method == SpeculativeMethod::kMtp ? std::string() : head_path(name), model, method, 0, layout);
  };
  if (name.ends_with("_mtp")) return over(head_path(name), SpeculativeMethod::kMtp);
  if (name == kGgufCase) return over(head_path("qwen3_5_mtp.gguf"), SpeculativeMethod::kMtp);
  if (name.starts_with("medusa")) return over("llama", SpeculativeMethod::kMedusa);
  if (name.starts_with("dflash")) return over("llama", SpeculativeMethod::kDflash);
  return over("llama", name.starts_with("eagle_") ? SpeculativeMethod::kEagle : SpeculativeMethod::kEagle3);
}

struct HeadParam {
  std::string name;
  HeadLayout layout = {};
  friend std::ostream& operator<<(std::ostream& out, const HeadParam& param) {
    out << param.name;
    if (param.layout.tensor * param.layout.pipeline == 1) return out;
    out << " over " << param.layout.pipeline << " stages of " << param.layout.tensor;
    return out << (param.layout.on_cards ? " on cards" : "");
  }
};

class HeadDrafts : public testing::TestWithParam<HeadParam> {
 protected:
  static constexpr int32_t kBlock = 16;

  void SetUp() override {
    if (GetParam().layout.on_cards && !cards::is_emulated("cuda")) GTEST_SKIP() << "no emulated cards";
    auto executor = executor_of(GetParam().name, GetParam().layout);
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    executor_ = std::move(*executor);
    head_ = executor_->take_draft_model();
  }

  void learn(SequenceId id, std::span<const TokenId> text) {
    StepPlan& plan = next_;
    plan.added.push_back({.id = id, .prompt = {text.begin(), text.end()}, .params = params_});
    std::vector<BlockId> blocks;
    const auto num_groups = static_cast<int32_t>(executor_->memory().windows.size());
    for (int32_t group = 0; group < num_groups; ++group) {
      blocks.clear();
      for (size_t i = 0; i < text.size() / kBlock + 2; ++i) blocks.push_back(next_block_++);
      tell_whole_table(plan, id, group, blocks);
    }
  }
  // Of the model, positions [begin, end), with these tokens behind them, of which nobody knows whether they are right.
  void compute(SequenceId id, int32_t begin, int32_t end, std::vector<TokenId> guesses = {}) {
    StepPlan plan = std::exchange(next_, {});
    plan.scheduled = {{.id = id, .num_computed_tokens = begin, .num_new_tokens = end - begin}};
    plan.scheduled.front().num_draft_tokens = static_cast<int32_t>(guesses.size());
    plan.scheduled.front().samples = !guesses.empty();
    if (executor_->memory().keeps_states) {
      const int32_t kept = std::exchange(kept_.try_emplace(id, begin).first->second, end);
      plan.scheduled.front().num_replayed_tokens = std::max(begin - kept, 0);
    }
    plan.num_tokens = end - begin + static_cast<int32_t>(guesses.size());
    plan.draft_tokens = std::move(guesses);
    executor_->submit(std::move(plan));
    auto done = executor_->collect();
    ASSERT_TRUE(done.ok()) << done.status().message();
    const SequenceResult& result = done->result.sequences.front();
    EXPECT_TRUE(result.error.ok());
    if (GetParam().layout.pipeline == 1) return;  // else stages before the last are told with the next plan
    for (const TokenId token : result.tokens) next_.sampled.push_back({.id = id, .token = token});
  }
  DraftProposal propose(SequenceId id, std::span<const TokenId> text, int32_t most = 4) {
    DraftProposal proposal;
    head_->propose({.id = id, .tokens = text, .most_computed = most}, most, proposal);
    return proposal;
  }
  static int32_t num_tokens() { return GetParam().name == "glm4_moe_mtp" ? 64 : 512; }
  void expect(const DraftProposal& found, const std::vector<Guess>& wanted) {
    ASSERT_EQ(found.tokens.size(), wanted.size());
    EXPECT_EQ(found.source, DraftSource::kModel);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found.tokens[i], wanted[i].token) << i;
      EXPECT_NEAR(static_cast<double>(found.agreement[i]), wanted[i].probability, 2e-3) << i;
    }
  }

  std::shared_ptr<const SamplingParams> params_ =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0, .ignore_eos = true});
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DraftProposer> head_;
  StepPlan next_;
  BlockId next_block_ = 0;
  std::map<SequenceId, int32_t> kept_;  // behind which states lie
};

TEST_P(HeadDrafts, AreThoseOfTheReferenceAsTheAnswerGoesOn) {
  SequenceId id = 0;
  for (const HeadCase& one : head_cases(GetParam().name)) {
    ++id;
    next_block_ = 0;
    learn(id, one.text);
    int32_t computed = 0;
    for (const auto& [size, guesses] : one.guesses) {
      SCOPED_TRACE(size);
      while (computed < size - 1) {  // in pieces, the prompt too
        const int32_t end = std::min(computed + 13, size - 1);
        compute(id, std::exchange(computed, end), end);
      }
      const auto text = std::span(one.text).first(static_cast<size_t>(size));
      expect(propose(id, text), guesses);
      expect(propose(id, text), guesses);  // asked again
    }
    next_.retired.push_back(id);
    head_->ended({.id = id});
  }
  EXPECT_GT(head_->seconds_per_token() + head_->seconds_at_once(), 0);
  EXPECT_TRUE(head_->computes());
}

// Rows of right guesses are the answer's, those of wrong ones give way to what comes in their place.
TEST_P(HeadDrafts, AreTheSameWithGuessesAmongTheRows) {
  const HeadCase one = head_cases(GetParam().name).back();
  ASSERT_EQ(one.num_prompt_tokens, 40);
  const auto first = [&](size_t count) { return std::span(one.text).first(count); };
  const auto wrong = [&](size_t at) { return (one.text[at] + 1) % num_tokens(); };
  learn(1, first(43));
  compute(1, 0, 30);
  compute(1, 30, 43, {one.text[43], one.text[44], wrong(45)});  // and token 45 of its own
  expect(propose(1, first(46)), one.guesses.at(46));
  compute(1, 45, 46, {wrong(46), one.text[47]});  // token 46
  EXPECT_EQ(propose(1, first(47)).tokens.size(), 4u);
  compute(1, 46, 47, {one.text[47], wrong(48)});  // token 48
  expect(propose(1, first(49)), one.guesses.at(49));
}

// The first positions were computed for somebody else: the head knows the text from there on, and guesses something.
TEST_P(HeadDrafts, ComeFromWhereTheStatesBegin) {
  const HeadCase one = head_cases(GetParam().name).back();
  const auto size = static_cast<int32_t>(one.text.size());
  learn(1, one.text);
  compute(1, 0, 16);
  next_.retired.push_back(1);
  next_block_ = 0;
  learn(2, one.text);
  compute(2, 16, 40);
  compute(2, 40, size - 1);
  EXPECT_EQ(propose(2, one.text).tokens.size(), 4u);
  EXPECT_EQ(propose(2, std::span(one.text).first(16)).tokens.size(), 0u) << "of states that it has not";
  EXPECT_EQ(propose(7, one.text).tokens.size(), 0u) << "of a text that nobody computed";
  EXPECT_EQ(propose(2, one.text, 0).tokens.size(), 0u);
}

// A text that is longer than what the head computes at once.
TEST_P(HeadDrafts, AreTheSameWhereverItWasAskedBefore) {
  std::vector<TokenId> text;
  const auto last = static_cast<int32_t>(std::min<int64_t>(150, executor_->memory().max_model_len - 8)) - 1;
  for (int32_t i = 0; i <= last; ++i) text.push_back(3 + (i * i * 31 + i * 7) % (num_tokens() - 32));
  std::vector<DraftProposal> found;
  for (const int32_t piece : {32, 11}) {
    const auto id = static_cast<SequenceId>(piece);
    next_block_ = 0;
    learn(id, text);
    for (int32_t begin = 0; begin < last; begin += piece) {
      const int32_t end = std::min(begin + piece, last);
      compute(id, begin, end);
      if (piece == 11) propose(id, std::span(text).first(static_cast<size_t>(end) + 1));
    }
    found.push_back(propose(id, text));
    next_.retired.push_back(id);
    head_->ended({.id = id});
  }
  ASSERT_EQ(found[0].tokens.size(), 4u);
  EXPECT_EQ(found[0].tokens, found[1].tokens);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[0].agreement[i], found[1].agreement[i], 1e-4f) << i;
}

TEST_P(HeadDrafts, AreNotMadeWithAnAdapter) {
  const HeadCase one = head_cases(GetParam().name).front();
  learn(1, one.text);
  compute(1, 0, static_cast<int32_t>(one.text.size()) - 1);
  DraftProposal proposal;
  head_->propose({.id = 1, .tokens = one.text, .adapter = 3, .most_computed = 4}, 4, proposal);
  EXPECT_TRUE(proposal.tokens.empty());
}

std::string head_name(const testing::TestParamInfo<HeadParam>& test) {
  const HeadLayout& layout = test.param.layout;
  if (layout.tensor * layout.pipeline == 1) return test.param.name;
  return fmt::format("{}_over_{}_stages_of_{}{}", test.param.name, layout.pipeline, layout.tensor,
                     layout.on_cards ? "_cuda" : "");
}

std::vector<HeadParam> heads_of_this_process() {
  std::vector<HeadParam> all;
  for (const char* name : {"eagle3_llama", "eagle3_whole_vocabulary", "deepseek_v3_mtp", "qwen3_5_mtp", "glm4_moe_mtp",
                           kGgufCase, "eagle_llama", "eagle_normed", "medusa_llama", "medusa_few_tokens",
                           "medusa_blocks", "dflash_llama", "dflash_windows", "dflash_both_ways"}) {
    all.push_back({name});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Tiny, HeadDrafts, testing::ValuesIn(heads_of_this_process()), head_name);
INSTANTIATE_TEST_SUITE_P(BesideWorkers, HeadDrafts,
                         testing::Values(HeadParam{"eagle3_llama", {2, 1}}, HeadParam{"eagle3_llama", {2, 2}},
                                         HeadParam{"eagle3_whole_vocabulary", {1, 2}}, HeadParam{"eagle_llama", {1, 2}},
                                         HeadParam{"deepseek_v3_mtp", {2, 2}}, HeadParam{"qwen3_5_mtp", {1, 3}},
                                         HeadParam{"medusa_few_tokens", {2, 1}}, HeadParam{"medusa_blocks", {1, 2}},
                                         HeadParam{"dflash_windows", {2, 2}}),
                         head_name);

INSTANTIATE_TEST_SUITE_P(
    BesideWorkersOnCards, HeadDrafts,
    testing::Values(HeadParam{"eagle3_llama", {2, 1, true}}, HeadParam{"eagle3_llama", {2, 2, true}},
                    HeadParam{"eagle3_whole_vocabulary", {1, 2, true}}, HeadParam{"deepseek_v3_mtp", {1, 2, true}},
                    HeadParam{"qwen3_5_mtp", {1, 3, true}}, HeadParam{"medusa_blocks", {2, 2, true}},
                    HeadParam{"dflash_windows", {1, 2, true}}),
    head_name);

// Computes all of a text but its last token.
void compute_text(Executor& executor, std::span<const TokenId> text, int32_t piece) {
  StepPlan plan;
  plan.added.push_back({.id = 1, .prompt = {text.begin(), text.end()}, .params = std::make_shared<SamplingParams>()});
  tell_whole_table(plan, 1, 0, std::vector<BlockId>{0, 1, 2, 3});
  const auto end = static_cast<int32_t>(text.size()) - 1;
  for (int32_t begin = 0; begin < end; begin += piece) {
    const int32_t count = std::min(piece, end - begin);
    plan.scheduled = {{.id = 1, .num_computed_tokens = begin, .num_new_tokens = count}};
    plan.num_tokens = count;
    executor.submit(std::exchange(plan, {}));
    ASSERT_TRUE(executor.collect().ok());
  }
}

// A pass makes all guesses of a block, whatever a guess may cost: more than are asked for are not told.
TEST(BlocksOfDflash, HaveAsManyGuessesAsThereAreMaskTokens) {
  auto executor = executor_of("dflash_llama", {});
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  EXPECT_EQ((*executor)->memory().most_draft_tokens, 7);
  const std::unique_ptr<DraftProposer> head = (*executor)->take_draft_model();
  const HeadCase one = head_cases("dflash_llama").back();
  const std::span<const TokenId> text = std::span(one.text).first(40);
  compute_text(**executor, text, 32);
  const auto guesses = [&](int32_t most, int32_t most_computed) {
    DraftProposal proposal;
    head->propose({.id = 1, .tokens = text, .most_computed = most_computed}, most, proposal);
    return proposal.tokens;
  };
  const std::vector<TokenId> all = guesses(64, 1);
  ASSERT_EQ(all.size(), 7u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(all[i], one.guesses.at(40)[i].token) << i;
  EXPECT_THAT(guesses(3, 64), testing::ElementsAreArray(all.begin(), all.begin() + 3));
  EXPECT_TRUE(guesses(64, 0).empty());
  head->ended({.id = 1});
}

// Each place is drawn by what is likely there, with the numbers that the answer's tokens are drawn with.
TEST(BlocksOfDflash, AreDrawnForARequestThatDraws) {
  auto executor = executor_of("dflash_llama", {});
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  const std::unique_ptr<DraftProposer> head = (*executor)->take_draft_model();
  const HeadCase one = head_cases("dflash_llama").back();
  const std::span<const TokenId> text = std::span(one.text).first(40);
  compute_text(**executor, text, 32);
  const auto drawn = [&](const SamplingParams& params, uint64_t seed) {
    DraftProposal proposal;
    head->propose(
        {.id = 1, .tokens = text, .num_prompt_tokens = 38, .params = &params, .seed = seed, .most_computed = 7}, 7,
        proposal);
    return proposal;
  };
  const SamplingParams plain{.temperature = 1};
  const std::vector<Guess>& likeliest = one.guesses.at(40);
  constexpr int kSeeds = 600;
  std::array<int, 2> right = {};
  for (int seed = 0; seed < kSeeds; ++seed) {
    const DraftProposal found = drawn(plain, static_cast<uint64_t>(seed));
    ASSERT_EQ(found.tokens.size(), 7u);
    EXPECT_TRUE(found.num_choices.empty()) << "they are certain";
    for (size_t i = 0; i < right.size(); ++i) {
      if (found.tokens[i] != likeliest[i].token) continue;
      ++right[i];
      EXPECT_NEAR(static_cast<double>(found.agreement[i]), likeliest[i].probability, 2e-3);
    }
  }
  for (size_t i = 0; i < right.size(); ++i) {
    const double p = likeliest[i].probability;
    EXPECT_NEAR(right[i] / double{kSeeds}, p, 4 * std::sqrt(p * (1 - p) / kSeeds)) << i;
  }
  EXPECT_EQ(drawn(plain, 7).tokens, drawn(plain, 7).tokens);
  EXPECT_NE(drawn(plain, 7).tokens, drawn(plain, 8).tokens);
}

// Nothing is guessed that no answer has room for.
TEST(BlocksOfDflash, AreShorterWhereTheContextEnds) {
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 8};
  config.max_model_len = 48;
  config.speculative_config = {.method = SpeculativeMethod::kDflash, .model = head_path("dflash_llama")};
  for (const auto& [size, guessed] : {std::pair(40, 7), {44, 4}, {46, 2}, {47, 1}}) {
    SCOPED_TRACE(size);
    auto executor = make_local_executor(config, make_test_backend("auto"));
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    const std::unique_ptr<DraftProposer> head = (*executor)->take_draft_model();
    const std::vector<TokenId> text(static_cast<size_t>(size), 17);
    compute_text(**executor, text, size);
    DraftProposal proposal;
    head->propose({.id = 1, .tokens = text, .most_computed = 64}, 64, proposal);
    EXPECT_EQ(proposal.tokens.size(), static_cast<size_t>(guessed));
  }
}

// A copy of a head with another configuration.
class ChangedHead {
 public:
  ChangedHead(const std::string& from, const std::function<void(boost::json::object&)>& change)
      : folder_(std::filesystem::temp_directory_path() / ("quire_head_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(head_path(from), folder_);
    std::ifstream file(folder_ / "config.json");
    boost::json::value config = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    file.close();
    change(config.as_object());
    std::ofstream(folder_ / "config.json") << boost::json::serialize(config);
  }
  ~ChangedHead() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

TEST(HeadsThatDoNotFit, AreRefusedInASentence) {
  const auto told = [](const std::string& from, const std::function<void(boost::json::object&)>& change,
                       const std::string& model = "llama") {
    const ChangedHead head(from, change);
    auto executor = executor_with(head.path(), model);
    return executor.ok() ? std::string("accepted") : executor.status().message();
  };
  const auto nothing = [](boost::json::object&) {};
  EXPECT_EQ(told("eagle3_llama", nothing), "accepted");
  EXPECT_THAT(told("eagle3_llama", [](auto& c) { c["num_hidden_layers"] = 2; }), HasSubstr("num_hidden_layers is 2"));
  EXPECT_THAT(told("eagle3_llama", [](auto& c) { c["target_hidden_size"] = 32; }), HasSubstr("fc.weight"));
  EXPECT_THAT(told("eagle3_llama", [](auto& c) { c["draft_vocab_size"] = 95; }), HasSubstr("lm_head.weight"));
  EXPECT_THAT(told("eagle3_llama", [](auto& c) { c["eagle_aux_hidden_state_layer_ids"] = nullptr; }),
              HasSubstr("at least 6, this one has 2"));
  EXPECT_THAT(told("eagle3_whole_vocabulary",
                   [](auto& c) {
                     c["eagle_aux_hidden_state_layer_ids"] = boost::json::array{0, 2, 2};
                   }),
              HasSubstr("3 rising numbers from 0 to 2"));
  // Behind these layers, of which there are two.
  EXPECT_THAT(told("eagle3_llama",
                   [](auto& c) {
                     c["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", boost::json::array{0, 1, 2}}};
                   }),
              HasSubstr("3 rising numbers from 0 to 2"));
  EXPECT_THAT(told("eagle3_llama", nothing, "gemma2"), HasSubstr("embed_tokens.weight"));
  EXPECT_THAT(told("eagle3_llama", [](auto& c) { c["vocab_size"] = 300; }), HasSubstr("d2t["));
}

// Of a head and of another model: less memory in 8 bits, and less of it for texts that are shorter.
TEST(DraftMemory, IsLessWithAFormatAndALengthOfItsOwn) {
  const std::unique_ptr<ops::Backend> backend = make_test_backend("auto");
  const auto planned = [&](SpeculativeMethod method, const std::string& model, Quantization quantization,
                           int64_t max_model_len) {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true};
    config.speculative_config.method = method;
    config.speculative_config.model = model;
    config.speculative_config.quantization = quantization;
    config.speculative_config.max_model_len = max_model_len;
    return plan_draft_memory(config, *backend).value();
  };
  for (const auto& [method, model] : {std::pair(SpeculativeMethod::kDraftModel, tiny_path("llama")),
                                      {SpeculativeMethod::kEagle3, head_path("eagle3_llama")},
                                      {SpeculativeMethod::kDflash, head_path("dflash_windows")},
                                      {SpeculativeMethod::kMedusa, head_path("medusa_few_tokens")}}) {
    const DraftMemory whole = planned(method, model, Quantization::kNone, 0);
    EXPECT_LT(planned(method, model, Quantization::kInt8, 0).weight_bytes, whole.weight_bytes * 3 / 4) << model;
    if (method == SpeculativeMethod::kMedusa) continue;
    EXPECT_LT(planned(method, model, Quantization::kNone, 32).pool_bytes, whole.pool_bytes) << model;
  }
}

TEST(HeadsThatDoNotFit, AreNotRoundedToWhatRoundsNothing) {
  for (const auto& [method, model] : {std::pair(SpeculativeMethod::kDraftModel, tiny_path("llama")),
                                      {SpeculativeMethod::kDflash, head_path("dflash_llama")},
                                      {SpeculativeMethod::kMedusa, head_path("medusa_few_tokens")}}) {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
    config.speculative_config.method = method;
    config.speculative_config.model = model;
    config.speculative_config.quantization = Quantization::kAwq;
    const auto executor = make_local_executor(config, make_test_backend("auto"));
    ASSERT_FALSE(executor.ok());
    EXPECT_THAT(executor.status().message(), HasSubstr("speculative_config: model: ")) << model;
    EXPECT_THAT(executor.status().message(), HasSubstr("awq")) << model;
  }
}

TEST(NextLayers, AreRefusedWhereThereAreNone) {
  const auto told = [](const std::string& model) {
    auto executor = executor_with("", model, SpeculativeMethod::kMtp);
    return executor.ok() ? std::string("accepted") : executor.status().message();
  };
  EXPECT_EQ(told(head_path("deepseek_v3_mtp")), "accepted");
  EXPECT_EQ(told(head_path("qwen3_5_mtp")), "accepted");
  EXPECT_THAT(told("llama"), HasSubstr("speculative_config: model: layers that predict further tokens are read of "
                                       "DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM, "));
  EXPECT_THAT(told("llama"), HasSubstr("this is LlamaForCausalLM"));
  EXPECT_THAT(told("qwen3_5"), HasSubstr("mtp.pre_fc_norm_embedding.weight"));
  const ChangedHead none_apart("qwen3_5_mtp", [](auto& c) { c["mtp_num_hidden_layers"] = 0; });
  EXPECT_THAT(told(none_apart.path()), HasSubstr("mtp_num_hidden_layers is 0"));
  const ChangedHead own_table("qwen3_5_mtp", [](auto& c) { c["mtp_use_dedicated_embeddings"] = true; });
  EXPECT_THAT(told(own_table.path()), HasSubstr("mtp_use_dedicated_embeddings is true"));
  EXPECT_THAT(told("deepseek_v3"), HasSubstr("model.layers.2.enorm.weight"));
  const ChangedHead none("deepseek_v3_mtp", [](auto& c) { c["num_nextn_predict_layers"] = 0; });
  EXPECT_THAT(told(none.path()), HasSubstr("num_nextn_predict_layers is 0"));
  // The layer of one model over another of its sizes, and of other sizes.
  EXPECT_TRUE(executor_with(head_path("deepseek_v3_mtp"), "deepseek_v3", SpeculativeMethod::kMtp).ok());
  const ChangedHead first("deepseek_v3_mtp", [](auto& c) { c["num_hidden_layers"] = 1; });
  EXPECT_THAT(told(first.path()), HasSubstr("model.layers.1.enorm.weight"));
}

TEST(HeadsOfEagle, AreRefusedWhereTheyDoNotFit) {
  const auto told = [](const std::function<void(boost::json::object&)>& change, const std::string& model = "llama") {
    const ChangedHead head("eagle_llama", change);
    auto executor = executor_with(head.path(), model, SpeculativeMethod::kEagle);
    return executor.ok() ? std::string("accepted") : executor.status().message();
  };
  const auto nothing = [](boost::json::object&) {};
  EXPECT_EQ(told(nothing), "accepted");
  EXPECT_EQ(told(nothing, "qwen2"), "accepted") << "as good as it may be, of the same sizes";
  EXPECT_THAT(told([](auto& c) { c["num_hidden_layers"] = 2; }), HasSubstr("num_hidden_layers is 2"));
  EXPECT_THAT(told([](auto& c) { c["hidden_size"] = 32; }), HasSubstr("fc.weight"));
  EXPECT_THAT(told([](auto& c) { c["vocab_size"] = 300; }), HasSubstr("has 300 tokens"));
  EXPECT_THAT(told(nothing, "gemma2"), HasSubstr("which Gemma2ForCausalLM has otherwise"));
  EXPECT_THAT(told(nothing, "gpt2"), HasSubstr("which GPT2LMHeadModel has otherwise"));
  // EAGLE-3's has other tensors.
  auto other = executor_with(head_path("eagle3_llama"), "llama", SpeculativeMethod::kEagle);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.status().message(), HasSubstr("layers.0.self_attn.q_proj.weight"));
}

TEST(HeadsOfMedusa, AreRefusedWhereTheyDoNotFit) {
  const auto told = [](const std::string& name, const std::function<void(boost::json::object&)>& change,
                       const std::string& model = "llama") {
    const ChangedHead head(name, change);
    auto executor = executor_with(head.path(), model, SpeculativeMethod::kMedusa);
    return executor.ok() ? std::string("accepted") : executor.status().message();
  };
  const auto nothing = [](boost::json::object&) {};
  EXPECT_EQ(told("medusa_llama", nothing), "accepted");
  EXPECT_EQ(told("medusa_llama", [](auto& c) { c["medusa_num_heads"] = 2; }), "accepted") << "the first of them";
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["medusa_num_heads"] = 5; }), HasSubstr("4.0.linear.weight"));
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["medusa_num_heads"] = 65; }), HasSubstr("medusa_num_heads"));
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["medusa_num_layers"] = 3; }), HasSubstr("0.3.weight is missing"));
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["medusa_num_layers"] = 1; }), HasSubstr("0.1.weight is missing"));
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["vocab_size"] = 300; }), HasSubstr("more than the 300 tokens"));
  EXPECT_THAT(told("medusa_llama", [](auto& c) { c["vocab_size"] = 600; }), HasSubstr("token_map is missing"));
  EXPECT_THAT(told("medusa_few_tokens", [](auto& c) { c["vocab_size"] = 300; }), HasSubstr("token_map["));
  EXPECT_THAT(told("medusa_few_tokens", [](auto& c) { c["vocab_size"] = 600; }), HasSubstr("has 600 tokens"));
  EXPECT_THAT(told("medusa_few_tokens", [](auto& c) { c["hidden_size"] = 32; }), HasSubstr("blocks.0.layers.0.weight"));
  EXPECT_THAT(told("eagle3_llama", nothing), HasSubstr("these are no heads of Medusa"));
  // One head over the vocabulary for all: a head's own where it has one, else the model's.
  EXPECT_EQ(told("medusa_few_tokens", [](auto& c) { c["original_lm_head"] = true; }), "accepted");
  EXPECT_THAT(told("medusa_blocks", [](auto& c) { c["vocab_size"] = nullptr; }), HasSubstr("vocab_size"));
  EXPECT_THAT(told("medusa_blocks", [](auto& c) { c["original_lm_head"] = false; }), HasSubstr("lm_heads.0.weight"));
  EXPECT_THAT(told("medusa_blocks", nothing, "gemma2"), HasSubstr("which Gemma2ForCausalLM has otherwise"));
}

TEST(HeadsOfDflash, AreRefusedWhereTheyDoNotFit) {
  using Object = boost::json::object;
  const auto told = [](const std::string& name, const std::function<void(Object&)>& change,
                       const std::string& model = "llama", int32_t tokens = 0) {
    const ChangedHead head(name, change);
    auto executor = executor_with(head.path(), model, SpeculativeMethod::kDflash, tokens);
    return executor.ok() ? std::string("accepted") : executor.status().message();
  };
  const auto inside = [](const char* member, boost::json::value value) {
    return [=](Object& c) { c["dflash_config"].as_object()[member] = value; };
  };
  const auto outside = [](const char* member, boost::json::value value) {
    return [=](Object& c) { c[member] = value; };
  };
  const auto nothing = [](Object&) {};
  const std::string plain = "dflash_llama";
  EXPECT_EQ(told(plain, nothing), "accepted");
  EXPECT_EQ(told(plain, nothing, "llama", 7), "accepted");
  EXPECT_THAT(told(plain, nothing, "llama", 8), HasSubstr("blocks have 8 tokens"));
  EXPECT_EQ(told(plain, nothing, "qwen2"), "accepted") << "as good as it may be, of the same sizes";
  EXPECT_THAT(told(plain, nothing, "gemma2"), HasSubstr("which Gemma2ForCausalLM has otherwise"));
  // What does not go with the tensors, or with the model.
  EXPECT_THAT(told(plain, outside("num_hidden_layers", 3)), HasSubstr("layers.2."));
  EXPECT_THAT(told(plain, outside("num_hidden_layers", 1)), HasSubstr("layers.1."));
  EXPECT_THAT(told(plain, outside("hidden_size", 32)), HasSubstr("fc.weight"));
  EXPECT_THAT(told(plain, outside("attention_bias", true)), HasSubstr("q_proj.bias"));
  EXPECT_THAT(told(plain, outside("vocab_size", 600)), HasSubstr("has 600 tokens"));
  EXPECT_THAT(told(plain, outside("num_target_layers", 36)), HasSubstr("a model of 36 layers (num_target_layers)"));
  EXPECT_THAT(told(plain, inside("target_layer_ids", {0})), HasSubstr("fc.weight"));
  EXPECT_THAT(told(plain, inside("target_layer_ids", {0, 2})), HasSubstr("from 0 to 1, found 2"));
  EXPECT_THAT(told(plain, inside("target_layer_ids", {1, 0})), HasSubstr("rising numbers, each once"));
  EXPECT_THAT(told(plain, inside("target_layer_ids", {-1, 0})), HasSubstr("-1 is no layer"));
  EXPECT_THAT(told(plain, inside("target_layer_ids", nullptr)), HasSubstr("the head names no layers"));
  EXPECT_THAT(told(plain, inside("mask_token_id", 512)), HasSubstr("mask_token_id is 512"));
  EXPECT_THAT(told(plain, inside("mask_token_id", nullptr)), HasSubstr("mask_token_id is missing"));
  EXPECT_THAT(told(plain, outside("block_size", 1)), HasSubstr("block_size is 1"));
  EXPECT_THAT(told("dflash_windows", outside("use_sliding_window", false)), HasSubstr("give them no window"));
  // Of other heads, and what is not built.
  EXPECT_THAT(told(plain, outside("architectures", {"DFlash2DraftModel"})), HasSubstr("heads of DFlashDraftModel"));
  EXPECT_THAT(told(plain, outside("speculators_model_type", "dflash")), HasSubstr("format of Speculators"));
  EXPECT_THAT(told(plain, inside("projector_type", "domino")), HasSubstr("dflash_config.projector_type: heads with"));
  EXPECT_EQ(told(plain, inside("attention_sink_bias", false)), "accepted");
  EXPECT_THAT(told(plain, outside("output_multiplier", 0.5)), HasSubstr("output_multiplier: heads with"));
  EXPECT_THAT(told(plain, outside("is_neox_style", false)), HasSubstr("is_neox_style false: heads with"));
  EXPECT_THAT(told(plain, outside("draft_vocab_size", 300)), HasSubstr("draft_vocab_size is 300"));
  EXPECT_THAT(told(plain, outside("dflash_config", 3)), HasSubstr("dflash_config must be an object"));
  EXPECT_THAT(told("eagle_llama", nothing), HasSubstr("heads of DFlashDraftModel"));
}

TEST(HeadsOfDflash, SayWhatTheyReadInsideOrBeside) {
  boost::json::object config = {{"hidden_size", 64},
                                {"intermediate_size", 96},
                                {"num_attention_heads", 4},
                                {"num_hidden_layers", 5},
                                {"vocab_size", 512},
                                {"rms_norm_eps", 1e-6},
                                {"rope_theta", 1000000.0},
                                {"num_key_value_heads", 2},
                                {"head_dim", 16},
                                {"num_target_layers", 36},
                                {"dflash_config", {{"mask_token_id", 9}}}};
  const auto read = [&] {
    auto found = models::read_dflash_config(config, {});
    EXPECT_TRUE(found.ok()) << found.status().message();
    return models::dflash_config(*found);
  };
  // The usual ones, and the usual size.
  EXPECT_THAT(read().layers, testing::ElementsAre(1, 9, 17, 25, 33));
  EXPECT_EQ(read().block_size, 16);
  EXPECT_EQ(read().mask_token, 9);
  EXPECT_FALSE(read().causal.has_value());
  config["block_size"] = 10;
  EXPECT_EQ(read().block_size, 10);
  config["dflash_config"] = {{"mask_token_id", 9}, {"block_size", 12}, {"causal", true}, {"target_layer_ids", {3, 30}}};
  EXPECT_EQ(read().block_size, 12);
  EXPECT_EQ(read().causal, true);
  EXPECT_THAT(read().layers, testing::ElementsAre(3, 30));
  config["is_causal"] = false;
  EXPECT_EQ(read().causal, false);
}

TEST(HeadsLayers, AreThoseThatItNamesOrTheUsual) {
  boost::json::object config = {{"hidden_size", 64},       {"intermediate_size", 96},     {"num_attention_heads", 4},
                                {"num_hidden_layers", 1},  {"vocab_size", 512},           {"rms_norm_eps", 1e-5},
                                {"rope_theta", 10000.0},   {"hidden_act", "silu"},        {"num_key_value_heads", 2},
                                {"draft_vocab_size", 100}, {"tie_word_embeddings", false}};
  const auto layers = [&](int32_t of) {
    auto read = models::read_eagle3_config(config, {});
    EXPECT_TRUE(read.ok()) << read.status().message();
    return models::eagle3_layers(*read, of).value();
  };
  EXPECT_THAT(layers(32), testing::ElementsAre(2, 16, 29));
  config["eagle_aux_hidden_state_layer_ids"] = {1, 13, 28};
  EXPECT_THAT(layers(32), testing::ElementsAre(1, 13, 28));
  config["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", boost::json::array{1, 46, 90}}};
  EXPECT_THAT(layers(94), testing::ElementsAre(2, 47, 91));
}

// Rows whose states are their positions, once for each of two layers.
class Store : public testing::Test {
 protected:
  static constexpr int64_t kSize = 2;

  void settle(const std::vector<ScheduledSequence>& runs, std::vector<SequenceId> retired = {}) {
    StepPlan plan;
    plan.retired = std::move(retired);
    plan.scheduled = runs;
    std::vector<float> positions;
    for (const ScheduledSequence& run : runs) {
      for (int32_t i = 0; i < run.num_rows(); ++i) {
        positions.push_back(static_cast<float>(run.num_computed_tokens + i + (i < run.num_new_tokens ? 0 : 1000)));
      }
    }
    std::vector<float> memory(4096);
    nn::Workspace workspace(memory.data(), static_cast<int64_t>(memory.size()));
    nn::Batch batch;
    batch.num_tokens = static_cast<int64_t>(positions.size());
    const nn::StepContext step{.backend = *backend_, .batch = batch, .workspace = workspace};
    nn::HiddenStates states(step, kSize);
    for (size_t i = 0; i < 2 * positions.size(); ++i) {
      states.residual.floats()[i] = positions[i / 2];
      states.delta.floats()[i] = 0.5f;
    }
    taps_.take(step, 0, states);
    states.pending = true;
    taps_.take(step, 1, states);
    const Status settled = store_.settle(StepRows::of(plan), taps_.all());
    EXPECT_TRUE(settled.ok()) << settled.message();
  }
  // The position that the row at this one is of.
  float at(SequenceId id, int32_t position) const {
    const float* row = store_.rows(id, position);
    EXPECT_EQ(row[0], row[1]);
    EXPECT_EQ(row[2], row[0] + 0.5f) << "with what is still to be added";
    EXPECT_EQ(row[3], row[2]);
    return row[0];
  }

  const std::unique_ptr<ops::Backend> backend_ = make_test_backend("reference");
  TappedStates taps_{{0, 2}, kSize, *backend_, 64};
  HiddenStore store_{{0, 2}, kSize, 10};
};

TEST_F(Store, KeepsRowsByPositionUntilTheyAreDropped) {
  settle({{.id = 1, .num_new_tokens = 3}, {.id = 2, .num_computed_tokens = 16, .num_new_tokens = 2}});
  settle({{.id = 1, .num_computed_tokens = 3, .num_new_tokens = 1, .num_draft_tokens = 2}});
  EXPECT_EQ(store_.begin(1), 0);
  EXPECT_EQ(store_.end(1), 6);
  EXPECT_EQ(store_.begin(2), 16);
  EXPECT_EQ(store_.end(2), 18);
  EXPECT_EQ(at(1, 3), 3);
  EXPECT_EQ(at(1, 5), 1005);
  settle({{.id = 1, .num_computed_tokens = 5, .num_new_tokens = 1}});  // one guess was right
  EXPECT_EQ(store_.end(1), 6);
  EXPECT_EQ(at(1, 4), 1004);
  EXPECT_EQ(at(1, 5), 5);
  store_.drop_before(1, 4);
  EXPECT_EQ(store_.begin(1), 4);
  EXPECT_EQ(at(1, 4), 1004);
  settle({{.id = 1, .num_new_tokens = 2}});  // computed again
  EXPECT_EQ(store_.begin(1), 0);
  EXPECT_EQ(store_.end(1), 2);
  settle({}, {1});
  EXPECT_EQ(store_.end(1), 0);
  store_.forget(2);
  EXPECT_EQ(store_.end(2), 0);
  EXPECT_EQ(store_.bytes(), 10 * 2 * kSize * 4);
}

TEST_F(Store, RefusesStatesOfAnotherNumberOfRows) {
  settle({{.id = 1, .num_new_tokens = 3}});
  StepPlan plan;
  plan.retired = {1};
  plan.scheduled = {{.id = 2, .num_new_tokens = 4}};
  for (const int64_t count : {int64_t{0}, 4 * 2 * kSize - 1, 4 * 2 * kSize + 1}) {
    const std::vector<float> states(static_cast<size_t>(count));
    EXPECT_THAT(store_.settle(StepRows::of(plan), states).message(), testing::HasSubstr("expected 16"));
  }
  EXPECT_EQ(store_.end(1), 3) << "nothing is changed";
  EXPECT_EQ(store_.end(2), 0);
}

TEST_F(Store, LetsTheOldestRowsOfTheLongestGo) {
  settle({{.id = 1, .num_new_tokens = 7}, {.id = 2, .num_new_tokens = 2}});
  settle({{.id = 2, .num_computed_tokens = 2, .num_new_tokens = 2}});
  EXPECT_GT(store_.begin(1), 0);
  EXPECT_EQ(store_.end(1), 7);
  EXPECT_EQ(at(1, 6), 6);
  EXPECT_EQ(store_.begin(2), 0);
  settle({{.id = 3, .num_new_tokens = 30}});  // more than all that there may be
  EXPECT_EQ(store_.end(3), 30);
  EXPECT_GE(store_.begin(3), 20);
  EXPECT_EQ(at(3, 29), 29);
}

}  // namespace
}  // namespace quire::runner
