// One worker: a model on a backend, its KV storage, and what is known of the running sequences. Runs plans.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "models/model.h"
#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/input_batch.h"
#include "runner/kv_storage.h"
#include "runner/mask_thread.h"
#include "runner/memory_planner.h"
#include "runner/step_recorder.h"

namespace quire::runner {

struct RowOutcome;

class ModelRunner {
 public:
  // Takes the memory that the plan names. Errors: resource_exhausted. The backend must outlive the runner.
  static Result<std::unique_ptr<ModelRunner>> create(const PlannedModel& planned, std::unique_ptr<models::Model> model,
                                                     ops::Backend& backend);

  ExecutedStep execute(const StepPlan& plan);

  // Walks through a step of the most tokens there may be without computing it, and returns the bytes of workspace that
  // it took. More than was planned is a fault of the model's estimate and ends the process here, not under load.
  int64_t measure_workspace();
  // Where steps that decode are recorded: those of every number of sequences and of contexts of up to 512 tokens; those
  // of longer ones are when they first come up. REQUIRES: nothing has been computed yet.
  void record_steps();

  // As KvStorage::measure_swap(). REQUIRES: swap space.
  double measure_swap() { return storage_.measure_swap(backend_); }

 private:
  ModelRunner(std::unique_ptr<models::Model> model, ops::Backend& backend, KvStorage storage,
              const PlannedModel& planned);

  void prepare(const StepPlan& plan, StepTimings& timings);
  void move_beams(const std::vector<BeamMove>& moves);
  void learn(const NewSequence& added);
  float* forward();
  float* forward(const nn::Batch& batch);
  void start_masks(const StepPlan& plan);
  StepResult sample(const StepPlan& plan, const float* hidden);
  void sample_rows(const StepPlan& plan, const float* hidden, std::span<const LogitRow> rows, StepResult& result);
  float* compute_logits(const float* hidden, std::span<const LogitRow> rows);
  SequenceState& state_of(const StepPlan& plan, const LogitRow& row);
  bool want_largest_alone(const StepPlan& plan, std::span<const LogitRow> rows);
  std::vector<RowOutcome> take_largest(const StepPlan& plan, std::span<const LogitRow> rows, const float* logits);
  std::vector<RowOutcome> consume_rows(const StepPlan& plan, std::span<const LogitRow> rows, float* logits);

  ops::Backend& backend_;
  std::unique_ptr<models::Model> model_;
  KvStorage storage_;
  int32_t block_size_;
  int64_t max_num_batched_tokens_;
  const int64_t max_model_len_;  // positions of the rotary tables
  Buffer workspace_memory_;
  Buffer logit_memory_;  // [kLogitRows, hidden_size], [kLogitRows, vocab_size], indices, scratch
  Buffer host_logits_;   // [kLogitRows, vocab_size], to be sampled from, of a device with memory of its own
  int64_t workspace_capacity_ = 0;

  std::unordered_map<SequenceId, SequenceState> states_;
  InputBatch batch_;
  StepNumbers row_indices_;  // of the rows that logits are made of
  DecodeShapes decode_shapes_;
  StepRecorder recorder_;
  bool replayed_ = false;                           // the last step
  std::vector<sampling::SamplingScratch> scratch_;  // one a thread
  std::unique_ptr<MaskThread> masks_;               // nullptr: every core computes; those who sample make them
};

}  // namespace quire::runner
