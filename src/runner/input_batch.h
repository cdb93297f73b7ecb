// What the worker knows of each sequence, and the flat batch it makes of a plan.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "nn/batch.h"
#include "runner/pooling.h"
#include "runner/shared_spans.h"
#include "runner/step_numbers.h"
#include "runner/step_shapes.h"
#include "sampling/sequence_sampler.h"
#include "types/step_plan.h"

namespace quire::runner {

class Adapter;

struct SequenceState {
  sampling::TokenHistory tokens;  // prompt, then what was sampled
  int32_t num_prompt_tokens = 0;
  std::shared_ptr<const SamplingParams> params;
  sampling::SequenceSampler sampler;
  int32_t num_virtual_tokens = 0;    // of the prompt: NewSequence has them
  const Adapter* adapter = nullptr;  // as long as the sequence is scheduled; nullptr: the model as it is
  BlockTables tables;                // [num_groups], as the last plan left them
  // The token after those above was chosen on the device and is not known here yet: its place among the tokens that
  // step `pending_step` of the runner chose. Below 0: there is none.
  int32_t pending_row = -1;
  uint64_t pending_step = 0;
  bool is_constrained = false;  // by a constraint that the rank may not know which samples nothing
  OutputKind output_kind = OutputKind::kToken;
  int32_t second_text = -1;   // as NewSequence has it
  int32_t pooled_from = 0;    // the same
  HiddenPool pool;            // of the other kinds
  bool draft_failed = false;  // in this step: the rows that are left of it are void
  // A row gave no token. Steps planned ahead of that go on with a made-up one; nobody will look at what they give.
  Status fault;

  // The next token of the text.
  void take(TokenId token) {
    tokens.push_back(token);
    sampler.accept(token);
  }
};

// A row of the batch whose logits somebody wants.
struct LogitRow {
  int32_t row = 0;             // of the flat batch
  int32_t sequence = 0;        // index into the plan's `scheduled`
  TokenId target = kNoToken;   // the prompt token that this row predicts; kNoToken: sample
  int32_t num_candidates = 0;  // over 0: instead of sampling, the likeliest tokens
  // Of a run with draft tokens, whose rows follow each other: which of them this is, from 0 on, and the guess of what
  // it samples (kNoToken: of the last there is none). The rows behind the first that samples something else are void.
  int32_t draft_row = -1;  // below 0: of a run without
  TokenId draft = kNoToken;
  std::span<const DraftProbability> drawn_from;  // the plan's, of the guess; empty: it is certain
  SequenceId id = 0;
};

class InputBatch {
 public:
  // num_groups: of layers with block tables of their own. The backend must outlive the batch.
  InputBatch(ops::Backend& backend, int32_t num_groups)
      : backend_(backend), numbers_(backend), groups_(static_cast<size_t>(num_groups)) {}
  size_t num_groups() const { return groups_.size(); }

  // From now on a step takes one of these shapes where one is large enough: what is missing is made up of its first
  // token once more, as sequences of their own, which are stored nowhere. As long as place() stays what it is, the
  // numbers of all steps of a shape lie at the same places on the device; of a mixed step those of its tokens.
  // max_num_tokens: of any step, to make room for.
  void use_shapes(StepShapes shapes, int64_t max_num_tokens);
  uint64_t place() const { return numbers_.place(); }
  // From now on batches tell which of its two texts a token is of.
  // num_types: of the model; with one of them it is the same for both.
  void use_text_types(int64_t num_types) {
    tells_text_types_ = true;
    second_text_type_ = num_types > 1 ? 1 : 0;
  }

  // Builds from the plan. REQUIRES: states holds every scheduled sequence; its known tokens, and the pending
  // one, and its tables reach the end of its run.
  void build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states, int32_t block_size);

  // Instead: a step of the shape, of one sequence of one token, stored in the pool's first slot. REQUIRES:
  // use_shapes().
  void build_example(const DecodeShape& shape);

  int64_t num_tokens() const { return std::ssize(token_ids_); }
  // The shape that was taken; none: that of the plan.
  const std::optional<StepShape>& shape() const { return shape_; }

  // Views of this object, valid until the next build; where the device reads them.
  nn::Batch view(std::span<const nn::CacheLayer> layers);
  // Puts the pending tokens where view() uploaded ids. `chosen`: the tokens of the step before, on the device.
  void place_tokens(const int32_t* chosen);
  // What is to be recorded, of the same numbers on the device: of a shape that decodes the host sees the most that any
  // of its steps has, contexts as long as their blocks. REQUIRES: shape(), and view() since the last build; view()'s
  // result is no longer valid.
  nn::Batch as_recorded(std::span<const nn::CacheLayer> layers, int32_t block_size);
  const std::vector<LogitRow>& logit_rows() const { return logit_rows_; }

 private:
  struct Group {
    std::vector<int64_t> slots;         // [num_tokens]
    std::vector<BlockId> block_tables;  // [num_sequences, block_table_stride_]
    SharedSpans shared;                 // num_shared_spans_ of them
  };

  void clear();
  std::optional<StepShape> shape_of(const StepPlan& plan) const;
  void add_run(const ScheduledSequence& scheduled, const BlockTables& tables, size_t index, int32_t block_size);
  void fill_up(size_t num_tokens);
  void find_shared(const StepPlan& plan, int32_t block_size);
  void check_tables() const;
  size_t num_bytes(size_t num_tokens, size_t num_sequences, size_t stride, size_t num_spans) const;

  ops::Backend& backend_;
  StepNumbers numbers_;
  StepShapes shapes_;
  std::optional<StepShape> shape_;
  nn::Batch view_;
  std::vector<int32_t> longest_contexts_;  // of as_recorded()
  std::vector<BlockId> no_blocks_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> sources_;  // [num_tokens], of pending tokens: where they are; of others -1
  bool any_pending_ = false;
  Mirrored<int32_t> sources_view_;
  std::vector<int32_t> positions_;
  bool tells_text_types_ = false;
  int32_t second_text_type_ = 0;
  std::vector<int32_t> text_types_;  // [num_tokens] where they are told, else empty
  std::vector<Group> groups_;
  std::vector<nn::CacheGroup> group_views_;
  std::vector<int32_t> query_offsets_;
  std::vector<int32_t> context_lengths_;
  std::vector<int32_t> prompt_lengths_;
  std::vector<int32_t> num_drafts_;    // [num_sequences]; empty: none
  std::vector<int32_t> num_replayed_;  // the same
  size_t block_table_stride_ = 0;
  std::vector<SequenceState*> states_;  // of the plan's sequences, while it is built
  std::vector<SpanReader> readers_;     // of a group
  int32_t num_shared_spans_ = 0;        // 0: it is not worth telling who shares them
  std::vector<LogitRow> logit_rows_;
};

}  // namespace quire::runner
