// What a plan may ask for and this runner does not do: it fails the sequence that asks, by the field's name, and no
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "runner/local_executor.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

struct RefusedField {
  const char* named;
  std::function<void(NewSequence&, ScheduledSequence&)> ask;
};

class RefusedFields : public testing::Test {
 protected:
  static constexpr int32_t kPrompt = 6;

  RefusedFields() {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 8};
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 32;
    auto executor = make_local_executor(config, make_test_backend("auto"));
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    if (executor.ok()) executor_ = std::move(*executor);
  }
  // Of a sequence that asks, and of one that does not. samples: their whole prompts, not a part.
  StepResult step(const RefusedField& field, bool samples) {
    StepPlan plan;
    plan.retired = std::exchange(known_, {next_id_, next_id_ + 1});
    for (const BlockId block : {1, 2}) {
      const SequenceId id = next_id_++;
      NewSequence added{.id = id, .prompt = std::vector<TokenId>(kPrompt, 5), .params = params_};
      ScheduledSequence run{.id = id, .num_new_tokens = samples ? kPrompt : kPrompt - 2, .samples = samples};
      tell_whole_table(plan, id, 0, std::vector<BlockId>{block});
      if (block == 1) field.ask(added, run);
      plan.added.push_back(std::move(added));
      plan.scheduled.push_back(std::move(run));
      plan.draft_tokens.resize(plan.draft_tokens.size() + static_cast<size_t>(plan.scheduled.back().num_draft_tokens),
                               5);
      plan.num_tokens += plan.scheduled.back().num_rows();
    }
    executor_->submit(plan);
    auto done = executor_->collect();
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? std::move(done->result) : StepResult();
  }

  const std::vector<RefusedField> fields_ = {
      {"adapter: 7 ", [](NewSequence& added, ScheduledSequence&) { added.adapter = 7; }},
      {"output_kind: scores", [](NewSequence& added, ScheduledSequence&) { added.output_kind = OutputKind::kScore; }},
      {"output_kind: hidden states",
       [](NewSequence& added, ScheduledSequence&) { added.output_kind = OutputKind::kHiddenState; }},
      {"media: ", [](NewSequence& added, ScheduledSequence&) { added.media = {{.first = 1, .count = 2, .media = 3}}; }},
      {"draft_tokens: 2 ",  // of a run that does not sample, or whose candidates are asked for
       [](NewSequence&, ScheduledSequence& run) {
         run.num_draft_tokens = 2;
         run.num_candidates = run.samples ? 1 : 0;
       }},
  };
  const std::shared_ptr<const SamplingParams> params_ =
      std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0});
  std::unique_ptr<Executor> executor_;
  SequenceId next_id_ = 1;
  std::vector<SequenceId> known_;
};

TEST_F(RefusedFields, FailTheSequenceThatAsksForThemByTheirName) {
  for (const RefusedField& field : fields_) {
    for (const bool samples : {true, false}) {
      const StepResult result = step(field, samples);
      ASSERT_EQ(result.sequences.size(), 2u);
      const Status& error = result.sequences[0].error;
      EXPECT_EQ(error.code(), StatusCode::kUnimplemented) << field.named << ", samples: " << samples;
      EXPECT_THAT(error.message(), HasSubstr(field.named));
      EXPECT_TRUE(result.sequences[0].tokens.empty());
      EXPECT_TRUE(result.sequences[1].error.ok()) << result.sequences[1].error.message();
      EXPECT_EQ(result.sequences[1].tokens.size(), samples ? 1u : 0u);
    }
  }
}

}  // namespace
}  // namespace quire::runner
