// What happens before a request reaches the engine thread, and the engine's outside.
#include "engine/engine.h"

#include <algorithm>
#include <future>
#include <random>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/prepare_params.h"
#include "engine/replica_router.h"
#include "runner/async_executor.h"
#include "runner/text_files.h"

namespace quire::engine {
namespace {

// Spreads consecutive request numbers over all seeds (the finaliser of SplitMix64; Steele, Lea and Flood, 2014).
uint64_t mixed_seed(uint64_t engine_seed, uint64_t request_number) {
  uint64_t x = engine_seed * 0x9E3779B97F4A7C15u + request_number + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

Status check_timeout(const GenerationRequest& request) {
  if (!request.timeout || request.timeout->count() > 0) return {};
  return invalid_argument("timeout must be more than 0 seconds, got {}.",
                          std::chrono::duration<double>(*request.timeout).count())
      .with_param("timeout");
}

// As far as it is of the vocabulary; nullptr: nothing is expected.
std::shared_ptr<const std::vector<TokenId>> known_prediction(std::vector<TokenId> prediction, int64_t vocab_size) {
  if (prediction.empty()) return nullptr;
  const auto known = [&](TokenId id) { return id >= 0 && id < vocab_size; };
  prediction.erase(std::ranges::find_if_not(prediction, known), prediction.end());
  return std::make_shared<const std::vector<TokenId>>(std::move(prediction));
}

// Each weight of a layer is a multiply-add a token; attending to a position is two for each dimension of each head.
// About: a layer's experts are not counted. Layers with a window attend to as many wherever they are.
double tokens_per_position(const ModelConfig& model) {
  const double heads = static_cast<double>(model.num_heads) * model.head_dim;
  const double kv_heads = static_cast<double>(model.num_kv_heads) * model.head_dim;
  const auto hidden = static_cast<double>(model.hidden_size);
  const double weights = hidden * (2 * heads + 2 * kv_heads + 3 * static_cast<double>(model.intermediate_size));
  const auto without_attention = model.attention_layers.empty() ? std::ranges::count(model.recurrent_layers, true)
                                                                : std::ranges::count(model.attention_layers, false);
  const auto windowed =
      std::ranges::count_if(model.layer_windows, [](int32_t window) { return window > 0; }) + without_attention;
  const double unbounded = 1 - static_cast<double>(windowed) / std::max(model.num_layers, 1);
  return weights > 0 ? unbounded * 2 * heads / weights : 0;
}

sched::SchedulerConfig scheduler_config(const EngineConfig& config, const MemoryPlan& memory,
                                        const ModelConfig& model) {
  sched::SchedulerConfig out;
  out.tokens_per_position = tokens_per_position(model);
  out.max_num_seqs = config.max_num_seqs;
  out.max_adapters =
      (config.enable_lora ? config.max_loras : 0) + (config.enable_prompt_adapter ? config.max_prompt_adapters : 0);
  out.max_num_batched_tokens = static_cast<int32_t>(memory.max_num_batched_tokens);
  out.max_model_len = static_cast<int32_t>(memory.max_model_len);
  out.num_blocks = static_cast<int32_t>(memory.num_blocks);
  out.block_size = memory.block_size;
  out.windows = memory.windows;
  out.keeps_states = memory.keeps_states;
  out.prefix_caching = config.enable_prefix_caching;
  out.num_swap_blocks = static_cast<int32_t>(memory.num_swap_blocks);
  out.preemption_mode = config.preemption_mode;
  out.long_prefill_token_threshold = config.long_prefill_token_threshold;
  // As vLLM: several prompts under way at once make sense only in portions.
  if (config.max_num_partial_prefills > 1 && out.long_prefill_token_threshold == 0) {
    out.long_prefill_token_threshold = std::max(1, static_cast<int32_t>(0.04 * static_cast<double>(out.max_model_len)));
  }
  out.max_num_partial_prefills = config.enable_chunked_prefill ? config.max_num_partial_prefills : 0;
  if (model.attends_both_ways) {  // what comes later is seen: a text is computed whole, and nobody's beginning is
                                  // another's
    out.prefix_caching = false;
    out.max_num_partial_prefills = 0;
    out.long_prefill_token_threshold = 0;
  }
  out.num_offload_slots = static_cast<int32_t>(memory.num_offload_slots);
  out.offload_to_disk = memory.offload_to_disk;
  out.offload_writes = memory.offload_writes;
  out.tells_kv_events = config.enable_kv_cache_events && config.enable_prefix_caching;
  out.watermark = config.watermark;
  out.tokens_per_priority_level =
      config.scheduling_policy == SchedulingPolicy::kPriority ? config.priority_ageing_tokens : 0;
  out.max_draft_tokens =
      memory.most_draft_tokens > 0 ? memory.most_draft_tokens : most_draft_tokens(config.speculative_config);
  // Whose inputs states have room for.
  if (memory.keeps_states) out.max_draft_tokens = std::min(out.max_draft_tokens, memory.most_state_drafts);
  out.max_drafting_sequences = config.speculative_config.disable_by_batch_size;
  out.drafts_by_gain = !config.speculative_config.always;
  out.num_stages = config.pipeline_parallel_size;
  if (config.device.kind == DeviceChoice::Kind::kCuda) out.least_stage_tokens = 256;
  out.max_plans_in_flight = config.max_plans_in_flight();
  // So that nobody outside can prepare colliding prompts.
  std::random_device device;
  out.hash_seed = (uint64_t{device()} << 32) | device();
  return out;
}

}  // namespace

Engine::Impl::Impl(EngineConfig engine_config, TextSource model_text, std::unique_ptr<runner::Executor> the_executor,
                   Metrics* shared_metrics, Drive whose_thread, const Seat& seat)
    : config(std::move(engine_config)),
      text(std::move(model_text)),
      drive(whose_thread),
      scheduling(scheduler_config(config, the_executor->memory(), the_executor->model())),
      constraints(seat.constraints),
      executor(config.async_scheduling && !the_executor->overlaps()
                   ? runner::make_async_executor(std::move(the_executor))
                   : std::move(the_executor)),
      adapters(executor->adapters()),
      scheduler(scheduling),
      costs(scheduling, {.seconds_per_swapped_block = executor->memory().seconds_per_swapped_block}),
      metrics(shared_metrics != nullptr ? *shared_metrics : own_metrics),
      engine_metrics(metrics, config.served_model_name, seat.count == 1 ? -1 : seat.number),
      recorder(config.flight_recorder_steps),
      next_id(seat.next_id) {
  executor->use_constraints(constraints);
  scheduler.set_draft_proposer(proposer.get());
  if (scheduling.offload_to_disk) scheduler.add_stored(executor->take_stored());
  if (scheduling.num_offload_slots > 0) {
    executor->on_reports([inbox = inbox, reported = offload_reported] {
      const std::lock_guard lock(inbox->mutex);
      *reported = true;
      inbox->bell.notify_one();
    });
  }
  // The executor outlives the engine's inbox, and so does this.
  executor->on_failure([inbox = inbox] {
    const std::lock_guard lock(inbox->mutex);
    inbox->workers_failed = true;
    inbox->bell.notify_all();
  });
}

Status Engine::Impl::load_text() {
  eos_ids = executor->model().eos_ids;
  if (config.skip_tokenizer_init) return {};
  QUIRE_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::from_source(text));
  // Fine-tunes often say their end of a turn in the tokenizer's files alone.
  const auto end = text.eos_token.empty() ? std::nullopt : tokenizer->token_to_id(text.eos_token);
  if (end && *end < executor->model().vocab_size && std::ranges::count(eos_ids, *end) == 0) eos_ids.push_back(*end);
  if (tokenizer->vocab_size() > executor->model().vocab_size) {
    // Padding of the embedding goes the other way; ids that the model has no row for cannot be computed.
    log_warning("the tokenizer has {} tokens, the model only {}: prompts with the others are refused",
                tokenizer->vocab_size(), executor->model().vocab_size);
  }
  if (executor->model().task == ModelTask::kGenerate) {
    compiler = std::make_unique<grammar::Compiler>(*tokenizer, executor->model().vocab_size, eos_ids,
                                                   grammar::CompilerOptions{});
    breakers = std::make_unique<BreakerSets>(*tokenizer);
  }
  if (!text.chat_template.empty()) {
    auto parsed = text::ChatTemplate::parse(text.chat_template);
    if (parsed.ok()) {
      chat_template = std::move(*parsed);
    } else {
      log_warning("the chat template cannot be used ({}): chat requests are refused; name another with --chat-template",
                  parsed.status().message());
    }
  }
  return {};
}

Status Engine::Impl::open_trace() {
  if (config.trace_file.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(trace, TraceWriter::open(config.trace_file, scheduling));
  return {};
}

// Consumers' threads.

void Engine::Impl::compile_structured_output(const StructuredOutput& output, int32_t tenant,
                                             grammar::Compiler::Done done) const {
  constexpr const char* kParam = "structured_outputs";
  if (compiler == nullptr) {
    return done(
        invalid_argument("structured output needs a tokenizer, and this engine runs without.").with_param(kParam));
  }
  compiler->compile(output, tenant, [done = std::move(done)](Result<std::shared_ptr<const TokenConstraint>> compiled) {
    if (compiled.ok()) return done(std::move(compiled));
    const Status& status = compiled.status();
    done(Status(status.code(), fmt::format("The structured output is refused: {}.", status.message()))
             .with_param(kParam));
  });
}

Result<std::shared_ptr<const TokenConstraint>> Engine::Impl::compile_structured_output(const StructuredOutput& output,
                                                                                       int32_t tenant) const {
  std::promise<Result<std::shared_ptr<const TokenConstraint>>> promise;
  compile_structured_output(output, tenant, [&promise](auto compiled) { promise.set_value(std::move(compiled)); });
  return promise.get_future().get();
}

CostFacts Engine::Impl::cost_facts() const {
  return {.vocab_size = executor->model().vocab_size,
          .max_model_len = executor->memory().max_model_len,
          .max_num_batched_tokens = scheduling.max_num_batched_tokens};
}

// What a request alone may not take, whoever else is there.
Status Engine::Impl::check_cost(const SamplingParams& params, const RequestCost& cost) const {
  const int64_t most = config.max_request_bytes;
  if (cost.heap_bytes <= most) return {};
  if (cost.logprobs.sum() > cost.heap_bytes / 2) {
    return invalid_argument(
               "the log-probabilities asked for may take {} MiB; this server allows {} MiB a request. Ask "
               "for fewer alternatives or fewer tokens.",
               cost.logprobs.sum() >> 20, most >> 20)
        .with_param(params.prompt_logprobs ? "prompt_logprobs" : "logprobs");
  }
  return invalid_argument(
             "the request may take {} MiB beside its keys and values, of lists, log-probabilities and {} copies of its "
             "prompt; this server allows {} MiB. Ask for fewer answers at once.",
             cost.heap_bytes >> 20, params.num_sequences(), most >> 20)
      .with_param(params.use_beam_search ? "beam_width" : "n");
}

SamplingLimits Engine::Impl::limits() const {
  return {.vocab_size = executor->model().vocab_size, .max_logprobs = config.max_logprobs};
}

Status Engine::Impl::check(std::span<const TokenId> prompt, const SamplingParams& params) const {
  QUIRE_RETURN_IF_ERROR(validate(params, limits()));
  return check_prompt(prompt, params);
}

// REQUIRES: the parameters are valid.
Status Engine::Impl::check_prompt(std::span<const TokenId> prompt, const SamplingParams& params) const {
  const ModelConfig& model = executor->model();
  const int64_t kept = num_kept_tokens(executor->memory().max_model_len, params, static_cast<int64_t>(prompt.size()));
  prompt = prompt.last(static_cast<size_t>(kept));
  for (const TokenId id : prompt) {
    if (id >= 0 && id < model.vocab_size) continue;
    return invalid_argument("the prompt contains token id {}, which is not in the vocabulary of {} tokens", id,
                            model.vocab_size)
        .with_param("prompt");
  }
  QUIRE_RETURN_IF_ERROR(scheduler.check_fits(static_cast<int64_t>(prompt.size()), params));
  return check_cost(params, engine::cost_of(params, kept, cost_facts()));
}

// Whether the model is served for what is asked for.
Status Engine::Impl::check_output(OutputKind kind, const SamplingParams& params) const {
  const ModelTask task = executor->model().task;
  const OutputKind served = task == ModelTask::kGenerate ? OutputKind::kToken
                            : task == ModelTask::kEmbed  ? OutputKind::kHiddenState
                                                         : OutputKind::kScore;
  if (kind == OutputKind::kToken && served != kind) {
    return invalid_argument("The model is served for {}, and generates no text.",
                            task == ModelTask::kEmbed ? "embeddings" : "scores");
  }
  if (kind != served) {
    return invalid_argument("The model {}; it does not support {}.",
                            task == ModelTask::kGenerate ? "generates text (--runner pooling would change that)"
                            : task == ModelTask::kEmbed  ? "gives embeddings"
                                                         : "gives scores",
                            kind == OutputKind::kScore ? "scores" : "embeddings");
  }
  QUIRE_CHECK_MSG(kind == OutputKind::kToken || params.max_tokens == 0, "what is pooled has no answer");
  return {};
}

// All that does not depend on the prompt and that a user can get wrong.
Result<PreparedParams> Engine::Impl::prepare(SamplingParams params, bool shows_logprobs, int32_t tenant,
                                             std::shared_ptr<const TokenConstraint> compiled) const {
  const ModelConfig& model = executor->model();
  QUIRE_RETURN_IF_ERROR(validate(params, limits()));
  QUIRE_RETURN_IF_ERROR(find_words(tokenizer.get(), breakers.get(), limits(), params));
  QUIRE_RETURN_IF_ERROR(check_leaves_a_token(params, eos_ids, model.vocab_size));
  if (params.structured_output && compiled == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(compiled, compile_structured_output(*params.structured_output, tenant));
  }
  PreparedParams prepared = share_params(std::move(params), shows_logprobs);
  if (compiled != nullptr) prepared.constraint = constraints->add(std::move(compiled));
  return prepared;
}

// REQUIRES: inbox->mutex is held.
Engine::Impl::Refusal Engine::Impl::refusal_locked(int64_t sequences, int64_t tokens, int64_t bytes) const {
  if (!failure.ok()) return {unavailable("the engine has failed and must be restarted")};
  if (stopping) return {unavailable("the engine is shutting down")};
  if (num_queued + sequences > config.max_num_queued_reqs) {
    return {resource_exhausted("{} requests are waiting already; try again later", num_queued), "queued_requests"};
  }
  if (config.max_num_queued_tokens > 0 && num_queued_tokens > 0 &&
      num_queued_tokens + tokens > config.max_num_queued_tokens) {
    return {resource_exhausted("{} prompt tokens are waiting already; try again later", num_queued_tokens),
            "queued_tokens"};
  }
  if (const int64_t held = inbox->held_bytes; held > 0 && held + bytes > config.max_request_bytes) {
    return {resource_exhausted("requests under way take {} MiB already; try again later", held >> 20), "memory"};
  }
  return {};
}

// What of a request does not suit the model or the engine; its prompt is cut as its parameters say. REQUIRES: it is
// prepared.
Status Engine::Impl::check_and_truncate(GenerationRequest& request) const {
  const SamplingParams& params = *request.prepared->first;
  QUIRE_RETURN_IF_ERROR(check_output(request.output_kind, params));
  QUIRE_RETURN_IF_ERROR(check_prompt(request.prompt, params));
  truncate_prompt(executor->memory().max_model_len, params, request.prompt);
  QUIRE_RETURN_IF_ERROR(check_timeout(request));
  if (!request.adapter.empty() && (adapters == nullptr || !adapters->knows(request.adapter))) {
    return not_found("there is no adapter `{}`{}", request.adapter,
                     adapters == nullptr ? ": this engine has none (--enable-lora)" : "")
        .with_param("model");
  }
  return {};
}

std::optional<Clock::time_point> Engine::Impl::deadline_of(const GenerationRequest& request) const {
  if (request.timeout) return Clock::now() + *request.timeout;
  const std::chrono::duration<double> most(config.request_timeout);
  if (most.count() <= 0) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(most);
}

// What all sequences of a request have in common. Takes the prompt and the prediction out of the request.
Engine::Impl::Submission Engine::Impl::common_submission(GenerationRequest& request) const {
  const SamplingParams& params = *request.prepared->first;
  Submission common;
  common.label = request.label;
  common.deadline = deadline_of(request);
  common.adapter = request.adapter;
  common.timeline = request.timeline;
  sched::SequenceRequest& sequence = common.request;
  sequence.context = context_of(request.cache_salt, static_cast<int64_t>(request.prompt.size()));
  sequence.prompt = std::move(request.prompt);
  if (!params.ignore_eos) sequence.eos_ids = eos_ids;
  sequence.priority = request.priority;
  sequence.tenant = request.tenant;
  sequence.weight = request.weight;
  // What is to repeat must not depend on how many guesses a busy machine had time for.
  sequence.takes_drafts = request.speculates && !(params.deterministic && changes_answers(config.speculative_config));
  sequence.prediction = known_prediction(std::move(request.prediction), executor->model().vocab_size);
  sequence.output_kind = request.output_kind;
  sequence.second_text = request.second_text;
  sequence.pooled_from = request.pooled_from;
  sequence.wants_every_row = request.output_kind != OutputKind::kToken && !executor->model().pooling.takes_last_alone();
  sequence.constraint = request.prepared->constraint;
  return common;
}

// A stream for each answer, and what the scheduler is told: a sequence for each, or one beam search.
Engine::Impl::SubmissionGroup Engine::Impl::make_group(GenerationRequest request, const RequestCost& cost) {
  const SamplingParams& params = *request.prepared->first;
  // A beam search of no tokens has no beams: each of its answers is the prompt's scores alone, as of any other request.
  const bool searches = params.use_beam_search;
  const bool beams = searches && params.max_tokens != 0;
  const int32_t num_streams = searches ? params.n : params.num_sequences();
  const int32_t num_ids = beams ? params.num_beams() : num_streams;
  const SequenceId first = next_id->fetch_add(static_cast<SequenceId>(num_ids));
  const uint64_t seed = params.seed ? *params.seed : mixed_seed(config.seed, first);
  Submission common = common_submission(request);
  common.request.host_work = cost.step_work / std::max(1, num_ids);
  if (num_streams > 1) common.answers = std::make_shared<RequestAnswers>(RequestAnswers{.num_left = num_streams});

  SubmissionGroup group;
  for (int32_t i = 0; i < num_streams; ++i) {
    const SequenceId id = first + static_cast<SequenceId>(i);
    auto state = std::make_shared<TokenStream::State>(id, inbox);
    group.streams.push_back(std::make_unique<TokenStream>(state));
    if (beams && i > 0) {
      group.submissions.front().streams.push_back(std::move(state));
      continue;
    }
    Submission& one = group.submissions.emplace_back(common);
    one.streams.push_back(std::move(state));
    one.request.id = id;
    one.request.seed = seed + static_cast<uint64_t>(i);
    if (i > 0) one.request.fork_of = first;
    one.request.params = i > 0 ? request.prepared->others : request.prepared->first;
  }
  return group;
}

// Leaves the group to the engine thread, once there is room for it.
Status Engine::Impl::enqueue(SubmissionGroup& group, int64_t num_prompt_tokens, const RequestCost& cost,
                             WhenFull when_full) {
  std::unique_lock lock(inbox->mutex);
  Refusal refusal;
  const auto decided = [&] {
    refusal = refusal_locked(std::ssize(group.submissions), num_prompt_tokens, cost.heap_bytes);
    const bool room_may_come = num_queued > 0 || num_queued_tokens > 0 || inbox->held_bytes > 0;
    return refusal.bound == nullptr || !room_may_come;
  };
  if (!decided() && when_full == WhenFull::kWait && drive == Drive::kOwnThread) {
    inbox->room.wait(lock, decided);
  }
  if (!refusal.status.ok()) {
    if (refusal.bound != nullptr) engine_metrics.rejected(refusal.bound);
    for (Submission& one : group.submissions) {
      for (const auto& stream : one.streams) stream->close();
    }
    return refusal.status;
  }
  // The prompt's log-probabilities come with the first.
  const int64_t num_streams = std::ssize(group.streams);
  const int64_t each = (cost.heap_bytes - cost.logprobs.prompt + num_streams - 1) / num_streams;
  int64_t of_prompt = cost.logprobs.prompt;
  for (Submission& one : group.submissions) {
    for (const auto& stream : one.streams) {
      const int64_t held = each + std::exchange(of_prompt, 0);
      stream->memory_held = std::make_shared<const MemoryCharge>(inbox, held);
    }
    num_queued_tokens += num_prompt_tokens;
    submissions.push_back(std::move(one));
    ++num_queued;
  }
  inbox->bell.notify_one();
  return {};
}

Result<std::vector<std::unique_ptr<TokenStream>>> Engine::Impl::submit(GenerationRequest request, WhenFull when_full) {
  if (!request.prepared) {
    QUIRE_RETURN_IF_ERROR(check(request.prompt, request.params));  // the cheapest first
    QUIRE_ASSIGN_OR_RETURN(request.prepared,
                           prepare(std::move(request.params), /*shows_logprobs=*/true, request.tenant, nullptr));
  }
  QUIRE_RETURN_IF_ERROR(check_and_truncate(request));
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const RequestCost cost = engine::cost_of(*request.prepared->first, num_prompt_tokens, cost_facts());
  SubmissionGroup group = make_group(std::move(request), cost);
  QUIRE_RETURN_IF_ERROR(enqueue(group, num_prompt_tokens, cost, when_full));
  return std::move(group.streams);
}

// The engine's outside.

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config, TextSource text,
                                               std::unique_ptr<runner::Executor> executor, Metrics* metrics,
                                               Drive drive) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  QUIRE_RETURN_IF_ERROR(sched::validate(scheduler_config(config, executor->memory(), executor->model())));
  auto impl =
      std::make_unique<Impl>(std::move(config), std::move(text), std::move(executor), metrics, drive, Impl::Seat());
  QUIRE_RETURN_IF_ERROR(impl->load_text());
  QUIRE_RETURN_IF_ERROR(impl->open_trace());
  impl->publish_stats();
  if (drive == Drive::kOwnThread) impl->thread = std::thread([raw = impl.get()] { raw->loop(); });
  std::vector<std::unique_ptr<Impl>> one;
  one.push_back(std::move(impl));
  return std::unique_ptr<Engine>(new Engine(std::move(one), nullptr));
}

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config, TextSource text,
                                               std::vector<std::unique_ptr<runner::Executor>> executors,
                                               Metrics* metrics) {
  QUIRE_CHECK(!executors.empty());
  if (executors.size() == 1) {
    return create(std::move(config), std::move(text), std::move(executors[0]), metrics, Drive::kOwnThread);
  }
  QUIRE_RETURN_IF_ERROR(validate(config));
  Impl::Seat seat{.count = static_cast<int>(executors.size())};
  std::vector<std::unique_ptr<Impl>> replicas;
  for (std::unique_ptr<runner::Executor>& executor : executors) {
    QUIRE_RETURN_IF_ERROR(sched::validate(scheduler_config(config, executor->memory(), executor->model())));
    // The first one has the registry, unless somebody else has.
    Metrics* shared = metrics != nullptr || replicas.empty() ? metrics : &replicas.front()->metrics;
    replicas.push_back(std::make_unique<Impl>(config, text, std::move(executor), shared, Drive::kOwnThread, seat));
    ++seat.number;
  }
  QUIRE_RETURN_IF_ERROR(replicas.front()->load_text());
  auto router = std::make_unique<ReplicaRouter>(static_cast<int>(replicas.size()),
                                                replicas.front()->executor->memory().block_size);
  for (const auto& replica : replicas) {
    replica->publish_stats();
    replica->thread = std::thread([raw = replica.get()] { raw->loop(); });
  }
  return std::unique_ptr<Engine>(new Engine(std::move(replicas), std::move(router)));
}

Result<TextSource> Engine::open_text(const EngineConfig& config) {
  return runner::open_text_source(config);
}

Engine::Engine(std::vector<std::unique_ptr<Impl>> replicas, std::unique_ptr<ReplicaRouter> router)
    : replicas_(std::move(replicas)), impl_(replicas_.front().get()), router_(std::move(router)) {}

Engine::~Engine() {
  stop();
  while (replicas_.size() > 1) replicas_.pop_back();  // the first one may have the others' metrics
}

void Engine::stop() {
  for (const auto& replica : replicas_) stop(*replica);
}

void Engine::stop(Impl& impl) {
  {
    const std::lock_guard lock(impl.inbox->mutex);
    impl.stopping = true;
    impl.inbox->bell.notify_one();
  }
  if (impl.drive == Drive::kOwnThread) {
    if (impl.thread.joinable()) impl.thread.join();
  } else {
    QUIRE_CHECK_MSG(!impl.in_step, "an engine is stopped while a thread is in its step()");
    impl.abort_all(unavailable("the engine was stopped"), FinishReason::kAbort);
  }
  std::function<void(std::vector<KvCacheEvent>)> tell;
  {
    const std::lock_guard lock(impl.inbox->mutex);
    tell.swap(impl.kv_events);
  }
  if (tell) tell({{.kind = KvCacheEvent::Kind::kCleared}});  // the blocks go with the engine
}

Result<std::vector<std::unique_ptr<TokenStream>>> Engine::submit(GenerationRequest request, WhenFull when_full) {
  if (router_ == nullptr) return impl_->submit(std::move(request), when_full);
  if (!request.prepared) {
    QUIRE_RETURN_IF_ERROR(check(request.prompt, request.params));
    QUIRE_ASSIGN_OR_RETURN(request.prepared,
                           prepare(std::move(request.params), /*shows_logprobs=*/true, request.tenant, nullptr));
  }
  std::vector<int64_t> loads;
  for (const auto& replica : replicas_) {
    const std::lock_guard lock(replica->inbox->mutex);
    loads.push_back(replica->stats.num_running + replica->num_queued);
  }
  const auto first = static_cast<size_t>(router_->choose(request.prompt, {request.cache_salt, request.adapter}, loads));
  // Where it is full, another may not be.
  for (size_t i = 0; i + 1 < replicas_.size(); ++i) {
    Impl& replica = *replicas_[(first + i) % replicas_.size()];
    auto streams = replica.submit(GenerationRequest(request), WhenFull::kRefuse);
    if (streams.status().code() != StatusCode::kResourceExhausted) return streams;
  }
  const size_t last = when_full == WhenFull::kWait ? first : (first + replicas_.size() - 1) % replicas_.size();
  return replicas_[last]->submit(std::move(request), when_full);
}

Result<PreparedParams> Engine::prepare(SamplingParams params, bool shows_logprobs, int32_t tenant,
                                       std::shared_ptr<const TokenConstraint> compiled) const {
  return impl_->prepare(std::move(params), shows_logprobs, tenant, std::move(compiled));
}

RequestCost Engine::cost_of(const SamplingParams& params, int64_t num_prompt_tokens) const {
  return engine::cost_of(params, num_prompt_tokens, cost_facts());
}

CostFacts Engine::cost_facts() const {
  return impl_->cost_facts();
}

Status Engine::check(const std::vector<TokenId>& prompt, const SamplingParams& params) const {
  return impl_->check(prompt, params);
}

Status Engine::step() {
  return impl_->step_for_caller();
}

bool Engine::has_work() const {
  if (impl_->drive == Drive::kOwnThread) return false;
  const std::lock_guard lock(impl_->inbox->mutex);
  if (!impl_->failure.ok()) return false;
  return impl_->work_left || !impl_->submissions.empty() || !impl_->inbox->ended.empty() ||
         !impl_->grants->list.empty();
}

Drive Engine::drive() const {
  return impl_->drive;
}

void Engine::compile_structured_output(const StructuredOutput& output, int32_t tenant, grammar::Compiler::Done done) {
  impl_->compile_structured_output(output, tenant, std::move(done));
}

bool Engine::healthy() const {
  return std::ranges::all_of(replicas_, [](const auto& replica) {
    const std::lock_guard lock(replica->inbox->mutex);
    return replica->failure.ok();
  });
}

void Engine::on_kv_events(std::function<void(std::vector<KvCacheEvent>)> tell) {
  const std::lock_guard lock(impl_->inbox->mutex);
  impl_->kv_events = std::move(tell);
}

void Engine::reset_prefix_cache() {
  for (const auto& replica : replicas_) {
    const std::lock_guard lock(replica->inbox->mutex);
    replica->reset_prefix_cache = true;
    replica->inbox->bell.notify_one();
  }
}

const FlightRecorder& Engine::flight_recorder() const {
  return impl_->recorder;
}

std::string Engine::trouble() const {
  for (const auto& replica : replicas_) {
    {
      const std::lock_guard lock(replica->inbox->mutex);
      if (!replica->trouble.empty()) return replica->trouble;
    }
    if (const Status status = replica->executor->status(); !status.ok()) return status.message();
  }
  return "";
}

std::chrono::nanoseconds Engine::busy_without_progress() const {
  const std::chrono::nanoseconds now(Clock::now().time_since_epoch());
  std::chrono::nanoseconds longest{0};
  for (const auto& replica : replicas_) {
    const int64_t since = replica->progress_at.load(std::memory_order_relaxed);
    if (since != 0) longest = std::max(longest, now - std::chrono::nanoseconds(since));
  }
  return longest;
}

EngineStats Engine::stats() const {
  EngineStats sum;
  for (const auto& replica : replicas_) {
    const std::lock_guard lock(replica->inbox->mutex);
    const EngineStats& own = replica->stats;
    sum.num_running += own.num_running;
    sum.num_waiting += replica->num_queued;  // those that the engine thread has not seen yet included
    sum.num_swapped += own.num_swapped;
    sum.blocks_used += own.blocks_used;
    sum.blocks_cached += own.blocks_cached;
    sum.blocks_total += own.blocks_total;
    sum.num_preemptions += own.num_preemptions;
    sum.num_swaps += own.num_swaps;
    sum.num_steps += own.num_steps;
    sum.prefix_query_tokens += own.prefix_query_tokens;
    sum.prefix_hit_tokens += own.prefix_hit_tokens;
    sum.num_drafts += own.num_drafts;
    sum.num_draft_tokens += own.num_draft_tokens;
    sum.num_accepted_tokens += own.num_accepted_tokens;
  }
  return sum;
}

const EngineConfig& Engine::config() const {
  return impl_->config;
}
const ModelConfig& Engine::model() const {
  return impl_->executor->model();
}
const MemoryPlan& Engine::memory() const {
  return impl_->executor->memory();
}
const std::string& Engine::device_description() const {
  return impl_->executor->description();
}
int64_t Engine::max_model_len() const {
  return impl_->executor->memory().max_model_len;
}
const text::Tokenizer* Engine::tokenizer() const {
  return impl_->tokenizer.get();
}
const text::ChatTemplate* Engine::chat_template() const {
  return impl_->chat_template ? &*impl_->chat_template : nullptr;
}
const TextSource& Engine::text() const {
  return impl_->text;
}
Metrics& Engine::metrics() {
  return impl_->metrics;
}

}  // namespace quire::engine
