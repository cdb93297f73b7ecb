// The engine thread, or its caller's: one turn of the loop is the same code.
#include <algorithm>
#include <exception>
#include <stdexcept>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace quire::engine {
namespace {

constexpr std::chrono::milliseconds kDiskPatience{100};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Adds the time from its construction to its end to a phase's counter and to the step's record.
class PhaseTimer {
 public:
  PhaseTimer(EngineMetrics& metrics, Phase phase, StepRecord* record)
      : metrics_(metrics), phase_(phase), record_(record) {}
  ~PhaseTimer() {
    const double seconds = seconds_since(start_);
    metrics_.phase(phase_).increment(seconds);
    if (record_ != nullptr) record_->seconds[static_cast<size_t>(phase_)] += seconds;
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  EngineMetrics& metrics_;
  Phase phase_;
  StepRecord* record_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

void Engine::Impl::note_progress() {
  progress_at.store(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(), std::memory_order_relaxed);
}

void Engine::Impl::loop() {
  try {
    executor->bind_thread();
    while (turn(/*wait=*/true)) {
    }
    abort_all(unavailable("the engine was stopped"), FinishReason::kAbort);
  } catch (const std::exception& error) {
    fail(error);
  }
}

// One turn of the loop. False: the engine is to stop.
bool Engine::Impl::turn(bool wait) {
  if (!accept(wait)) return false;
  bool failed = false;
  {
    const std::lock_guard lock(inbox->mutex);
    failed = std::exchange(inbox->workers_failed, false);
  }
  // Else collect() has seen it first.
  if (const Status status = failed ? executor->status() : Status(); !status.ok()) recover(status);
  step();
  return true;
}

void Engine::Impl::fail(const std::exception& error) {
  log_error("the engine failed: {}", error.what());
  abort_all(internal_error("the engine failed: {}", error.what()), FinishReason::kError);
}

Status Engine::Impl::step_for_caller() {
  if (drive != Drive::kCaller) {
    return invalid_argument(
        "step() is for an engine that was created with Drive::kCaller; this one has its own thread");
  }
  if (in_step.exchange(true, std::memory_order_acquire)) {
    return invalid_argument("another thread is in step(); one thread at a time makes an engine's steps");
  }
  Status status;
  {
    const std::lock_guard lock(inbox->mutex);
    if (!failure.ok()) status = unavailable("the engine has failed and must be created anew");
  }
  if (status.ok()) {
    try {
      if (bound_thread != std::this_thread::get_id()) executor->bind_thread();
      bound_thread = std::this_thread::get_id();
      turn(/*wait=*/false);
      deliver_committed(nullptr);  // no step of ours need be under way for it: the caller asked for this one's events
    } catch (const std::exception& error) {
      fail(error);
      status = internal_error("the engine failed: {}", error.what());
    }
    progress_at.store(0, std::memory_order_relaxed);
    const std::lock_guard lock(inbox->mutex);
    work_left = scheduler.has_work() || !awaiting.empty();
  }
  in_step.store(false, std::memory_order_release);
  return status;
}

// Phase "accept": new requests and cancels since the last step. With `wait`, waits for some when there is nothing else
// to do. False: the engine is to stop.
bool Engine::Impl::accept(bool wait) {
  if (!scheduler.has_work()) {
    deliver_committed(nullptr);
    if (adapters != nullptr) publish_adapters();  // that nobody runs any more
  }
  std::deque<Submission> fresh;
  std::deque<Transfer> moved;
  std::vector<EndedAnswer> gone;
  bool reset = false;
  bool reported = false;
  {
    std::unique_lock lock(inbox->mutex);
    const auto called = [&] {
      return stopping || reset_prefix_cache || !submissions.empty() || !inbox->ended.empty() || !grants->list.empty() ||
             *offload_reported || inbox->workers_failed || !fresh_transfers.empty();
    };
    // Who makes the steps waits for adapters and for blocks on disk as well: there is nothing else to do.
    if ((wait || !awaiting.empty()) && !scheduler.has_work()) {
      progress_at.store(0, std::memory_order_relaxed);
      inbox->bell.wait(lock, called);
    } else if (scheduler.waits_for_disk()) {
      inbox->bell.wait_for(lock, kDiskPatience, called);  // deadlines pass meanwhile
    }
    note_progress();
    if (stopping) return false;
    fresh.swap(submissions);
    moved.swap(fresh_transfers);
    gone.swap(inbox->ended);
    reset = std::exchange(reset_prefix_cache, false);
    reported = std::exchange(*offload_reported, false);
  }
  const PhaseTimer timer(engine_metrics, Phase::kAccept, nullptr);
  if (reported) take_reports();
  if (reset) {
    scheduler.reset_prefix_cache();
    send_orders();
    if (trace) trace->reset_prefix_cache();
    tell_kv_events();
  }
  if (!moved.empty()) begin_transfers(std::move(moved));
  for (Submission& submission : fresh) admit(std::move(submission));
  for (const EndedAnswer& one : gone) end_answer(one);
  if (adapters != nullptr) take_grants();
  const bool expired = expire();  // who waited in the inbox for too long is not computed
  if (!fresh.empty() || !gone.empty() || reset || expired || reported) publish_stats();
  return true;
}

void Engine::Impl::admit(Submission submission) {
  const SequenceId first = submission.request.id;
  for (size_t i = 0; i < submission.streams.size(); ++i) {
    const SequenceId id = first + static_cast<SequenceId>(i);
    Active entry{.stream = std::move(submission.streams[i]),
                 .record = {},
                 .group = first,
                 .group_size = static_cast<int32_t>(submission.streams.size())};
    entry.record.accepted(submission.request, submission.timeline);
    entry.record.answers = submission.answers;
    entry.adapter = submission.adapter;
    count_adapter(entry, +1);
    if (i == 0) engine_metrics.accepted(entry.record, /*is_first=*/!submission.request.fork_of);
    active.emplace(id, std::move(entry));
    recorder.queued(id, submission.label, static_cast<int64_t>(submission.request.prompt.size()), submission.adapter);
  }
  if (submission.deadline) deadlines.push({*submission.deadline, first});
  if (submission.adapter.empty()) return schedule(std::move(submission));
  await_adapter(std::move(submission));
}

void Engine::Impl::schedule(Submission submission) {
  const SequenceId first = submission.request.id;
  if (trace) trace->add(submission.request);
  const auto count = static_cast<SequenceId>(submission.streams.size());
  const Status added = scheduler.add(std::move(submission.request));
  if (added.ok()) return;
  // submit() has asked before; a scheduler that is stricter now is a fault of this request alone.
  for (SequenceId id = first; id < first + count; ++id) {
    deliver(id, TokenEvent{.finish = FinishReason::kError, .error = added});
  }
}

// As its consumer has said.
void Engine::Impl::end_answer(const EndedAnswer& one) {
  deliver_committed(nullptr);  // what came before, which the consumer may not have looked at
  const auto found = active.find(one.id);
  if (found == active.end()) return;
  if (one.num_tokens) found->second.record.num_output_tokens = *one.num_tokens;
  cancel(one.id, one.finish, {});
}

// Ends an answer before its time; all answers of a beam search together. Every one of their streams is told, whatever
// the scheduler knows of them.
void Engine::Impl::cancel(SequenceId id, FinishReason finish, const Status& error) {
  deliver_committed(nullptr);  // what came before
  const auto found = active.find(id);
  if (found == active.end()) return;
  const SequenceId first = found->second.group;
  const auto count = static_cast<SequenceId>(found->second.group_size);
  forget_awaiting(first);
  if (scheduler.cancel(first) && trace) trace->cancel(first);
  for (SequenceId one = first; one < first + count; ++one) {
    deliver(one, TokenEvent{.finish = finish, .error = error});
  }
}

// True: a deadline was there.
bool Engine::Impl::expire() {
  const Clock::time_point now = Clock::now();
  bool any = false;
  while (!deadlines.empty() && deadlines.top().at <= now) {
    const SequenceId id = deadlines.top().id;
    deadlines.pop();
    cancel(id, FinishReason::kError, deadline_exceeded("the request took longer than its timeout allows"));
    any = true;
  }
  return any;
}

// One step through its phases. False: nothing to do now.
bool Engine::Impl::step() {
  plan_ahead();
  send_orders();
  deliver_committed(in_flight.empty() ? nullptr : &in_flight.front().record);
  tell_kv_events();
  if (in_flight.empty()) return false;
  collect();
  send_orders();
  publish_stats();
  return true;
}

// What became of blocks between host memory and disk.
void Engine::Impl::take_reports() {
  OffloadReports reports = executor->take_reports();
  if (reports.empty()) return;
  scheduler.report(reports);
  report_transfers(reports);
}

void Engine::Impl::tell_kv_events() {
  if (!scheduler.has_kv_events()) return;
  std::vector<KvCacheEvent> events = scheduler.take_kv_events();
  for (KvCacheEvent& event : events) {
    if (const auto name = adapter_names.find(event.adapter); name != adapter_names.end()) {
      event.adapter_name = name->second;
    }
  }
  std::function<void(std::vector<KvCacheEvent>)> tell;
  {
    const std::lock_guard lock(inbox->mutex);
    tell = kv_events;
  }
  if (tell) tell(std::move(events));
}

void Engine::Impl::send_orders() {
  if (scheduler.has_orders()) executor->order(scheduler.take_orders());
}

// An executor with a thread of its own is kept busy, and each stage of a pipeline; without one, num_scheduler_steps
// plans are made at a time.
void Engine::Impl::plan_ahead() {
  if (!in_flight.empty() && !config.async_scheduling && scheduling.num_stages == 1) return;
  while (static_cast<int32_t>(in_flight.size()) < scheduling.max_plans_in_flight && plan_one()) {
  }
}

bool Engine::Impl::plan_one() {
  if (spare.empty()) spare.emplace_back();
  InFlight& next = spare.front();
  next.record = StepRecord();
  StepPlan plan = std::move(spare_plan);
  {
    const PhaseTimer timer(engine_metrics, Phase::kSchedule, &next.record);
    if (!scheduler.schedule(plan)) {
      spare_plan = std::move(plan);
      return false;
    }
  }
  next.plan.note(plan);
  in_flight.splice(in_flight.end(), spare, spare.begin());
  if (trace) trace->planned(plan);
  const Clock::time_point now = Clock::now();
  int64_t started_tokens = 0;
  for (const NewSequence& added : plan.added) {
    const auto found = active.find(added.id);
    if (found == active.end()) continue;  // a beam without an answer of its own
    Active& entry = found->second;
    if (!entry.record.started && entry.group == added.id) started_tokens += entry.record.num_prompt_tokens;
    count_adapter(entry, -1);
    entry.record.scheduled(now);
    count_adapter(entry, +1);
    recorder.happened(added.id, "scheduled");
  }
  for (const SequenceId id : scheduler.last_preempted()) {
    if (const auto found = active.find(id); found != active.end()) ++found->second.record.num_preemptions;
  }
  publish_stats();  // who was waiting runs now
  if (started_tokens > 0) {
    const std::lock_guard lock(inbox->mutex);
    num_queued_tokens -= started_tokens;
    inbox->room.notify_all();
  }
  if (recorder.on()) {
    StepRecord& record = next.record;
    record.step = plan.step;
    record.time = recorder.now();
    record.num_tokens = plan.num_tokens;
    record.running = seen.running;
    record.waiting = seen.waiting;
    record.swapped = seen.swapped;
    record.blocks_used = seen.blocks_used;
    record.blocks_cached = seen.blocks_cached;
    record.blocks_total = seen.blocks_total;
    record.copies = static_cast<int32_t>(plan.copies.size());
    record.swapped_in = static_cast<int32_t>(plan.swap_in.size());
    record.swapped_out = static_cast<int32_t>(plan.swap_out.size());
    record.preempted = scheduler.last_preempted();
    record.runs.reserve(plan.scheduled.size());
    for (const ScheduledSequence& run : plan.scheduled) {
      record.runs.push_back({run.id, run.num_computed_tokens, run.num_new_tokens, run.num_draft_tokens});
    }
  }
  executor->submit(std::move(plan));
  return true;
}

// The workers have failed and are started again. What they knew is gone; every request goes on from its tokens, whose
// keys and values are computed anew, and gets the answer that it would have had: a token depends on its request alone.
void Engine::Impl::recover(const Status& why) {
  if (!executor->can_recover()) throw std::runtime_error(why.message());  // ends the engine: see loop()
  const auto tell = [this](std::string trouble_now) {
    const std::lock_guard lock(inbox->mutex);
    trouble = std::move(trouble_now);
  };
  tell(why.message());
  engine_metrics.workers_failed();
  deliver_committed(nullptr);
  const Status begun = executor->recover();
  if (!begun.ok()) throw std::runtime_error(begun.message());
  engine_metrics.workers_started_again();
  if (trace) {
    log_warning("the trace ends here: what comes after workers are started again cannot be replayed");
    trace.reset();
  }
  spare.splice(spare.end(), in_flight);
  scheduler.forget_runner();
  tell_kv_events();
  publish_stats();
  tell("");
}

void Engine::Impl::collect() {
  auto step = executor->collect();
  if (!step.ok()) return recover(step.status());
  InFlight& done = in_flight.front();
  const runner::StepTimings& timings = step->timings;
  engine_metrics.phase(Phase::kPrepare).increment(timings.prepare);
  engine_metrics.phase(Phase::kForward).increment(timings.forward);
  engine_metrics.phase(Phase::kSample).increment(timings.sample);
  engine_metrics.constraints(timings.constraints);
  engine_metrics.stepped(done.plan);
  done.record.replayed = timings.replayed;
  done.record.ahead = timings.ahead;
  done.record.host_rows = timings.host_rows;
  done.record.draw_bytes = timings.draw_bytes;
  done.record.collect = timings.collect;
  done.record.wait = timings.wait;
  done.record.seconds[static_cast<size_t>(Phase::kPrepare)] = timings.prepare;
  done.record.seconds[static_cast<size_t>(Phase::kForward)] = timings.forward;
  done.record.seconds[static_cast<size_t>(Phase::kSample)] = timings.sample;
  if (costs.observe(done.plan, timings.computed, timings.swap)) {
    scheduler.set_preemption_costs(costs.costs());
    if (trace) trace->costs(costs.costs());
  }
  scheduler.step_took(done.plan, timings.computed + timings.sample);
  commit(done, std::move(step->result));
  spare_plan = std::move(step->plan);
  spare_plan.added.clear();  // prompts and parameters are not to outlive their requests in it
  recorder.record(std::move(done.record));
  spare.splice(spare.end(), in_flight, in_flight.begin());
}

void Engine::Impl::commit(InFlight& done, StepResult result) {
  if (trace) trace->committed(result);
  QUIRE_CHECK(undelivered.empty());
  {
    const PhaseTimer timer(engine_metrics, Phase::kCommit, &done.record);
    undelivered = scheduler.commit(done.plan, std::move(result));
  }
#ifndef NDEBUG
  scheduler.check_invariants();
#endif
}

// What the last step's result meant for its consumers. They are told when the next step is under way: a device does not
// stand still for it. record: of the step that it is done beside.
void Engine::Impl::deliver_committed(StepRecord* record) {
  if (undelivered.empty()) return;
  const PhaseTimer timer(engine_metrics, Phase::kDeliver, record);
  for (sched::CommitEvent& committed : std::exchange(undelivered, {})) {
    deliver(committed.id, std::move(committed.event));
  }
}

void Engine::Impl::deliver(SequenceId id, TokenEvent event) {
  const auto found = active.find(id);
  if (found == active.end()) return;
  Active& entry = found->second;
  if (event.stop_token) {
    event.stopped_by_eos = std::ranges::count(eos_ids, *event.stop_token) > 0;
  }
  event.adapter_revision = entry.adapter_revision;
  if (const int32_t own = entry.num_virtual_tokens; own > 0) {  // those of a soft prompt are not the client's
    if (event.num_cached_tokens) event.num_cached_tokens = std::max(0, *event.num_cached_tokens - own);
    const auto dropped = std::min(event.prompt_logprobs.size(), static_cast<size_t>(own));
    event.prompt_logprobs.erase(event.prompt_logprobs.begin(),
                                event.prompt_logprobs.begin() + static_cast<ptrdiff_t>(dropped));
  }
  engine_metrics.delivered(entry.record, event);
  recorder.delivered(id, event);
  const bool last = event.finish != FinishReason::kNone;
  entry.stream->put(std::move(event));
  if (!last) return;
  const int64_t queued = entry.record.started || id != entry.group ? 0 : entry.record.num_prompt_tokens;
  count_adapter(entry, -1);
  active.erase(found);
  const std::lock_guard lock(inbox->mutex);
  num_queued_tokens -= queued;
  inbox->room.notify_all();
}

void Engine::Impl::abort_all(const Status& reason, FinishReason finish) {
  std::deque<Submission> fresh;
  deliver_committed(nullptr);
  awaiting.clear();
  {
    const std::lock_guard lock(inbox->mutex);
    stopping = true;
    if (finish == FinishReason::kError) failure = reason;
    fresh.swap(submissions);
    inbox->room.notify_all();
  }
  end_transfers(unavailable("the engine has stopped"));
  for (Submission& submission : fresh) {
    for (size_t i = 0; i < submission.streams.size(); ++i) {
      active.emplace(submission.request.id + static_cast<SequenceId>(i),
                     Active{.stream = std::move(submission.streams[i]), .record = {}});
    }
  }
  std::vector<SequenceId> ids;
  for (const auto& [id, entry] : active) ids.push_back(id);
  for (const SequenceId id : ids) {
    deliver(id, TokenEvent{.finish = finish, .error = finish == FinishReason::kError ? reason : Status()});
  }
}

void Engine::Impl::publish_stats() {
  sched::SchedulerStats now = scheduler.stats();
  now.waiting += static_cast<int32_t>(num_awaiting());
  if (adapters != nullptr) publish_adapters();
  engine_metrics.occupancy(now, seen);
  seen = now;
  const std::lock_guard lock(inbox->mutex);
  const int64_t queued = now.waiting + static_cast<int64_t>(submissions.size());
  if (queued < std::exchange(num_queued, queued)) inbox->room.notify_all();
  stats.num_running = now.running;
  stats.num_waiting = num_queued;
  stats.num_swapped = now.swapped;
  stats.blocks_used = now.blocks_used;
  stats.blocks_cached = now.blocks_cached;
  stats.blocks_total = now.blocks_total;
  stats.num_preemptions = static_cast<int64_t>(now.preemptions);
  stats.num_swaps = static_cast<int64_t>(now.swaps);
  stats.prefix_query_tokens = now.prefix_query_tokens;
  stats.prefix_hit_tokens = now.prefix_hit_tokens;
  stats.num_drafts = now.drafts;
  stats.num_draft_tokens = now.draft_tokens;
  stats.num_accepted_tokens = now.accepted_draft_tokens;
  if (!in_flight.empty()) stats.num_steps = static_cast<int64_t>(in_flight.back().plan.step);
}

}  // namespace quire::engine
