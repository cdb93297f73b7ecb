#include "runner/model_runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/thread_clock.h"
#include "base/thread_pool.h"
#include "runner/row_outcome.h"
#include "sampling/logprobs.h"
#include "sampling/row_math.h"

namespace quire::runner {

namespace {

// Of floats, as many as it has room for.
ops::View rows_in(Buffer& memory, int64_t columns) {
  return {memory.data(), static_cast<int64_t>(memory.bytes() / sizeof(float)) / columns, columns};
}

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
double seconds_since(std::chrono::steady_clock::time_point start) {
  return seconds_between(start, std::chrono::steady_clock::now());
}

Status missing(const ScheduledSequence& run) {
  if (run.num_draft_tokens == 0 || (run.samples && run.num_candidates == 0)) return {};
  return unimplemented("draft_tokens: {} are given to a run that samples nothing to compare them with",
                       run.num_draft_tokens);
}

StepResult empty_result(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  result.sequences.resize(plan.scheduled.size());
  for (size_t i = 0; i < plan.scheduled.size(); ++i) result.sequences[i].id = plan.scheduled[i].id;
  return result;
}

// Of a step, with those that a shape has more; 0: there are no adapters.
int64_t most_adapted_tokens(const PlannedModel& planned) {
  if (planned.adapters.most_loaded == 0) return 0;
  return std::max<int64_t>(planned.memory.max_num_batched_tokens, planned.largest_recorded_step) +
         StepShapes::kMostLeftOver;
}

// What the device says of a row, as sampling::position_logprobs() says it.
Result<PositionLogprobs> logprobs_of(const ops::RowLogprobs& asked, const ops::RankedToken* ranks) {
  const std::span<const ops::RankedToken> all(ranks + asked.first_rank, static_cast<size_t>(1 + asked.num_top));
  if (all.front().token < 0) return sampling::not_finite();
  const auto told = [](const ops::RankedToken& one) { return TokenLogprob{one.token, one.logprob, one.rank}; };
  PositionLogprobs logprobs{.chosen = told(all.front()), .top = {}};
  for (const ops::RankedToken& one : all.subspan(1)) {
    if (one.token >= 0) logprobs.top.push_back(told(one));
  }
  return logprobs;
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const PlannedModel& planned,
                                                         std::unique_ptr<models::Model> model, ops::Backend& backend) {
  const MemoryPlan& memory = planned.memory;
  QUIRE_CHECK_MSG(kv_layers_of(*model, planned) == planned.kv_layout.layers, "a cache of another model's layers");
  QUIRE_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::create(planned.kv_layout,
                                                              {.num_blocks = memory.num_blocks,
                                                               .num_swap_blocks = memory.num_swap_blocks,
                                                               .swap_folder = planned.swap_folder,
                                                               .num_offload_slots = memory.num_offload_slots},
                                                              backend));
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(std::move(model), backend, std::move(storage), planned));
  const auto floats = [&](int64_t count) {
    return Buffer(backend.allocator(), static_cast<size_t>(count) * sizeof(float));
  };
  runner->after_pooling_ = planned.after_pooling;
  runner->workspace_memory_ = floats(planned.workspace_floats);
  runner->logit_memory_ = floats(planned.logit_floats);
  bool complete = runner->workspace_memory_.data() != nullptr && runner->logit_memory_.data() != nullptr;
  if (!backend.computes_in_host_memory()) {
    runner->host_logits_ = Buffer(backend.host_allocator(),
                                  static_cast<size_t>(planned.logit_rows * planned.config.vocab_size) * sizeof(float));
    runner->device_sampler_ = std::make_unique<DeviceSampler>(backend, DeviceSampler::limits_of(planned));
    runner->masked_hidden_ = Buffer(backend.allocator(), static_cast<size_t>(masked_hidden_bytes(planned)));
    complete = complete && runner->host_logits_.data() != nullptr && runner->device_sampler_->has_memory() &&
               runner->masked_hidden_.data() != nullptr;
  }
  if (!complete) {
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
      acceptance_(planned.acceptance),
      max_model_len_(planned.memory.max_model_len),
      logit_rows_(static_cast<size_t>(planned.logit_rows)),
      step_adapters_(backend, planned.max_adapter_rank, most_adapted_tokens(planned)),
      head_adapters_(backend, planned.max_adapter_rank, planned.adapters.most_loaded > 0 ? planned.logit_rows : 0),
      batch_(backend, static_cast<int32_t>(planned.memory.windows.size())),
      row_numbers_(backend),
      recorder_(backend) {
  if (planned.largest_recorded_step > 0) {
    step_shapes_ = StepShapes(planned.largest_recorded_step, max_model_len_, block_size_, planned.most_recorded_tokens);
    batch_.use_shapes(step_shapes_, max_num_batched_tokens_);
  }
  if (planned.config.num_text_types > 0) {
    batch_.use_text_types(planned.tells_second_text ? planned.config.num_text_types : 1);
  }
  scratch_.resize(static_cast<size_t>(backend.num_host_threads()));
  if (usable_cores().size() > scratch_.size()) masks_ = std::make_unique<MaskThread>();
}

ModelRunner::~ModelRunner() {
  backend_.synchronise();  // what is under way uses memory that goes now
}

std::unique_ptr<models::Model> ModelRunner::take_model(std::unique_ptr<ModelRunner> runner) {
  runner->backend_.synchronise();
  return std::move(runner->model_);
}

void ModelRunner::launch(StepPlan plan) {
  QUIRE_CHECK(may_launch());
  Step step;
  step.plan = std::move(plan);
  step.number = ++num_launched_;
  step.timings.ahead = !under_way_.empty();
  const auto start = std::chrono::steady_clock::now();
  prepare(step.plan, step.timings);
  refuse_what_is_missing(step);
  divide_rows(step);
  step.timings.prepare = seconds_since(start);
  const auto prepared = std::chrono::steady_clock::now();
  if (!step.timings.ahead) start_masks(step);
  step.hidden = forward();
  storage_.store(backend_, step.plan.stores);
  const bool all_drawn = device_sampler_ != nullptr && step.num_drawn == step.rows.size();
  if (all_drawn && !step.follows_tokens) draw(step);
  step.timings.forward = step.timings.computed = seconds_since(prepared);
  step.timings.replayed = replayed_;
  step.begun = prepared;
  under_way_.push_back(std::move(step));
}

void ModelRunner::choose() {
  QUIRE_CHECK(any_under_way());
  Step& step = under_way_.front();
  if (device_sampler_ == nullptr || step.chosen_on_device || step.num_drawn < step.rows.size()) return;
  const auto start = std::chrono::steady_clock::now();
  draw(step);
  step.timings.sample = seconds_since(start);
}

ExecutedStep ModelRunner::finish() {
  QUIRE_CHECK(any_under_way());
  Step step = std::move(under_way_.front());
  under_way_.pop_front();
  const auto start = std::chrono::steady_clock::now();
  ExecutedStep done{.result = empty_result(step.plan), .timings = step.timings, .plan = {}};
  for (auto& [place, error] : step.refused) done.result.sequences[place].error = std::move(error);
  if (!step.chosen_on_device && step.num_drawn > 0) draw(step);
  const std::vector<size_t> tokens_before = count_tokens(step.plan);
  std::vector<LogitRow> refused;
  if ((step.chosen_on_device || step.num_drawn > 0) && ranks_.samples()) {
    const auto asked = std::chrono::steady_clock::now();
    device_sampler_->finish(step.drawn);
    const auto begun = std::max(step.begun, std::exchange(tokens_there_, std::chrono::steady_clock::now()));
    done.timings.wait = seconds_between(asked, tokens_there_);
    done.timings.computed = seconds_between(begun, tokens_there_);
    refused = take_drawn(step, done.result);
  }
  const std::span<const LogitRow> others = std::span(step.rows).subspan(step.num_drawn);
  sample(step.plan, step.hidden, others, done.result);
  sample(step.plan, rows_in(masked_hidden_, model_->config().hidden_size), refused, done.result);
  // What ops exchange is done: this thread's turn with the same communicators, and to ask how they are.
  if (ranks_.are_several() && !backend_.computes_in_host_memory()) backend_.synchronise();
  if (!step.rows.empty()) share_tokens(step.plan, tokens_before);
  if (model_->config().task != ModelTask::kGenerate && ranks_.stage.is_last()) pool(step, done.result);
  done.timings.host_rows = static_cast<int32_t>(others.size() + refused.size());
  done.timings.draw_bytes = step.drawn.bytes_up;
  done.timings.collect = step.drawn.collect;
  if (masks_ != nullptr) done.timings.constraints = masks_->take_seconds();
  for (sampling::SamplingScratch& scratch : scratch_)
    done.timings.constraints += std::exchange(scratch.constraint_seconds, 0.0);
  // Whoever hears that the step is done may read the slots it has filled, and write to those it has read.
  const bool copies_slots = !step.plan.stores.empty() || !step.plan.loads.empty();
  if (copies_slots && !backend_.computes_in_host_memory()) backend_.synchronise();
  if (!under_way_.empty()) go_on_after(!refused.empty());
  done.timings.sample += seconds_since(start);
  done.plan = std::move(step.plan);
  return done;
}

// What the step that was launched ahead of the tokens is in want of, now that they are known.
void ModelRunner::go_on_after(bool tokens_changed) {
  Step& next = under_way_.front();
  if (tokens_changed && !next.chosen_on_device) {
    batch_.build(next.plan, states_, block_size_);
    next.hidden = forward();
  }
  if (!next.chosen_on_device) start_masks(next);
}

void ModelRunner::prepare(const StepPlan& plan, StepTimings& timings) {
  take_sampled(plan);
  move_beams(plan.moves);
  for (SequenceId id : plan.retired) {
    states_.erase(id);
    if (device_sampler_ != nullptr) device_sampler_->forget(id);
  }
  for (const NewSequence& added : plan.added) learn(added);
  for_each_table_change(plan, [this](const TableChange& change, std::span<const BlockId> blocks) {
    states_.at(change.id).tables.take(change, blocks);
  });
  const auto start = std::chrono::steady_clock::now();
  storage_.swap(backend_, plan.swap_out, plan.swap_in);
  if (storage_.swaps() && backend_.computes_in_host_memory()) timings.swap = seconds_since(start);
  storage_.load(backend_, plan.loads);
  storage_.copy(backend_, plan.copies);
  batch_.build(plan, states_, block_size_);
  if (adapters_ == nullptr) return;
  step_adapters_.clear();
  for (const ScheduledSequence& run : plan.scheduled) {
    const SequenceState& state = states_.at(run.id);
    const int32_t virtual_rows = std::clamp(state.num_virtual_tokens - run.num_computed_tokens, 0, run.num_new_tokens);
    step_adapters_.add_virtual_run(state.adapter, run.num_computed_tokens, virtual_rows);
    step_adapters_.add_run(state.adapter, run.num_rows() - virtual_rows);
  }
  step_adapters_.upload(batch_.num_tokens());
}

// What a plan may ask for and no model here can do.
Status ModelRunner::missing_for(const NewSequence& added) const {
  if (added.adapter != 0 && adapters_ == nullptr) {
    return unimplemented("adapter: {} is asked for, and this runner has none; leave it out", added.adapter);
  }
  if (added.adapter != 0 && states_.at(added.id).adapter == nullptr) {
    return unavailable("adapter {} went with a worker and could not be read again; the log says why", added.adapter)
        .with_param("model");
  }
  if (!added.media.empty()) {
    return unimplemented("media: the prompt has {} spans, and this runner computes text alone", added.media.size());
  }
  const ModelTask task = model_->config().task;
  const char* what = task == ModelTask::kGenerate ? "tokens" : task == ModelTask::kEmbed ? "hidden states" : "scores";
  switch (added.output_kind) {
    case OutputKind::kToken:
      if (task == ModelTask::kGenerate) return {};
      return unimplemented("output_kind: tokens are asked for, and this runner gives {} alone", what);
    case OutputKind::kScore:
      if (task == ModelTask::kClassify) return {};
      return unimplemented("output_kind: scores are asked for, and this runner gives {} alone", what);
    case OutputKind::kHiddenState:
      if (task == ModelTask::kEmbed) return {};
      return unimplemented("output_kind: hidden states are asked for, and this runner gives {} alone", what);
  }
  return unimplemented("output_kind: {} is none that is known here", static_cast<int>(added.output_kind));
}

// Fails the sequence alone; where it samples, as any other whose row gives no token.
void ModelRunner::refuse_what_is_missing(Step& step) {
  const std::vector<ScheduledSequence>& scheduled = step.plan.scheduled;
  const auto refuse = [&](SequenceId id, Status why) {
    if (why.ok()) return;
    SequenceState& state = states_.at(id);
    if (state.fault.ok()) state.fault = std::move(why);
    const auto run = std::ranges::find(scheduled, id, &ScheduledSequence::id);
    if (run == scheduled.end() || run->samples) return;
    step.refused.emplace_back(static_cast<size_t>(run - scheduled.begin()), state.fault);
  };
  for (const NewSequence& added : step.plan.added) refuse(added.id, missing_for(added));
  for (const ScheduledSequence& run : scheduled) refuse(run.id, missing(run));
}

// Every beam takes what its source was before any of them moved.
void ModelRunner::move_beams(const std::vector<BeamMove>& moves) {
  std::vector<SequenceState> moved;
  moved.reserve(moves.size());
  for (const BeamMove& move : moves) {
    SequenceState& source = states_.at(move.source);
    BlockTables tables = std::move(source.tables);  // they are told of, and stay whose they are
    SequenceState& state = moved.emplace_back(source);
    source.tables = std::move(tables);
    state.take(move.token);
  }
  for (size_t i = 0; i < moves.size(); ++i) {
    SequenceState& state = states_.at(moves[i].id);
    moved[i].tables = std::move(state.tables);
    state = std::move(moved[i]);
    if (device_sampler_ != nullptr) device_sampler_->forget(moves[i].id);
  }
}

void ModelRunner::learn(const NewSequence& added) {
  // What is drawn and penalised knows nothing of ids that mean nothing.
  const auto num_virtual = std::min(static_cast<size_t>(added.num_virtual_tokens), added.prompt.size());
  const std::span<const TokenId> prompt = std::span(added.prompt).subspan(num_virtual);
  SequenceState state{.tokens = sampling::TokenHistory(added.prompt),
                      .num_prompt_tokens = static_cast<int32_t>(added.prompt.size()),
                      .params = added.params,
                      .sampler = {tables_of(added), prompt, added.seed, added.output},
                      .num_virtual_tokens = added.num_virtual_tokens,
                      .adapter = added.adapter != 0 && adapters_ ? adapters_->in_use(added.adapter) : nullptr,
                      .tables = {},
                      .pool = {},
                      .fault = {}};
  state.tokens.append(added.output);
  state.is_constrained = added.constraint != 0;
  state.output_kind = added.output_kind;
  state.second_text = added.second_text;
  state.pooled_from = added.pooled_from;
  if (added.constraint != 0 && !state.sampler.wants_mask() && ranks_.samples()) {
    state.fault = internal_error("constraint {} of sequence {} is unknown here", added.constraint, added.id);
  }
  QUIRE_CHECK(states_.emplace(added.id, std::move(state)).second);
}

std::shared_ptr<const TokenMasks> ModelRunner::masks_of(const NewSequence& added) const {
  return added.constraint == 0 || constraints_ == nullptr ? nullptr : constraints_->find(added.constraint);
}

// Made with a request's first answer, for all of them.
std::shared_ptr<const sampling::SamplerTables> ModelRunner::tables_of(const NewSequence& added) {
  std::weak_ptr<const sampling::SamplerTables>& known = tables_[added.params.get()];
  if (auto tables = known.lock()) return tables;
  auto tables = std::make_shared<const sampling::SamplerTables>(added.params, added.eos_ids,
                                                                model_->config().vocab_size, masks_of(added));
  known = tables;
  if (tables_.size() > 2 * states_.size() + 16) {
    std::erase_if(tables_, [](const auto& entry) { return entry.second.expired(); });
  }
  return tables;
}

ops::View ModelRunner::forward(const nn::Batch& batch) {
  nn::Workspace workspace = workspace_of(workspace_memory_);
  const nn::StepContext step{.backend = backend_,
                             .batch = batch,
                             .workspace = workspace,
                             .adapters = step_adapters_.any() ? &step_adapters_ : nullptr,
                             .communicator = ranks_.tensor,
                             .taps = taps_};
  return ranks_.stage.count == 1 ? model_->forward(step) : run_stage(step);
}

ops::View ModelRunner::forward() {
  const nn::Batch batch = batch_.view(storage_.layers());
  if (device_sampler_ != nullptr) batch_.place_tokens(device_sampler_->tokens());
  replayed_ = false;
  std::optional<StepShape> shape = batch_.shape();
  if (shape && step_adapters_.any()) shape = with_adapters(*shape, step_adapters_.recording_version());
  // Layers that wait for blocks of their own do so call by call.
  if (!shape || storage_.swaps() || !step_adapters_.can_record()) return forward(batch);
  if (const std::optional<ops::View> hidden = recorder_.replay(*shape, batch, batch_.place())) {
    replayed_ = true;
    return *hidden;
  }
  const ops::View hidden = forward(batch);
  const nn::Batch recorded = batch_.as_recorded(storage_.layers(), block_size_);
  recorder_.record(*shape, recorded, batch_.place(), [&] { return forward(recorded); });
  return hidden;
}

void ModelRunner::record_steps() {
  if (step_shapes_.sizes().empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const int64_t free = backend_.free_memory();
  for (const int32_t size : step_shapes_.sizes()) {
    batch_.build_example(*step_shapes_.shape_of(static_cast<size_t>(size), 1));
    forward();
  }
  backend_.synchronise();
  log_info("recorded steps of 1 to {} sequences: {} in {:.2f} s, {}", step_shapes_.sizes().back(),
           recorder_.num_recordings(), seconds_since(start), format_bytes(free - backend_.free_memory()));
}

void ModelRunner::start_masks(const Step& step) {
  if (masks_ == nullptr || !ranks_.samples()) return;
  std::vector<sampling::SequenceSampler*> samplers;
  for (const LogitRow& row : step.rows) {
    SequenceState& state = state_of(step.plan, row);
    // Of a run with draft tokens the first row's: the others' depend on what it samples.
    const bool first = row.target == kNoToken && row.draft_row <= 0;
    if (first && state.fault.ok() && state.sampler.wants_mask()) samplers.push_back(&state.sampler);
  }
  if (!samplers.empty()) masks_->start(std::move(samplers));
}

SequenceState& ModelRunner::state_of(const StepPlan& plan, const LogitRow& row) {
  return states_.at(plan.scheduled[static_cast<size_t>(row.sequence)].id);
}

// out: [rows, hidden_size].
void ModelRunner::gather_hidden(const ops::ConstView& hidden, std::span<const LogitRow> rows, const ops::View& out) {
  gathered_rows_.clear();
  for (const LogitRow& row : rows) gathered_rows_.push_back(row.row);
  row_numbers_.begin(StepNumbers::room(gathered_rows_.size() * sizeof(int32_t)));
  const Mirrored<int32_t> gathered_rows = row_numbers_.add(gathered_rows_);
  row_numbers_.upload();
  backend_(ops::GatherRowsArgs{.in = hidden.floats(),
                               .size = hidden.num_columns,
                               .rows = gathered_rows,
                               .num_rows = static_cast<int64_t>(rows.size()),
                               .out = out.floats()});
}

// These rows are a batch of their own: that of the step may be the next one's by now.
void ModelRunner::add_head_adapters(std::span<const LogitRow> rows, nn::StepContext& step) {
  head_adapters_.clear();
  for (const LogitRow& row : rows) {
    const auto state = states_.find(row.id);  // nobody looks at what is of a sequence that is retired
    head_adapters_.add_run(state == states_.end() ? nullptr : state->second.adapter, 1);
  }
  if (!head_adapters_.any()) return;
  head_adapters_.upload(std::ssize(rows));
  step.rows = {};
  step.adapters = &head_adapters_;
}

// [rows, vocab_size] on the device.
ops::View ModelRunner::compute_logits(const ops::ConstView& hidden, std::span<const LogitRow> rows) {
  nn::Workspace workspace = workspace_of(logit_memory_);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const ops::View gathered = workspace.take(num_rows, model_->config().hidden_size);
  const ops::View logits = workspace.take(num_rows, model_->config().vocab_size);
  gather_hidden(hidden, rows, gathered);
  const nn::Batch none;
  nn::StepContext step{.backend = backend_,
                       .batch = none,
                       .workspace = workspace,
                       .rows = {nn::RowTokens::Kind::kNone, {}},
                       .communicator = ranks_.tensor};
  if (adapters_ != nullptr) add_head_adapters(rows, step);
  model_->logits(step, gathered, logits);
  return logits;
}

// Puts those in front that the device draws, and of these those that are edited.
void ModelRunner::divide_rows(Step& step) {
  step.rows = batch_.logit_rows();
  if (device_sampler_ == nullptr) return;
  enum Kind : size_t { kEdited, kAsTheyAre, kOfHost, kKinds };
  std::array<std::vector<LogitRow>, kKinds> kinds;
  for (const LogitRow& row : step.rows) {
    const SequenceState& state = state_of(step.plan, row);
    // A token that is drawn and then refused would want its logits once more, which others have parts of. They do not
    // know the constraint, so that this goes by what all know: all take the rows in the same order.
    if (state.is_constrained && ranks_.tensor != nullptr) {
      kinds[kOfHost].push_back(row);
      continue;
    }
    const bool edited = row.target == kNoToken && state.sampler.edits_logits(state.pending_row >= 0 ? 1 : 0);
    const Kind kind = !DeviceSampler::draws(row, state) ? kOfHost : edited ? kEdited : kAsTheyAre;
    kinds[kind].push_back(row);
    step.follows_tokens = step.follows_tokens || (kind == kEdited && state.sampler.edits_follow_tokens());
  }
  step.rows.clear();
  for (const std::vector<LogitRow>& rows : kinds) step.rows.insert(step.rows.end(), rows.begin(), rows.end());
  step.num_edited = kinds[kEdited].size();
  step.num_drawn = step.num_edited + kinds[kAsTheyAre].size();
}

void ModelRunner::draw(Step& step) {
  if (!ranks_.samples()) return help_to_draw(step);
  const std::span<const LogitRow> rows = std::span(step.rows).first(step.num_drawn);
  std::vector<const SequenceState*> states;
  for (const LogitRow& row : rows) states.push_back(&state_of(step.plan, row));
  step.drawn = device_sampler_->begin(rows, states, step.number);
  const auto edited = std::span(states).first(step.num_edited);
  if (std::ranges::any_of(edited, [](const SequenceState* state) { return state->sampler.wants_mask(); })) {
    gather_hidden(step.hidden, rows.first(step.num_edited), rows_in(masked_hidden_, model_->config().hidden_size));
  }
  for (size_t begin = 0; begin < rows.size(); begin += logit_rows_) {
    const size_t count = std::min(logit_rows_, rows.size() - begin);
    const std::span<const LogitRow> piece = rows.subspan(begin, count);
    const float* logits = compute_logits(step.hidden, piece).floats();
    if (begin == 0) finish_masks(rows.first(step.num_edited), step.plan);
    const size_t num_edited = std::min(count, std::max(step.num_edited, begin) - begin);
    device_sampler_->draw(piece, std::span(states).subspan(begin, count), num_edited, logits, begin, step.drawn,
                          scratch_.front());
  }
  device_sampler_->end(step.drawn);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].target != kNoToken) continue;
    SequenceState& state = state_of(step.plan, rows[i]);
    state.pending_row = static_cast<int32_t>(i);
    state.pending_step = step.number;
  }
  step.chosen_on_device = step.num_drawn == step.rows.size();
}

// Until there are those of these rows.
void ModelRunner::finish_masks(std::span<const LogitRow> rows, const StepPlan& plan) {
  if (masks_ != nullptr) return masks_->wait();
  std::vector<sampling::SequenceSampler*> samplers;
  for (const LogitRow& row : rows) {
    SequenceState& state = state_of(plan, row);
    if (state.fault.ok() && state.sampler.wants_mask()) samplers.push_back(&state.sampler);
  }
  backend_.host_parallel_for(static_cast<int64_t>(samplers.size()), [&](int64_t task, int thread) {
    const ThreadTimeSpan span(scratch_[static_cast<size_t>(thread)].constraint_seconds);
    samplers[static_cast<size_t>(task)]->make_mask();
  });
}

RowOutcome ModelRunner::drawn_outcome(const Step& step, size_t index, SequenceState& state) {
  RowOutcome outcome;
  outcome.error = state.fault;
  const LogitRow& row = step.rows[index];
  const int32_t token = step.drawn.tokens[index];
  const ops::RowLogprobs& asked = step.drawn.logprobs[index];
  const bool scored = asked.num_top >= 0 && (row.target != kNoToken || token >= 0);
  if (outcome.error.ok() && scored) {
    auto logprobs = logprobs_of(asked, step.drawn.ranks);
    outcome.error = logprobs.status();
    if (logprobs.ok()) outcome.logprobs = std::move(*logprobs);
  }
  if (!outcome.error.ok() || row.target != kNoToken) return outcome;
  const Result<bool> taken = state.sampler.take(token, scratch_.front());
  outcome.error = taken.status();
  outcome.refused = taken.ok() && !*taken;
  outcome.token = token;
  return outcome;
}

// Returns the rows that still want a token, as rows of masked_hidden_.
std::vector<LogitRow> ModelRunner::take_drawn(const Step& step, StepResult& result) {
  std::vector<LogitRow> refused;
  for (size_t i = 0; i < step.num_drawn; ++i) {
    const LogitRow& row = step.rows[i];
    SequenceResult& sequence = result.sequences[static_cast<size_t>(row.sequence)];
    const auto found = states_.find(sequence.id);
    if (found == states_.end()) {  // retired by a step that was launched since: nobody will look
      if (row.target == kNoToken) sequence.tokens.push_back(std::max(step.drawn.tokens[i], 0));
      continue;
    }
    SequenceState& state = found->second;
    if (state.pending_step == step.number) state.pending_row = -1;
    RowOutcome outcome = drawn_outcome(step, i, state);
    if (outcome.refused) {
      refused.push_back(row);
      refused.back().row = static_cast<int32_t>(i);
    } else {
      settle(row, outcome, state, sequence);
    }
  }
  return refused;
}

void ModelRunner::sample(const StepPlan& plan, const ops::ConstView& hidden, std::span<const LogitRow> all,
                         StepResult& result) {
  if (!ranks_.stage.is_last()) return;
  for (size_t begin = 0; begin < all.size(); begin += logit_rows_) {
    const std::span<const LogitRow> rows = all.subspan(begin, std::min(logit_rows_, all.size() - begin));
    const ops::View logits = compute_logits(hidden, rows);
    if (!ranks_.samples()) continue;  // another rank has them
    std::vector<RowOutcome> outcomes = consume_rows(plan, rows, logits.floats());
    for (size_t i = 0; i < rows.size(); ++i) {
      settle(rows[i], outcomes[i], state_of(plan, rows[i]), result.sequences[static_cast<size_t>(rows[i].sequence)]);
    }
  }
}

std::vector<RowOutcome> ModelRunner::consume_rows(const StepPlan& plan, std::span<const LogitRow> rows, float* logits) {
  const auto vocab_size = static_cast<size_t>(model_->config().vocab_size);
  if (host_logits_.data() != nullptr) {
    auto* on_host = host_logits_.as<float>();
    backend_.download(on_host, logits, rows.size() * vocab_size * sizeof(float));
    logits = on_host;
  }
  if (masks_ != nullptr) masks_->wait();
  std::vector<RowOutcome> outcomes(rows.size());
  // Rows of a run with draft tokens one after the other, each on what those before it sampled.
  std::vector<size_t> tasks;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].draft_row <= 0) tasks.push_back(i);
  }
  tasks.push_back(rows.size());
  backend_.host_parallel_for(static_cast<int64_t>(tasks.size()) - 1, [&](int64_t task, int thread) {
    for (size_t at = tasks[static_cast<size_t>(task)]; at < tasks[static_cast<size_t>(task) + 1]; ++at) {
      outcomes[at] =
          consume_row(rows[at], acceptance_, state_of(plan, rows[at]), std::span(logits + at * vocab_size, vocab_size),
                      scratch_[static_cast<size_t>(thread)]);
    }
  });
  return outcomes;
}

}  // namespace quire::runner
