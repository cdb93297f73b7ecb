#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/thread_pool.h"
#include "runner/dry_backend.h"
#include "sampling/logprobs.h"

namespace quire::runner {

// What one row of logits gave.
struct RowOutcome {
  Status error;
  TokenId token = kNoToken;                  // sampled
  std::optional<PositionLogprobs> logprobs;  // of the sampled or of the prompt's token
  std::vector<TokenLogprob> candidates;      // of a beam
};

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

RowOutcome consume_row(const LogitRow& row, SequenceState& state, std::span<float> logits,
                       sampling::SamplingScratch& scratch) {
  RowOutcome outcome;
  if (!state.fault.ok()) {
    outcome.error = state.fault;
    return outcome;
  }
  if (row.num_candidates > 0) {
    auto candidates = state.sampler.beam_candidates(logits, static_cast<size_t>(row.num_candidates), scratch);
    outcome.error = candidates.status();
    if (candidates.ok()) outcome.candidates = std::move(*candidates);
    return outcome;
  }
  if (row.target != kNoToken) {
    auto scored = sampling::position_logprobs(logits, row.target, *state.params->prompt_logprobs);
    outcome.error = scored.status();
    if (scored.ok()) outcome.logprobs = std::move(*scored);
    return outcome;
  }
  auto sampled = state.sampler.sample(logits, scratch);
  outcome.error = sampled.status();
  if (sampled.ok()) {
    outcome.token = sampled->id;
    outcome.logprobs = std::move(sampled->logprobs);
  }
  return outcome;
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const PlannedModel& planned,
                                                         std::unique_ptr<models::Model> model, ops::Backend& backend) {
  const MemoryPlan& memory = planned.memory;
  QUIRE_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::create(planned.config,
                                                              {.dtype = planned.kv_dtype,
                                                               .num_blocks = memory.num_blocks,
                                                               .block_size = memory.block_size,
                                                               .num_swap_blocks = memory.num_swap_blocks,
                                                               .swap_folder = planned.swap_folder},
                                                              backend));
  const int64_t logit_floats = logit_memory_floats(*model);
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(std::move(model), backend, std::move(storage), planned));
  runner->workspace_capacity_ = planned.workspace_floats;
  runner->workspace_memory_ =
      Buffer(backend.allocator(), static_cast<size_t>(planned.workspace_floats) * sizeof(float));
  runner->logit_memory_ = Buffer(backend.allocator(), static_cast<size_t>(logit_floats) * sizeof(float));
  if (!backend.computes_in_host_memory()) {
    runner->host_logits_ =
        Buffer(backend.host_allocator(), static_cast<size_t>(kLogitRows * planned.config.vocab_size) * sizeof(float));
  }
  if (runner->workspace_memory_.data() == nullptr || runner->logit_memory_.data() == nullptr ||
      (runner->host_logits_.data() == nullptr && !backend.computes_in_host_memory())) {
    return resource_exhausted("no memory for the workspace of {}. Set --max-num-batched-tokens lower.",
                              format_bytes(memory.workspace_bytes));
  }
  return runner;
}

ModelRunner::ModelRunner(std::unique_ptr<models::Model> model, ops::Backend& backend, KvStorage storage,
                         const PlannedModel& planned)
    : backend_(backend),
      model_(std::move(model)),
      storage_(std::move(storage)),
      block_size_(planned.memory.block_size),
      max_num_batched_tokens_(planned.memory.max_num_batched_tokens),
      max_model_len_(planned.memory.max_model_len),
      batch_(backend, static_cast<int32_t>(planned.memory.windows.size())),
      row_indices_(backend),
      recorder_(backend) {
  if (planned.largest_recorded_step > 0) {
    decode_shapes_ = DecodeShapes(planned.largest_recorded_step, max_model_len_, block_size_);
    batch_.use_shapes(decode_shapes_, max_num_batched_tokens_);
  }
  scratch_.resize(static_cast<size_t>(backend.num_host_threads()));
  if (usable_cores().size() > scratch_.size()) masks_ = std::make_unique<MaskThread>();
}

int64_t ModelRunner::measure_workspace() {
  const auto tokens = static_cast<size_t>(max_num_batched_tokens_);
  const int64_t pool_tokens = storage_.layers().front().view.num_blocks * block_size_;
  const std::vector<TokenId> token_ids(tokens, 0);
  std::vector<int32_t> positions(tokens);
  std::vector<int64_t> slots(tokens);
  for (size_t i = 0; i < tokens; ++i) {
    positions[i] = static_cast<int32_t>(i % static_cast<size_t>(max_model_len_));
    slots[i] = static_cast<int64_t>(i) % pool_tokens;
  }
  const int32_t offsets[2] = {0, static_cast<int32_t>(tokens)};
  const int32_t context = static_cast<int32_t>(tokens);
  const std::vector<BlockId> table(tokens / static_cast<size_t>(block_size_) + 1, 0);
  const std::vector<nn::CacheGroup> groups(batch_.num_groups(),
                                           nn::CacheGroup{.slots = slots.data(), .block_tables = table.data()});
  DryBackend dry(backend_);
  nn::Workspace workspace(workspace_memory_.as<float>(), workspace_capacity_);
  model_->forward(dry,
                  {.num_tokens = max_num_batched_tokens_,
                   .num_sequences = 1,
                   .token_ids = token_ids.data(),
                   .positions = positions.data(),
                   .query_offsets = offsets,
                   .context_lengths = &context,
                   .block_table_stride = static_cast<int64_t>(table.size()),
                   .groups = groups,
                   .layers = storage_.layers()},
                  workspace);
  return workspace.most_used() * static_cast<int64_t>(sizeof(float));
}

ExecutedStep ModelRunner::execute(const StepPlan& plan) {
  ExecutedStep step;
  const auto start = std::chrono::steady_clock::now();
  prepare(plan, step.timings);
  step.timings.prepare = seconds_since(start);
  const auto prepared = std::chrono::steady_clock::now();
  if (masks_ != nullptr) start_masks(plan);
  const float* hidden = forward();
  step.timings.forward = seconds_since(prepared);
  step.timings.replayed = replayed_;
  const auto computed = std::chrono::steady_clock::now();
  step.result = sample(plan, hidden);
  step.timings.sample = seconds_since(computed);
  if (masks_ != nullptr) step.timings.forms = masks_->take_seconds();
  for (sampling::SamplingScratch& scratch : scratch_) step.timings.forms += std::exchange(scratch.form_seconds, 0.0);
  return step;
}

void ModelRunner::prepare(const StepPlan& plan, StepTimings& timings) {
  move_beams(plan.moves);
  for (SequenceId id : plan.retired) states_.erase(id);
  for (const NewSequence& added : plan.added) learn(added);
  const auto start = std::chrono::steady_clock::now();
  storage_.swap_out(backend_, plan.swap_out);
  storage_.swap_in(backend_, plan.swap_in);
  timings.swap = seconds_since(start);
  storage_.copy(backend_, plan.copies);
  batch_.build(plan, states_, block_size_);
}

// Every beam takes what its source was before any of them moved.
void ModelRunner::move_beams(const std::vector<BeamMove>& moves) {
  std::vector<SequenceState> moved;
  moved.reserve(moves.size());
  for (const BeamMove& move : moves) {
    SequenceState& state = moved.emplace_back(states_.at(move.source));
    state.tokens.push_back(move.token);
    state.sampler.accept(move.token);
  }
  for (size_t i = 0; i < moves.size(); ++i) states_.at(moves[i].id) = std::move(moved[i]);
}

void ModelRunner::learn(const NewSequence& added) {
  SequenceState state{.tokens = added.prompt,
                      .num_prompt_tokens = static_cast<int32_t>(added.prompt.size()),
                      .params = added.params,
                      .sampler = {added.params, added.prompt, added.seed, model_->config().vocab_size,
                                  added.stop_token_ids, added.output},
                      .fault = {}};
  state.tokens.insert(state.tokens.end(), added.output.begin(), added.output.end());
  QUIRE_CHECK(states_.emplace(added.id, std::move(state)).second);
}

float* ModelRunner::forward(const nn::Batch& batch) {
  nn::Workspace workspace(workspace_memory_.as<float>(), workspace_capacity_);
  return model_->forward(backend_, batch, workspace);
}

float* ModelRunner::forward() {
  const nn::Batch batch = batch_.view(storage_.layers());
  replayed_ = false;
  if (!batch_.shape()) return forward(batch);
  if (float* hidden = recorder_.replay(*batch_.shape(), batch_.place())) {
    replayed_ = true;
    return hidden;
  }
  float* hidden = forward(batch);
  const nn::Batch largest = batch_.largest_of_shape(storage_.layers(), block_size_);
  recorder_.record(*batch_.shape(), batch_.place(), [&] { return forward(largest); });
  return hidden;
}

void ModelRunner::record_steps() {
  if (decode_shapes_.sizes().empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const int64_t free = backend_.free_memory();
  for (const int32_t size : decode_shapes_.sizes()) {
    batch_.build_example(*decode_shapes_.shape_of(static_cast<size_t>(size), 1));
    forward();
  }
  backend_.synchronise();
  log_info("recorded steps of 1 to {} sequences: {} in {:.2f} s, {}", decode_shapes_.sizes().back(),
           recorder_.num_recordings(), seconds_since(start), format_bytes(free - backend_.free_memory()));
}

void ModelRunner::start_masks(const StepPlan& plan) {
  std::vector<sampling::SequenceSampler*> samplers;
  for (const LogitRow& row : batch_.logit_rows()) {
    SequenceState& state = states_.at(plan.scheduled[static_cast<size_t>(row.sequence)].id);
    if (row.target == kNoToken && state.fault.ok() && state.sampler.wants_mask()) samplers.push_back(&state.sampler);
  }
  if (!samplers.empty()) masks_->start(std::move(samplers));
}

StepResult ModelRunner::sample(const StepPlan& plan, const float* hidden) {
  StepResult result;
  result.step = plan.step;
  result.sequences.resize(plan.scheduled.size());
  for (size_t i = 0; i < plan.scheduled.size(); ++i) result.sequences[i].id = plan.scheduled[i].id;
  const std::span<const LogitRow> rows = batch_.logit_rows();
  for (size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
    sample_rows(plan, hidden, rows.subspan(begin, std::min<size_t>(kLogitRows, rows.size() - begin)), result);
  }
  return result;
}

SequenceState& ModelRunner::state_of(const StepPlan& plan, const LogitRow& row) {
  return states_.at(plan.scheduled[static_cast<size_t>(row.sequence)].id);
}

// [rows, vocab_size] on the device.
float* ModelRunner::compute_logits(const float* hidden, std::span<const LogitRow> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t hidden_size = model_->config().hidden_size;
  float* gathered = logit_memory_.as<float>();
  float* logits = gathered + kLogitRows * hidden_size;
  std::vector<int32_t> indices;
  for (const LogitRow& row : rows) indices.push_back(row.row);
  row_indices_.begin(StepNumbers::room(indices.size() * sizeof(int32_t)));
  const Mirrored<int32_t> gathered_rows = row_indices_.add(indices);
  row_indices_.upload();
  backend_(ops::GatherRowsArgs{
      .in = hidden, .size = hidden_size, .rows = gathered_rows, .num_rows = count, .out = gathered});
  nn::Workspace scratch(logits + kLogitRows * (1 + model_->config().vocab_size),
                        model_->logits_workspace_floats(kLogitRows));
  model_->logits(backend_, gathered, count, logits, scratch);
  return logits;
}

// Whether nothing of these rows' logits is wanted but where the largest is, and they lie where the host cannot read.
bool ModelRunner::want_largest_alone(const StepPlan& plan, std::span<const LogitRow> rows) {
  if (backend_.computes_in_host_memory()) return false;
  return std::ranges::all_of(rows, [&](const LogitRow& row) {
    return row.num_candidates == 0 && row.target == kNoToken && state_of(plan, row).sampler.takes_largest();
  });
}

std::vector<RowOutcome> ModelRunner::take_largest(const StepPlan& plan, std::span<const LogitRow> rows,
                                                  const float* logits) {
  const int64_t vocab_size = model_->config().vocab_size;
  auto* on_device =
      reinterpret_cast<int32_t*>(logit_memory_.as<float>() + kLogitRows * (model_->config().hidden_size + vocab_size));
  backend_(ops::RowMaximumArgs{
      .in = logits, .num_rows = static_cast<int64_t>(rows.size()), .size = vocab_size, .indices = on_device});
  std::vector<int32_t> indices(rows.size());
  backend_.download(indices.data(), on_device, indices.size() * sizeof(int32_t));
  std::vector<RowOutcome> outcomes(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    SequenceState& state = state_of(plan, rows[i]);
    outcomes[i].error = state.fault;
    if (!state.fault.ok()) continue;
    auto sampled = state.sampler.take_largest(indices[i]);
    outcomes[i].error = sampled.status();
    if (sampled.ok()) outcomes[i].token = sampled->id;
  }
  return outcomes;
}

std::vector<RowOutcome> ModelRunner::consume_rows(const StepPlan& plan, std::span<const LogitRow> rows, float* logits) {
  const auto vocab_size = static_cast<size_t>(model_->config().vocab_size);
  if (host_logits_.data() != nullptr) {
    backend_.download(host_logits_.data(), logits, rows.size() * vocab_size * sizeof(float));
    logits = host_logits_.as<float>();
  }
  if (masks_ != nullptr) masks_->wait();
  std::vector<RowOutcome> outcomes(rows.size());
  backend_.host_parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int thread) {
    const size_t at = static_cast<size_t>(i);
    outcomes[at] = consume_row(rows[at], state_of(plan, rows[at]), std::span(logits + at * vocab_size, vocab_size),
                               scratch_[static_cast<size_t>(thread)]);
  });
  return outcomes;
}

void ModelRunner::sample_rows(const StepPlan& plan, const float* hidden, std::span<const LogitRow> rows,
                              StepResult& result) {
  float* logits = compute_logits(hidden, rows);
  std::vector<RowOutcome> outcomes =
      want_largest_alone(plan, rows) ? take_largest(plan, rows, logits) : consume_rows(plan, rows, logits);
  for (size_t i = 0; i < rows.size(); ++i) {
    SequenceResult& sequence = result.sequences[static_cast<size_t>(rows[i].sequence)];
    RowOutcome& outcome = outcomes[i];
    if (!sequence.error.ok()) continue;
    if (!outcome.error.ok()) {
      SequenceState& state = states_.at(sequence.id);
      state.fault = outcome.error;
      state.tokens.push_back(0);
      sequence.error = std::move(outcome.error);
    } else if (rows[i].num_candidates > 0) {
      sequence.candidates = std::move(outcome.candidates);
    } else if (rows[i].target != kNoToken) {
      sequence.prompt_logprobs.push_back(std::move(*outcome.logprobs));
    } else {
      states_.at(sequence.id).tokens.push_back(outcome.token);
      sequence.tokens.push_back(outcome.token);
      if (outcome.logprobs) sequence.logprobs.push_back(std::move(*outcome.logprobs));
    }
  }
}

}  // namespace quire::runner
