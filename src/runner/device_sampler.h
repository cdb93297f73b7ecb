// Draws tokens, and scores them, where the logits lie: on a device with memory of its own, for rows of requests that
// ask for nothing that only the host can do. What comes to the host is the tokens, and of those who asked the likeliest
// with their log-probabilities.
#pragma once

#include <span>
#include <vector>

#include "ops/backend.h"
#include "runner/edit_lists.h"
#include "runner/input_batch.h"
#include "runner/step_numbers.h"
#include "sampling/scratch.h"

namespace quire::runner {

// Of the rows of a step, when finish() has returned.
struct DrawnRows {
  const int32_t* tokens = nullptr;  // [rows]; of rows with a target any
  const ops::RankedToken* ranks = nullptr;
  std::vector<ops::RowLogprobs> logprobs;  // [rows]: which of `ranks` are whose
  int tokens_download = 0;
  int ranks_download = 0;
  int64_t bytes_up = 0;  // for the device to draw them by
  double collect = 0;    // of the host's, until they were on their way
};

struct PlannedModel;

class DeviceSampler {
 public:
  struct Limits {
    int64_t vocab_size = 0;
    int64_t max_num_tokens = 0;  // of a step
    int64_t max_num_seqs = 0;    // of a step
    int64_t max_model_len = 0;
  };
  // Rows that are edited at once: their logits and their lists take memory of their own.
  static constexpr int64_t kEditedRows = 64;
  static Limits limits_of(const PlannedModel& planned);
  // Of the device's memory.
  static int64_t device_bytes(const Limits& limits);

  // The backend must outlive the sampler.
  DeviceSampler(ops::Backend& backend, const Limits& limits);
  bool has_memory() const;

  // Is this a row for the device? That goes by what its request asks for, not by the step it is in.
  static bool draws(const LogitRow& row, const SequenceState& state);

  // A step's rows are drawn in pieces, one after the other, between begin() and end(). states:
  // those of the rows. step_number: of steps that are drawn each has the next.
  DrawnRows begin(std::span<const LogitRow> rows, std::span<const SequenceState* const> states, uint64_t step_number);
  // Rows [first, first + rows.size()) of the step, the first `num_edited` of them with edits. logits: theirs, on the
  // device, which stay as they are. REQUIRES: masks are made.
  void draw(std::span<const LogitRow> rows, std::span<const SequenceState* const> states, size_t num_edited,
            const float* logits, size_t first, DrawnRows& drawn, sampling::SamplingScratch& scratch);
  // Begins to bring what was drawn to the host, where it stays until end() is called for the step after the next.
  void end(DrawnRows& drawn);
  // Waits for it.
  void finish(const DrawnRows& drawn);

  // Of the last step, on the device.
  const int32_t* tokens() const { return tokens_.as<int32_t>() + half_ * limits_.max_num_tokens; }
  // Sequences that are no more, or have become others.
  void forget(SequenceId id) { lists_.forget(id); }

 private:
  // The same of at most kEditedRows that are edited.
  void draw_few_edited(std::span<const LogitRow> rows, std::span<const SequenceState* const> states, size_t num_edited,
                       const float* logits, size_t first, DrawnRows& drawn, sampling::SamplingScratch& scratch);
  void collect(std::span<const LogitRow> rows, std::span<const SequenceState* const> states, size_t num_edited,
               sampling::SamplingScratch& scratch);
  void choose(const float* logits, size_t count, Mirrored<ops::TokenChoice> choices, int32_t* tokens);

  ops::Backend& backend_;
  const Limits limits_;
  EditLists lists_;
  int64_t half_ = 0;    // that the last step's tokens are in, and its ranks on the host
  Buffer edited_;       // [kEditedRows, vocab_size]
  Buffer tokens_;       // [2, max_num_tokens], of the last two steps: lists count those of one while the next is drawn
  Buffer ranks_;        // [max_num_tokens, 1 + kMostTopLogprobs]
  Buffer host_tokens_;  // [2, max_num_tokens], of the last two steps
  Buffer host_ranks_;   // [2, max_num_tokens, 1 + kMostTopLogprobs]
  // Of a piece:
  std::vector<ops::TokenChoice> choices_;
  std::vector<ops::RowEdits> row_edits_;
  std::vector<ops::LogitEdit> edits_;
  std::vector<uint32_t> masks_;
  StepNumbers numbers_;
};

}  // namespace quire::runner
