#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>

#include "sampling/logprobs.h"

namespace quire::runner {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What one row of logits gave.
struct RowOutcome {
  Status error;
  TokenId token = kNoToken;                  // sampled
  std::optional<PositionLogprobs> logprobs;  // of the sampled or of the prompt's token
};

RowOutcome consume_row(const LogitRow& row, SequenceState& state, std::span<float> logits,
                       sampling::SamplingScratch& scratch) {
  RowOutcome outcome;
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
  QUIRE_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::create(planned.config, planned.kv_dtype, memory.num_blocks,
                                                              memory.block_size, backend.allocator()));
  auto runner =
      std::unique_ptr<ModelRunner>(new ModelRunner(std::move(model), backend, std::move(storage), memory.block_size));
  const int64_t logit_floats = kLogitRows * (planned.config.hidden_size + planned.config.vocab_size);
  runner->workspace_capacity_ = planned.workspace_floats;
  runner->workspace_memory_ =
      Buffer(backend.allocator(), static_cast<size_t>(planned.workspace_floats) * sizeof(float));
  runner->logit_memory_ = Buffer(backend.allocator(), static_cast<size_t>(logit_floats) * sizeof(float));
  if (runner->workspace_memory_.data() == nullptr || runner->logit_memory_.data() == nullptr) {
    return resource_exhausted("no memory for the workspace of {}. Set --max-num-batched-tokens lower.",
                              format_bytes(memory.workspace_bytes));
  }
  return runner;
}

ModelRunner::ModelRunner(std::unique_ptr<models::Model> model, ops::Backend& backend, KvStorage storage,
                         int32_t block_size)
    : backend_(backend), model_(std::move(model)), storage_(std::move(storage)), block_size_(block_size) {
  scratch_.resize(static_cast<size_t>(backend.num_host_threads()));
}

StepResult ModelRunner::execute(const StepPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  prepare(plan);
  timings_.prepare = seconds_since(start);
  const auto prepared = std::chrono::steady_clock::now();
  const float* hidden = forward();
  timings_.forward = seconds_since(prepared);
  const auto computed = std::chrono::steady_clock::now();
  StepResult result = sample(plan, hidden);
  timings_.sample = seconds_since(computed);
  return result;
}

void ModelRunner::prepare(const StepPlan& plan) {
  for (SequenceId id : plan.retired) states_.erase(id);
  const int64_t vocab_size = model_->config().vocab_size;
  for (const NewSequence& added : plan.added) {
    const bool fresh =
        states_
            .emplace(added.id, SequenceState{.tokens = added.prompt,
                                             .num_prompt_tokens = static_cast<int32_t>(added.prompt.size()),
                                             .params = added.params,
                                             .sampler = {added.params, added.prompt, added.seed, vocab_size,
                                                         added.stop_token_ids}})
            .second;
    QUIRE_CHECK(fresh);
  }
  batch_.build(plan, states_, block_size_);
}

float* ModelRunner::forward() {
  nn::Workspace workspace(workspace_memory_.as<float>(), workspace_capacity_);
  return model_->forward(backend_, batch_.view(storage_.layers()), workspace);
}

StepResult ModelRunner::sample(const StepPlan& plan, const float* hidden) {
  StepResult result;
  result.step = plan.step;
  result.sequences.resize(plan.scheduled.size());
  for (size_t i = 0; i < plan.scheduled.size(); ++i) result.sequences[i].id = plan.scheduled[i].id;
  const size_t rows = batch_.logit_rows().size();
  for (size_t begin = 0; begin < rows; begin += kLogitRows) {
    sample_rows(plan, hidden, begin, std::min<size_t>(rows, begin + kLogitRows), result);
  }
  return result;
}

void ModelRunner::sample_rows(const StepPlan& plan, const float* hidden, size_t begin, size_t end, StepResult& result) {
  const std::span<const LogitRow> rows = std::span(batch_.logit_rows()).subspan(begin, end - begin);
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t hidden_size = model_->config().hidden_size;
  const size_t vocab_size = static_cast<size_t>(model_->config().vocab_size);
  float* gathered = logit_memory_.as<float>();
  float* logits = gathered + kLogitRows * hidden_size;
  std::vector<int32_t> indices;
  for (const LogitRow& row : rows) indices.push_back(row.row);
  backend_(ops::GatherRowsArgs{
      .in = hidden, .size = hidden_size, .rows = indices.data(), .num_rows = count, .out = gathered});
  model_->logits(backend_, gathered, count, logits);

  std::vector<RowOutcome> outcomes(rows.size());
  backend_.host_parallel_for(count, [&](int64_t i, int thread) {
    const size_t at = static_cast<size_t>(i);
    SequenceState& state = states_.at(plan.scheduled[static_cast<size_t>(rows[at].sequence)].id);
    outcomes[at] = consume_row(rows[at], state, std::span(logits + at * vocab_size, vocab_size),
                               scratch_[static_cast<size_t>(thread)]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    SequenceResult& sequence = result.sequences[static_cast<size_t>(rows[i].sequence)];
    RowOutcome& outcome = outcomes[i];
    if (!sequence.error.ok()) continue;
    if (!outcome.error.ok()) {
      sequence.error = std::move(outcome.error);
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
