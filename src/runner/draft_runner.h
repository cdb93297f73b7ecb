// What models that draft have in common: a runner of their own between the steps of the larger model, keys and values
// of the texts in a pool of its own, guesses out of what the runner says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "ops/backend.h"
#include "runner/memory_planner.h"
#include "runner/model_runner.h"
#include "types/draft_proposer.h"
#include "types/engine_config.h"

namespace quire::runner {

// A model that drafts, as it is planned: with a pool for a few texts as long as the larger model's may be.
struct PlannedDrafter {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  PlannedModel planned;
};
// config: of the larger model; its speculative_config names this one. family: nullptr: the checkpoint's own. Errors:
// those of reading and planning a model.
Result<PlannedDrafter> plan_drafter(const EngineConfig& config, ops::Backend& backend, const models::Family* family);

class DraftRunner {
 public:
  // A text as far as it is computed.
  struct Text {
    SequenceId id = 0;  // the runner's; 0: it knows nothing of it
    int32_t num_computed = 0;
    // A group of layers each, all of one length. A group of states has two blocks of its own, which take turns: of the
    // blocks of a text nobody goes on from any but the last.
    std::vector<std::vector<BlockId>> tables;
    uint64_t last_used = 0;
    std::shared_ptr<const SamplingParams> drawn_by;  // the request's, where it draws; nullptr: not made yet
  };

  // draws: for requests that draw; else the likeliest token is guessed.
  DraftRunner(PlannedDrafter drafter, std::unique_ptr<ModelRunner> runner, bool draws);

  const PlannedModel& planned() const { return drafter_.planned; }
  const checkpoint::Checkpoint& checkpoint() const { return *drafter_.checkpoint; }
  double seconds_per_token() const { return seconds_per_token_; }
  // Of computing so many tokens of a text at once, as far as that is known.
  double seconds_of(int32_t tokens) const { return std::max(tokens, 0) * seconds_per_row_; }
  // How many tokens of a text are computed.
  int32_t num_computed(SequenceId id) const;
  // Whether it has states, which do not go back: num_computed of a text is lowered to 0 alone, by forget().
  bool keeps_states() const { return planned().memory.keeps_states; }

  // That of a sequence, as the one that was used last.
  Text& text_of(SequenceId id);
  void ended(SequenceId id);
  void forget(Text& text);
  // Blocks for the first `end` tokens, if need be those of whoever has not been asked for longest. False: there are
  // not so many.
  bool find_room(Text& text, int32_t end);

  // Who looks on while the model runs over rows [first, first + count).
  struct Hooks {
    virtual ~Hooks() = default;
    virtual void before_run(int32_t /*first*/, int32_t /*count*/) {}
    virtual void after_run(int32_t /*count*/) {}
  };
  // Guesses what follows `tokens`, at most `most` tokens; the first text.num_computed of them are computed. asked:
  // whose answer it is, and how it is drawn. In the end num_computed counts the tokens and, without states, all guesses
  // but the last: states of guesses lie in blocks of their own as long as this takes.
  // REQUIRES: find_room() of tokens and guesses but the last; num_computed < tokens.size().
  void guess(const DraftText& asked, std::span<const TokenId> tokens, int32_t most, Text& text, Hooks& hooks,
             DraftProposal& proposal);

  // Computes `tokens` from text.num_computed on without choosing any, in runs of which the last has at least
  // `num_last` of them. False: a run failed. Which of them stay computed is the caller's to say. REQUIRES: find_room()
  // of all; text.num_computed <= tokens.size() - num_last; num_last is at most a step's tokens.
  bool compute(std::span<const TokenId> tokens, int32_t num_last, Text& text, Hooks& hooks);

 private:
  // The block of the text's last state in each group that has states, while its place in the table is another's.
  struct SetAside {
    size_t group = 0;
    size_t index = 0;  // in the table
    BlockId block = kNoBlock;
  };

  size_t num_groups() const { return planned().memory.windows.size(); }
  // From the plan's run on a text of so many computed tokens changes copies of its last states.
  std::vector<SetAside> set_states_aside(Text& text, StepPlan& plan);
  void put_back(const std::vector<SetAside>& aside, Text& text);
  // What the runner is to know of a text: the first so many tokens are the prompt, the rest the answer.
  struct Told {
    std::span<const TokenId> tokens;
    size_t num_prompt_tokens = 0;
    std::shared_ptr<const SamplingParams> params;
    uint64_t seed = 0;
  };
  Told told_of(const DraftText& asked, std::span<const TokenId> tokens, bool draws, Text& text) const;
  StepPlan first_plan(Text& text, const Told& told, std::span<const TokenId> guesses);
  SequenceResult run(StepPlan plan);

  PlannedDrafter drafter_;
  std::unique_ptr<ModelRunner> runner_;
  bool draws_;
  std::shared_ptr<const SamplingParams> likeliest_;  // that token, and how likely it is
  std::shared_ptr<const SamplingParams> choices_;    // and the next ones
  std::unordered_map<SequenceId, Text> texts_;
  std::vector<BlockId> free_;
  std::vector<SequenceId> retired_;  // for the next plan
  SequenceId next_id_ = 0;
  uint64_t num_steps_ = 0;
  uint64_t num_used_ = 0;
  void observe_rows(int32_t rows, double seconds);
  double seconds_per_token_ = 0;
  double seconds_per_row_ = 0;  // of many at once
};

}  // namespace quire::runner
