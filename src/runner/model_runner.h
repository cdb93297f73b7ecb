// One worker: a model on a backend, its KV storage, and what is known of the running sequences. Runs plans.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/model.h"
#include "ops/backend.h"
#include "runner/adapter_table.h"
#include "runner/device_sampler.h"
#include "runner/executor.h"
#include "runner/input_batch.h"
#include "runner/kv_storage.h"
#include "runner/mask_thread.h"
#include "runner/memory_planner.h"
#include "runner/rank_group.h"
#include "runner/step_adapters.h"
#include "runner/step_recorder.h"
#include "runner/tapped_states.h"

namespace quire::runner {

struct RowOutcome;

inline nn::Workspace workspace_of(Buffer& memory) {
  return {memory.as<float>(), static_cast<int64_t>(memory.bytes() / sizeof(float))};
}

class ModelRunner {
 public:
  // Takes the memory that the plan names. Errors: resource_exhausted. The backend must outlive the runner.
  static Result<std::unique_ptr<ModelRunner>> create(const PlannedModel& planned, std::unique_ptr<models::Model> model,
                                                     ops::Backend& backend);
  ~ModelRunner();
  // Ends the runner; its model may serve another.
  static std::unique_ptr<models::Model> take_model(std::unique_ptr<ModelRunner> runner);

  // Where those of plans are found. REQUIRES: no step names one before.
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) { constraints_ = std::move(constraints); }

  // Where those of plans are found. REQUIRES: no step names one before; who plans holds a lease of each that a step
  // uses until the step is finished.
  void use_adapters(std::shared_ptr<const AdapterTable> adapters) { adapters_ = std::move(adapters); }

  // Ranks that have the other parts of the model, and carry out the same plans. One of them chooses the tokens; the
  // others are told them. REQUIRES: nothing has been computed yet; the communicators outlive the runner.
  void use_ranks(const RankGroup& ranks);

  // Who is given states of each step between its layers, in recorded steps too. Of a pipeline the same ranks of all
  // stages have some, with the same layers. REQUIRES: outlives the runner.
  void use_taps(TappedStates* taps) { taps_ = taps; }
  // Of a stage on a device with memory of its own, once the taps of a finished step of so many tokens are fetched:
  // takes what the stages before have taken, and passes all on. On a host that is part of the step.
  void pass_fetched_taps(int64_t num_tokens);

  // A step is launched, then its tokens are chosen, then it is finished. What a device with memory of its own is told
  // to do it does beside the host: the next step may be launched as soon as all tokens of the one before are chosen
  // there (which launch() does where that asks for nothing that the host has not seen yet); they are the next one's
  // input before the host has seen them.
  // Hidden states that are pooled are those of the last step that was launched.
  bool may_launch() const {
    const bool pools = model_->config().task != ModelTask::kGenerate;
    return under_way_.empty() || (!pools && under_way_.size() == 1 && under_way_.back().chosen_on_device);
  }
  // REQUIRES: may_launch().
  void launch(StepPlan plan);
  bool any_under_way() const { return !under_way_.empty(); }
  // Chooses the oldest step's tokens on the device, unless some of them are the host's to choose. REQUIRES:
  // any_under_way().
  void choose();
  // The oldest, when it is done. REQUIRES: any_under_way().
  ExecutedStep finish();

  // Where steps that decode are recorded: those of every number of sequences and of contexts of up to 512 tokens; those
  // of longer ones are when they first come up. REQUIRES: nothing has been computed yet.
  void record_steps();

  // As KvStorage::measure_swap(). REQUIRES: swap space.
  double measure_swap() { return storage_.measure_swap(backend_); }
  // As KvStorage::slot_parts(): of whoever carries out orders beside the steps.
  const KvStorage& storage() const { return storage_; }

 private:
  struct Step {
    StepPlan plan;
    uint64_t number = 0;  // of the launch
    StepTimings timings;
    std::chrono::steady_clock::time_point begun;
    // Those that are drawn on the device and edited before, those that are drawn there as they are, the host's.
    std::vector<LogitRow> rows;
    size_t num_edited = 0;
    size_t num_drawn = 0;  // of both kinds
    ops::View hidden;      // what the rows are of; until the next launch
    // How rows are edited follows from tokens that the host has to see first: of the step before this.
    bool follows_tokens = false;
    std::vector<std::pair<size_t, Status>> refused;  // runs that sample nothing, by their place in the plan
    bool chosen_on_device = false;                   // the tokens of all rows, which are on their way to the host
    DrawnRows drawn;
  };

  ModelRunner(std::unique_ptr<models::Model> model, ops::Backend& backend, KvStorage storage,
              const PlannedModel& planned);

  void prepare(const StepPlan& plan, StepTimings& timings);
  void refuse_what_is_missing(Step& step);
  void move_beams(const std::vector<BeamMove>& moves);
  void learn(const NewSequence& added);
  Status missing_for(const NewSequence& added) const;
  std::shared_ptr<const TokenMasks> masks_of(const NewSequence& added) const;
  std::shared_ptr<const sampling::SamplerTables> tables_of(const NewSequence& added);
  ops::View forward();
  ops::View forward(const nn::Batch& batch);
  void start_masks(const Step& step);
  SequenceState& state_of(const StepPlan& plan, const LogitRow& row);

  // Sequences that are pooled.
  void pool(const Step& step, StepResult& result);
  void score(const std::vector<SequenceResult*>& pooled);

  void gather_hidden(const ops::ConstView& hidden, std::span<const LogitRow> rows, const ops::View& out);
  void add_head_adapters(std::span<const LogitRow> rows, nn::StepContext& step);
  ops::View compute_logits(const ops::ConstView& hidden, std::span<const LogitRow> rows);

  // Rows that are drawn where the logits lie.
  void divide_rows(Step& step);
  void draw(Step& step);
  void go_on_after(bool tokens_changed);
  void finish_masks(std::span<const LogitRow> rows, const StepPlan& plan);
  std::vector<LogitRow> take_drawn(const Step& step, StepResult& result);
  RowOutcome drawn_outcome(const Step& step, size_t index, SequenceState& state);

  ops::View run_stage(const nn::StepContext& step);
  std::span<float> taken_before(int64_t layer, int64_t num_tokens);
  void receive_taps(int64_t first_layer, int64_t num_tokens);
  void send_taps(int64_t end_layer, int64_t num_tokens);
  std::vector<size_t> count_tokens(const StepPlan& plan);
  void help_to_draw(Step& step);
  void take_sampled(const StepPlan& plan);
  void send_tokens(std::span<std::byte> tokens);
  void share_tokens(const StepPlan& plan, const std::vector<size_t>& before);

  // Rows that the host looks at.
  void sample(const StepPlan& plan, const ops::ConstView& hidden, std::span<const LogitRow> rows, StepResult& result);
  std::vector<RowOutcome> consume_rows(const StepPlan& plan, std::span<const LogitRow> rows, float* logits);

  ops::Backend& backend_;
  std::unique_ptr<models::Model> model_;
  KvStorage storage_;
  int32_t block_size_;
  int64_t max_num_batched_tokens_;
  const AcceptanceRule acceptance_;
  const int64_t max_model_len_;  // positions of the rotary tables
  Buffer workspace_memory_;
  const size_t logit_rows_;  // of a piece
  Buffer logit_memory_;      // of a piece: hidden states, logits, scratch
  // Of a device with memory of its own, else none:
  Buffer host_logits_;    // [logit_rows_, vocab_size], to be sampled from
  Buffer masked_hidden_;  // [max_num_seqs, hidden_size], of edited rows whose constraints may yet refuse what is drawn
  std::unique_ptr<DeviceSampler> device_sampler_;

  RankGroup ranks_;
  // Whether a stage's last block is still to be added to what it hands on: of every step the same, and told in the
  // first. nullopt: not yet.
  std::optional<bool> comes_pending_;
  std::optional<bool> goes_pending_;
  TappedStates* taps_ = nullptr;
  std::shared_ptr<const ConstraintSource> constraints_;  // nullptr: there are none
  std::shared_ptr<const AdapterTable> adapters_;         // the same
  StepAdapters step_adapters_;                           // of the last batch
  StepAdapters head_adapters_;                           // of rows that logits are made of
  std::unordered_map<SequenceId, SequenceState> states_;
  // Of requests by their parameters, which the tables keep: as long as there is one, the address is theirs.
  std::unordered_map<const SamplingParams*, std::weak_ptr<const sampling::SamplerTables>> tables_;
  InputBatch batch_;
  std::vector<int32_t> gathered_rows_;  // the host's side of them
  StepNumbers row_numbers_;             // of the rows that logits are made of: which they are
  StepShapes step_shapes_;
  StepRecorder recorder_;
  bool replayed_ = false;  // the last forward pass
  std::deque<Step> under_way_;
  uint64_t num_launched_ = 0;
  std::chrono::steady_clock::time_point tokens_there_;  // of the last step whose tokens the device chose
  std::vector<sampling::SamplingScratch> scratch_;      // one a thread
  std::shared_ptr<const DenseLayers> after_pooling_;    // nullptr: a vector is what was pooled
  std::vector<float> pooled_hidden_;                    // of a device with memory of its own: the step's, on the host
  std::unique_ptr<MaskThread> masks_;                   // nullptr: every core computes; those who sample make them
};

}  // namespace quire::runner
