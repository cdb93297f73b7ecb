#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "engine/request_metrics.h"
#include "engine/token_stream.h"
#include "sched/scheduler.h"

namespace quire::engine {
namespace {

// Spreads consecutive request numbers over all seeds (the finaliser of SplitMix64; Steele, Lea and Flood, 2014).
uint64_t mixed_seed(uint64_t engine_seed, uint64_t request_number) {
  uint64_t x = engine_seed * 0x9E3779B97F4A7C15u + request_number + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

sched::SchedulerConfig scheduler_config(const EngineConfig& config, const MemoryPlan& memory) {
  return {.max_num_seqs = config.max_num_seqs,
          .max_num_batched_tokens = config.max_num_batched_tokens,
          .max_model_len = static_cast<int32_t>(memory.max_model_len),
          .num_blocks = static_cast<int32_t>(memory.num_blocks),
          .block_size = memory.block_size};
}

}  // namespace

struct Engine::Impl {
  // A request on its way from a consumer to the scheduler.
  struct Submission {
    sched::SequenceRequest request;
    std::shared_ptr<TokenStream::State> stream;
  };
  // A request that the scheduler knows.
  struct Active {
    std::shared_ptr<TokenStream::State> stream;
    RequestRecord record;
  };

  Impl(EngineConfig engine_config, std::unique_ptr<runner::Executor> the_executor)
      : config(std::move(engine_config)),
        executor(std::move(the_executor)),
        scheduler(scheduler_config(config, executor->memory())),
        engine_metrics(metrics, config.served_model_name) {}

  Status load_text();
  void loop();
  bool accept();
  void admit(Submission submission);
  bool step();
  StepResult execute();
  void commit(StepResult result);
  void deliver(SequenceId id, TokenEvent event);
  void abort_all(const Status& reason, FinishReason finish);
  void publish_stats();
  Result<std::unique_ptr<TokenStream>> submit(GenerationRequest request);

  const EngineConfig config;
  std::unique_ptr<runner::Executor> executor;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;

  // Of the engine thread alone.
  sched::Scheduler scheduler;
  std::unordered_map<SequenceId, Active> active;
  StepPlan plan;
  uint64_t num_preemptions_seen = 0;

  // Shared.
  Metrics metrics;
  EngineMetrics engine_metrics;
  std::shared_ptr<Inbox> cancels = std::make_shared<Inbox>();  // also the lock and the bell of `submissions`
  std::deque<Submission> submissions;                          // guarded by cancels->mutex
  bool stopping = false;                                       // guarded by cancels->mutex
  bool draining = false;                                       // guarded by cancels->mutex
  int64_t num_queued = 0;        // submitted and not yet running; guarded by cancels->mutex
  int64_t num_unfinished = 0;    // guarded by cancels->mutex
  std::condition_variable idle;  // num_unfinished became 0
  Status failure;                // guarded by cancels->mutex
  EngineStats stats;             // guarded by cancels->mutex
  std::atomic<SequenceId> next_id{1};
  std::thread thread;
};

Status Engine::Impl::load_text() {
  if (config.skip_tokenizer_init) return {};
  const TextSource& source = executor->text();
  if (source.vocabulary) {
    QUIRE_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::from_vocabulary(*source.vocabulary));
  } else if (!source.tokenizer_json.empty()) {
    QUIRE_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::from_json(source.tokenizer_json));
  } else {
    return not_found(
        "the model has no tokenizer (no tokenizer.json, no vocabulary in the file). Name one with --tokenizer, or "
        "serve "
        "token ids with --skip-tokenizer-init.");
  }
  if (tokenizer->vocab_size() > executor->model().vocab_size) {
    // Padding of the embedding goes the other way; ids that the model has no row for cannot be computed.
    log_warning("the tokenizer has {} tokens, the model only {}: prompts with the others are refused",
                tokenizer->vocab_size(), executor->model().vocab_size);
  }
  if (!source.chat_template.empty()) {
    auto parsed = text::ChatTemplate::parse(source.chat_template);
    if (parsed.ok()) {
      chat_template = std::move(*parsed);
    } else {
      log_warning("the chat template cannot be used ({}): chat requests are refused; name another with --chat-template",
                  parsed.status().message());
    }
  }
  return {};
}

// The engine thread.

void Engine::Impl::loop() {
  try {
    executor->bind_thread();
    while (accept()) {
      while (step()) {
        if (!accept()) return abort_all(unavailable("the engine was stopped"), FinishReason::kAbort);
      }
    }
    abort_all(unavailable("the engine was stopped"), FinishReason::kAbort);
  } catch (const std::exception& error) {
    log_error("the engine failed: {}", error.what());
    abort_all(internal_error("the engine failed: {}", error.what()), FinishReason::kError);
  }
}

// Phase "accept": new requests and cancels since the last step. Waits for some when there is nothing else to do. False:
// the engine is to stop.
bool Engine::Impl::accept() {
  std::deque<Submission> fresh;
  std::vector<SequenceId> gone;
  {
    std::unique_lock lock(cancels->mutex);
    if (!scheduler.has_work()) {
      cancels->bell.wait(lock, [&] { return stopping || !submissions.empty() || !cancels->ids.empty(); });
    }
    if (stopping) return false;
    fresh.swap(submissions);
    gone.swap(cancels->ids);
  }
  if (fresh.empty() && gone.empty()) return true;
  const PhaseTimer timer(engine_metrics.phase(Phase::kAccept));
  for (Submission& submission : fresh) admit(std::move(submission));
  for (SequenceId id : gone) {
    if (scheduler.cancel(id)) deliver(id, TokenEvent{.finish = FinishReason::kAbort});
  }
  publish_stats();
  return true;
}

void Engine::Impl::admit(Submission submission) {
  const SequenceId id = submission.request.id;
  Active entry{.stream = std::move(submission.stream), .record = {}};
  entry.record.accepted(submission.request);
  engine_metrics.accepted(entry.record);
  const Status added = scheduler.add(std::move(submission.request));
  active.emplace(id, std::move(entry));
  // submit() has asked before; a scheduler that is stricter now is a fault of this request alone.
  if (!added.ok()) deliver(id, TokenEvent{.finish = FinishReason::kError, .error = added});
}

// One step through its phases. False: nothing to do now.
bool Engine::Impl::step() {
  bool planned = false;
  {
    const PhaseTimer timer(engine_metrics.phase(Phase::kSchedule));
    planned = scheduler.schedule(plan);
  }
  if (!planned) return false;
  publish_stats();  // who was waiting runs now
  const auto now = Clock::now();
  for (const NewSequence& added : plan.added) active.at(added.id).record.scheduled(now);
  commit(execute());
  publish_stats();
  return true;
}

StepResult Engine::Impl::execute() {
  auto result = executor->execute(plan);
  if (!result.ok()) throw std::runtime_error(result.status().message());  // ends the engine: see loop()
  const runner::StepTimings timings = executor->last_timings();
  engine_metrics.phase(Phase::kPrepare).increment(timings.prepare);
  engine_metrics.phase(Phase::kForward).increment(timings.forward);
  engine_metrics.phase(Phase::kSample).increment(timings.sample);
  engine_metrics.stepped(plan);
  return std::move(*result);
}

void Engine::Impl::commit(StepResult result) {
  std::vector<sched::CommitEvent> events;
  {
    const PhaseTimer timer(engine_metrics.phase(Phase::kCommit));
    events = scheduler.commit(plan, std::move(result));
  }
#ifndef NDEBUG
  scheduler.check_invariants();
#endif
  const PhaseTimer timer(engine_metrics.phase(Phase::kDeliver));
  for (sched::CommitEvent& committed : events) deliver(committed.id, std::move(committed.event));
}

void Engine::Impl::deliver(SequenceId id, TokenEvent event) {
  const auto found = active.find(id);
  if (found == active.end()) return;
  Active& entry = found->second;
  if (event.stop_token) {
    const std::vector<TokenId>& eos = executor->model().eos_ids;
    event.stopped_by_eos = std::find(eos.begin(), eos.end(), *event.stop_token) != eos.end();
  }
  engine_metrics.delivered(entry.record, event);
  const bool last = event.finish != FinishReason::kNone;
  entry.stream->put(std::move(event));
  if (!last) return;
  active.erase(found);
  const std::lock_guard lock(cancels->mutex);
  if (--num_unfinished == 0) idle.notify_all();
}

void Engine::Impl::abort_all(const Status& reason, FinishReason finish) {
  std::deque<Submission> fresh;
  {
    const std::lock_guard lock(cancels->mutex);
    stopping = true;
    if (finish == FinishReason::kError) failure = reason;
    fresh.swap(submissions);
  }
  for (Submission& submission : fresh) active.emplace(submission.request.id, Active{std::move(submission.stream), {}});
  std::vector<SequenceId> ids;
  for (const auto& [id, entry] : active) ids.push_back(id);
  for (SequenceId id : ids) {
    deliver(id, TokenEvent{.finish = finish, .error = finish == FinishReason::kError ? reason : Status()});
  }
}

void Engine::Impl::publish_stats() {
  const sched::SchedulerStats now = scheduler.stats();
  engine_metrics.preempted(now.preemptions - num_preemptions_seen);
  num_preemptions_seen = now.preemptions;
  engine_metrics.occupancy(now.running, now.waiting, now.blocks_used, now.blocks_total);
  const std::lock_guard lock(cancels->mutex);
  num_queued = now.waiting + static_cast<int64_t>(submissions.size());
  stats.num_running = now.running;
  stats.num_waiting = num_queued;
  stats.blocks_used = now.blocks_used;
  stats.blocks_total = now.blocks_total;
  stats.num_preemptions = static_cast<int64_t>(now.preemptions);
  stats.num_steps = static_cast<int64_t>(plan.step);
}

// Consumers' threads.

Result<std::unique_ptr<TokenStream>> Engine::Impl::submit(GenerationRequest request) {
  const ModelConfig& model = executor->model();
  const SamplingLimits limits{.vocab_size = model.vocab_size, .max_logprobs = config.max_logprobs};
  QUIRE_RETURN_IF_ERROR(validate(request.params, limits));
  for (TokenId id : request.prompt) {
    if (id >= 0 && id < model.vocab_size) continue;
    return invalid_argument("the prompt contains token id {}, which is not in the vocabulary of {} tokens", id,
                            model.vocab_size)
        .with_param("prompt");
  }
  QUIRE_RETURN_IF_ERROR(scheduler.check_fits(static_cast<int64_t>(request.prompt.size()), request.params));

  const SequenceId id = next_id.fetch_add(1);
  const uint64_t seed = request.params.seed ? *request.params.seed : mixed_seed(config.seed, id);
  const bool ignore_eos = request.params.ignore_eos;
  Submission submission{.request = {.id = id,
                                    .prompt = std::move(request.prompt),
                                    .params = std::make_shared<const SamplingParams>(std::move(request.params)),
                                    .seed = seed,
                                    .eos_ids = ignore_eos ? std::vector<TokenId>() : model.eos_ids},
                        .stream = std::make_shared<TokenStream::State>(id, cancels)};
  auto stream = std::make_unique<TokenStream>(submission.stream);
  {
    const std::lock_guard lock(cancels->mutex);
    Status refusal;
    if (!failure.ok()) {
      refusal = unavailable("the engine has failed and must be restarted");
    } else if (stopping || draining) {
      refusal = unavailable("the server is shutting down");
    } else if (num_queued >= config.max_num_queued_reqs) {
      refusal = resource_exhausted("{} requests are waiting already; try again later", num_queued);
    }
    if (!refusal.ok()) {
      submission.stream->close();
      return refusal;
    }
    submissions.push_back(std::move(submission));
    ++num_queued;
    ++num_unfinished;
    cancels->bell.notify_one();
  }
  return stream;
}

// The engine's outside.

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config, std::unique_ptr<runner::Executor> executor) {
  QUIRE_RETURN_IF_ERROR(sched::validate(scheduler_config(config, executor->memory())));
  auto impl = std::make_unique<Impl>(std::move(config), std::move(executor));
  QUIRE_RETURN_IF_ERROR(impl->load_text());
  impl->publish_stats();
  impl->thread = std::thread([raw = impl.get()] { raw->loop(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(impl_->cancels->mutex);
    impl_->stopping = true;
    impl_->cancels->bell.notify_one();
  }
  impl_->thread.join();
}

Result<std::unique_ptr<TokenStream>> Engine::submit(GenerationRequest request) {
  return impl_->submit(std::move(request));
}

void Engine::drain(std::chrono::milliseconds deadline) {
  std::unique_lock lock(impl_->cancels->mutex);
  impl_->draining = true;
  if (impl_->idle.wait_for(lock, deadline, [&] { return impl_->num_unfinished == 0; })) return;
  impl_->stopping = true;
  impl_->cancels->bell.notify_one();
  impl_->idle.wait(lock, [&] { return impl_->num_unfinished == 0; });
}

bool Engine::healthy() const {
  const std::lock_guard lock(impl_->cancels->mutex);
  return impl_->failure.ok();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->cancels->mutex);
  EngineStats stats = impl_->stats;
  stats.num_waiting = impl_->num_queued;  // those that the engine thread has not seen yet included
  return stats;
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
  return impl_->executor->text();
}
Metrics& Engine::metrics() {
  return impl_->metrics;
}

}  // namespace quire::engine
