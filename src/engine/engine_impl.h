// The engine's inside: what consumers' threads and the engine thread share, and the loop. Private to engine/.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "engine/request_cost.h"
#include "engine/request_metrics.h"
#include "engine/token_stream.h"
#include "engine/trace.h"
#include "runner/adapter_store.h"
#include "runner/draft/proposers.h"
#include "sched/cost_meter.h"
#include "sched/scheduler.h"

namespace quire::engine {

struct Engine::Impl {
  // A request on its way from a consumer to the scheduler: one sequence, or a beam search (one stream an answer, the
  // i-th answer's id being request.id + i).
  struct Submission {
    sched::SequenceRequest request;
    std::vector<std::shared_ptr<TokenStream::State>> streams;
    std::string label;
    std::optional<Clock::time_point> deadline;
    std::string adapter;  // by its name; empty: none
    std::shared_ptr<RequestTimeline> timeline;
    std::shared_ptr<RequestAnswers> answers;
  };
  // All of a request, and its answers' other ends.
  struct SubmissionGroup {
    std::vector<Submission> submissions;
    std::vector<std::unique_ptr<TokenStream>> streams;
  };
  // Blocks of the prefix cache to another instance (`exported`), or from one.
  struct Transfer {
    std::vector<TokenId> prompt;  // of an export
    kv::CacheContext context;
    KvPrefix prefix;
    std::function<void(Result<KvPrefix>)> exported;
    std::function<void(Result<int64_t>)> imported;
    std::unordered_map<uint64_t, size_t> blocks = {};  // of prefix.places, by the orders that are not reported yet
    int64_t num_blocks = 0;
  };
  // An adapter that some submissions wait for is there, or cannot be.
  struct Grant {
    SequenceId id = 0;  // the first of them
    runner::AdapterStore::LeaseOr lease;
  };
  // What is left for the engine thread, like the inbox and under its lock.
  struct Grants {
    std::vector<Grant> list;
  };
  // An answer that the scheduler is at work on.
  struct Active {
    std::shared_ptr<TokenStream::State> stream;
    RequestRecord record;
    SequenceId group = 0;  // the ids [group, group + group_size) end together: a beam search's answers
    int32_t group_size = 1;
    std::string adapter;             // by its name
    uint64_t adapter_revision = 0;   // from when it is in memory
    int32_t num_virtual_tokens = 0;  // that it puts before the prompt
  };
  struct InFlight {
    PlannedStep plan;
    StepRecord record;
  };
  struct Deadline {
    Clock::time_point at;
    SequenceId id;
    bool operator>(const Deadline& other) const { return at > other.at; }
  };

  // What several engines behind one front have in common, and which this one is.
  struct Seat {
    int number = 0;
    int count = 1;
    std::shared_ptr<ConstraintTable> constraints = std::make_shared<ConstraintTable>();
    std::shared_ptr<std::atomic<SequenceId>> next_id = std::make_shared<std::atomic<SequenceId>>(1);
  };

  Impl(EngineConfig engine_config, TextSource model_text, std::unique_ptr<runner::Executor> the_executor,
       Metrics* shared_metrics, Drive whose_thread, const Seat& seat);

  // engine.cpp: before the loop, and consumers' threads.
  Status load_text();
  Status open_trace();
  Result<std::vector<std::unique_ptr<TokenStream>>> submit(GenerationRequest request, WhenFull when_full);
  Result<PreparedParams> prepare(SamplingParams params, bool shows_logprobs, int32_t tenant,
                                 std::shared_ptr<const TokenConstraint> compiled) const;
  Status check(std::span<const TokenId> prompt, const SamplingParams& params) const;
  Status check_prompt(std::span<const TokenId> prompt, const SamplingParams& params) const;
  Status check_output(OutputKind kind, const SamplingParams& params) const;
  CostFacts cost_facts() const;
  Status check_cost(const SamplingParams& params, const RequestCost& cost) const;
  SamplingLimits limits() const;
  void compile_structured_output(const StructuredOutput& output, int32_t tenant, grammar::Compiler::Done done) const;
  Result<std::shared_ptr<const TokenConstraint>> compile_structured_output(const StructuredOutput& output,
                                                                           int32_t tenant) const;
  // Why nothing more may wait now. bound: which one, where room may come.
  struct Refusal {
    Status status;
    const char* bound = nullptr;
  };
  Refusal refusal_locked(int64_t sequences, int64_t tokens, int64_t bytes) const;
  // The steps of submit().
  Status check_and_truncate(GenerationRequest& request) const;
  std::optional<Clock::time_point> deadline_of(const GenerationRequest& request) const;
  Submission common_submission(GenerationRequest& request) const;
  SubmissionGroup make_group(GenerationRequest request, const RequestCost& cost);
  Status enqueue(SubmissionGroup& group, int64_t num_prompt_tokens, const RequestCost& cost, WhenFull when_full);

  // adapters.cpp: requests that name one, on the engine thread.
  void await_adapter(Submission submission);
  void take_grants();
  void forget_awaiting(SequenceId id);
  size_t num_awaiting() const;
  void count_adapter(const Active& entry, int by);
  void publish_adapters();

  // engine_loop.cpp: the engine thread.
  void loop();
  Status step_for_caller();
  bool turn(bool wait);
  void fail(const std::exception& error);
  void note_progress();
  bool accept(bool wait);
  void admit(Submission submission);
  void schedule(Submission submission);
  void end_answer(const EndedAnswer& one);
  void cancel(SequenceId id, FinishReason finish, const Status& error);
  bool expire();
  bool step();
  void plan_ahead();
  bool plan_one();
  void collect();
  void recover(const Status& why);
  void commit(InFlight& done, StepResult result);
  void deliver_committed(StepRecord* record);
  void deliver(SequenceId id, TokenEvent event);
  void abort_all(const Status& reason, FinishReason finish);
  void publish_stats();
  void take_reports();
  void send_orders();
  void tell_kv_events();

  // transfers.cpp: blocks to and from other instances.
  kv::CacheContext context_of(std::string salt, int64_t num_prompt_tokens) const;
  Status check_import(std::span<const TokenId> prompt, const KvPrefix& prefix) const;
  void add_transfer(Transfer transfer);
  void begin_transfers(std::deque<Transfer> fresh);
  void report_transfers(OffloadReports& reports);
  static void end_transfer(Transfer& transfer, const Status& status);
  void end_transfers(const Status& status);

  const EngineConfig config;
  const TextSource text;
  const Drive drive;
  const sched::SchedulerConfig scheduling;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<TokenId> eos_ids;  // the model's, and the tokenizer's
  std::optional<text::ChatTemplate> chat_template;
  std::unique_ptr<grammar::Compiler> compiler;         // where there is a tokenizer
  std::unique_ptr<BreakerSets> breakers;               // the same
  const std::shared_ptr<ConstraintTable> constraints;  // of requests; the executor's too

  // Of the engine thread alone, or of the thread in step_for_caller(). The executor goes last: what is below may use
  // adapters in its memory.
  std::unique_ptr<runner::Executor> executor;
  const std::shared_ptr<runner::AdapterStore> adapters;                         // nullptr: there are none
  std::unordered_map<SequenceId, std::vector<Submission>> awaiting;             // an adapter, by the first's id
  std::map<std::string, std::array<int32_t, 2>, std::less<>> adapter_requests;  // by name: that run, that wait
  bool adapter_requests_changed = false;
  // By their numbers, which rise, where events of the cache are told: of the latest, as many as may have blocks.
  std::map<int32_t, std::string> adapter_names;
  Clock::time_point adapters_published;
  const std::unique_ptr<DraftProposer> proposer =
      runner::make_proposer(config.speculative_config, executor->take_draft_model());
  sched::Scheduler scheduler;
  std::unordered_map<SequenceId, Active> active;
  std::list<Transfer> transfers;  // under way
  std::priority_queue<Deadline, std::vector<Deadline>, std::greater<>> deadlines;
  std::list<InFlight> in_flight;                // submitted to the executor, the oldest first
  std::list<InFlight> spare;                    // for their memory
  StepPlan spare_plan;                          // the same
  std::vector<sched::CommitEvent> undelivered;  // of the last step collected, until the next one is submitted
  sched::SchedulerStats seen;                   // as of the last look
  sched::CostMeter costs;
  std::unique_ptr<TraceWriter> trace;
  std::thread::id bound_thread;  // that the executor was told of, where callers make the steps

  // Shared.
  Metrics own_metrics;  // unless several engines share one
  Metrics& metrics;
  EngineMetrics engine_metrics;
  FlightRecorder recorder;
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();  // also the lock and the bell of `submissions`
  const std::shared_ptr<Grants> grants = std::make_shared<Grants>();
  // There is something to take of the executor: of blocks beyond the pool. Under the inbox's lock.
  const std::shared_ptr<bool> offload_reported = std::make_shared<bool>(false);
  std::deque<Submission> submissions;  // guarded by inbox->mutex, like all below
  std::deque<Transfer> fresh_transfers;
  bool stopping = false;
  bool work_left = false;  // Drive::kCaller: by the last step
  bool reset_prefix_cache = false;
  std::function<void(std::vector<KvCacheEvent>)> kv_events;  // nullptr: nobody listens
  int64_t num_queued = 0;                                    // submitted and not yet running
  int64_t num_queued_tokens = 0;                             // of their prompts
  Status failure;
  std::string trouble;  // see Engine::trouble()
  EngineStats stats;
  const std::shared_ptr<std::atomic<SequenceId>> next_id;
  std::atomic<bool> in_step{false};     // Drive::kCaller: a thread is
  std::atomic<int64_t> progress_at{0};  // nanoseconds of Clock when the thread last got on; 0: it waits for work
  std::thread thread;
};

}  // namespace quire::engine
