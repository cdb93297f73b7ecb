// The engine: one thread that schedules, runs steps and delivers tokens; many consumers, each with
// its own stream. The thread is the engine's own or, with Drive::kCaller, whichever calls step().
//
//   consumer's thread                    engine thread
//   submit() -> bounded inbox  ------->  accept: admit into the scheduler
//                                        schedule -> execute (prepare, forward, sample) -> commit
//   TokenStream::take() <-------------   deliver
//
// A stream's events that nobody has taken are merged, so that a slow consumer holds at most its own
// answer's tokens. Dropping or cancelling a stream stops its work within two steps and frees its
// blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "engine/prepare_params.h"
#include "engine/request_cost.h"
#include "grammar/answer_reading.h"
#include "grammar/compiler.h"
#include "runner/executor.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "types/adapter_info.h"
#include "types/drive.h"
#include "types/engine_config.h"
#include "types/kv_event.h"
#include "types/kv_transfer.h"
#include "types/request_timeline.h"
#include "types/sampling_params.h"
#include "types/text_source.h"
#include "types/token_event.h"

namespace quire::engine {

struct GenerationRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  std::optional<PreparedParams> prepared;  // in the place of params, where several prompts share them
  // Of a model that is served for pooling (model().task): its vector or scores come with the only event, as they are.
  // params.max_tokens is 0 then.
  OutputKind output_kind = OutputKind::kToken;
  int32_t second_text = -1;                               // as NewSequence has it
  int32_t pooled_from = 0;                                // the same
  std::shared_ptr<const grammar::AnswerReading> reading;  // of reasoning and tool calls; nullptr: all is text
  std::string label;     // the request's id as its client knows it, for the flight recorder
  int32_t priority = 0;  // scheduling policy "priority": lower goes first
  std::string adapter;   // by its name; empty: the model as it is
  // The answer that the client expects: it is computed quicker as far as that is so, and the same in any case. Ids
  // outside the vocabulary end it.
  std::vector<TokenId> prediction;
  bool speculates = true;                               // false: no token of it is guessed, whatever the engine does
  std::string cache_salt;                               // shares cached prefixes with requests of the same salt alone
  int32_t tenant = 0;                                   // whose share of the tokens it uses (an API key's number)
  double weight = 1.0;                                  // > 0: that share against others'
  std::optional<std::chrono::milliseconds> timeout;     // from submission to the last token; unset: the engine's own
  std::shared_ptr<RequestTimeline> timeline = nullptr;  // where its times are noted; nullptr: nowhere
};

// The consumer's end of one request. Safe to use from one thread at a time; the engine outlives it
// or not: after the engine is gone a stream ends with kAbort.
class TokenStream {
 public:
  struct State;  // shared with the engine thread
  explicit TokenStream(std::shared_ptr<State> state);
  ~TokenStream();  // cancels when unfinished
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // What came since the last take, merged into one event; nullopt when nothing did. Nothing follows
  // the event with finish != kNone.
  std::optional<TokenEvent> try_take();
  // The same, waiting for something to come: with Drive::kCaller for another thread's steps.
  TokenEvent take();

  // Called on the engine thread (or at once, on this one, if something is there already) whenever a
  // take would give something new. Must not block: post to an executor and return. Set it at most
  // once.
  void on_ready(const std::function<void()>& notify);

  // finish, num_tokens: what metrics and traces are told, the consumer's own end of the answer and its tokens until
  // then where it has found one (a stop string).
  void cancel(FinishReason finish = FinishReason::kAbort, std::optional<int64_t> num_tokens = std::nullopt);
  SequenceId id() const;

  // What the last event would bring (TokenEvent::memory_held), for who keeps log-probabilities and takes no more
  // events.
  std::shared_ptr<const void> take_memory_held();

 private:
  std::shared_ptr<State> state_;
};

struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_swapped = 0;  // of the waiting
  int64_t blocks_used = 0;
  int64_t blocks_cached = 0;  // free, with contents worth finding
  int64_t blocks_total = 0;
  int64_t num_preemptions = 0;
  int64_t num_swaps = 0;
  int64_t num_steps = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  // Speculation, since the start: runs with draft tokens, these tokens, and those that were accepted.
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
};

class FlightRecorder;
class ReplicaRouter;

// What submit() does when the bounds on what waits are reached.
enum class WhenFull {
  kRefuse,
  kWait,  // until there is room, or nothing is left that could make some. With Drive::kCaller as kRefuse.
};

class Engine {
 public:
  // Makes tokenizer and template out of the model's text (unless skip_tokenizer_init) and starts the thread, if it is
  // to have one. text: open_text()'s, or the caller's own. Several engines may share a registry of metrics, which
  // outlives them: their served_model_name tells them apart. nullptr: one of its own.
  static Result<std::unique_ptr<Engine>> create(EngineConfig config, TextSource text,
                                                std::unique_ptr<runner::Executor> executor, Metrics* metrics = nullptr,
                                                Drive drive = Drive::kOwnThread);
  // The same over several executors of the same model and configuration (data parallel): an engine's thread for each,
  // and each request goes to one of them, by what it has cached and has to do (engine/replica_router.h).
  // Drive::kOwnThread.
  static Result<std::unique_ptr<Engine>> create(EngineConfig config, TextSource text,
                                                std::vector<std::unique_ptr<runner::Executor>> executors,
                                                Metrics* metrics = nullptr);
  // What the files of config.model say about text, with config.tokenizer and config.chat_template in their place where
  // they are set; quick, so that a wrong path is told before weights are loaded. Errors: not_found, data_loss.
  static Result<TextSource> open_text(const EngineConfig& config);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Ends every request with kAbort and the thread; submit() refuses from then on. Streams may still be read, and what
  // reads them (tokenizer(), ...) is there until the engine is destroyed. REQUIRES: nobody is in step().
  void stop();

  // Thread-safe. Checks parameters and lengths against the model before anything is queued. A stream an answer:
  // best_of of them (n unless given), that share the prompt's blocks, the i-th drawing from seed + i; of a beam search
  // n, the best first, each with one event. Prompt log-probabilities come with the first stream alone.
  // A constraint of the answer (params.structured_output) that is not compiled yet is compiled here: see
  // compile_structured_output(). An adapter that is not in memory is read beside the steps; what goes wrong then ends
  // the streams with that error. Errors: prepare()'s, unless the request comes prepared; not_found with param() "model"
  // for an adapter that is not known; invalid_argument with param() ("prompt" when empty, too long or with ids outside
  // the vocabulary); resource_exhausted when the queue is full, in requests or tokens, or when the log-probabilities
  // asked for would not fit beside those of others that their consumers have not taken yet; unavailable after a
  // failure.
  Result<std::vector<std::unique_ptr<TokenStream>>> submit(GenerationRequest request,
                                                           WhenFull when_full = WhenFull::kRefuse);
  // For GenerationRequest::prepared: checks parameters, finds the tokens of their texts and compiles the answer's
  // constraint, once for any number of prompts and answers. Thread-safe. Errors: invalid_argument with param(): a
  // parameter that is out of range, contradicts another or leaves no token to choose; bad words of too many tokens.
  // compiled: params.structured_output, if compile_structured_output() has compiled it already.
  Result<PreparedParams> prepare(SamplingParams params, bool shows_logprobs = true, int32_t tenant = 0,
                                 std::shared_ptr<const TokenConstraint> compiled = nullptr) const;
  // What a request of these (valid) parameters and so many tokens of prompt, after truncation, may come to take.
  // submit() refuses by it what is too much alone (invalid_argument) or beside the others (resource_exhausted).
  // Thread-safe.
  RequestCost cost_of(const SamplingParams& params, int64_t num_prompt_tokens) const;
  CostFacts cost_facts() const;
  // What submit() checks of a prompt and parameters beforehand and at little cost: all but bad words and constraints of
  // the answer. Thread-safe.
  Status check(const std::vector<TokenId>& prompt, const SamplingParams& params) const;

  // With Drive::kCaller: takes in what was submitted and cancelled, then runs one step and delivers its events, all on
  // the calling thread, which is bound to a core as the engine's own would be (runner::Executor::bind_thread). Does
  // nothing when there is nothing to do. Steps may come from different threads, one at a time.
  // Errors: invalid_argument for an engine with a thread of its own, and, without waiting, while another thread is in
  // step(); internal when the executor fails, with every request answered by that error; unavailable ever after.
  Status step();
  // Whether step() has something to do. Thread-safe. Of an engine with a thread of its own: false.
  bool has_work() const;
  Drive drive() const;

  // For prepare(), beforehand and without waiting: `done` is called once, on any thread. tenant: as
  // GenerationRequest has it; tenants take turns. Errors: those of
  // grammar::Compiler with param() "structured_outputs"; invalid_argument without a tokenizer.
  void compile_structured_output(const StructuredOutput& output, int32_t tenant, grammar::Compiler::Done done);

  // False after a failure of the executor: every request is answered with an error and the process
  // should end.
  bool healthy() const;

  // Why no steps are made for now, while workers that have failed are started again; empty: they are. Thread-safe.
  std::string trouble() const;

  // For how long the engine's thread has been at one thing (a step, most likely) while there is work; 0 when it waits
  // for some. Thread-safe.
  std::chrono::nanoseconds busy_without_progress() const;

  const EngineConfig& config() const;
  const ModelConfig& model() const;
  const MemoryPlan& memory() const;
  const std::string& device_description() const;
  int64_t max_model_len() const;  // tokens of prompt and answer together

  // nullptr under skip_tokenizer_init, or when the model has none.
  const text::Tokenizer* tokenizer() const;
  const text::ChatTemplate* chat_template() const;
  // Spelling of the special tokens for templates.
  const TextSource& text() const;

  // Adapters (docs/adapters.md), of an engine whose configuration has enable_lora. Thread-safe.
  // Reads an adapter and gives it a name for requests; waits until that is done. replace: in the place of one that has
  // the name, whose requests go on with it. Errors: invalid_argument with param() "lora_name" (taken, empty); those of
  // reading it, and of its not fitting this model, in words for people; unavailable.
  Status load_adapter(const std::string& name, const std::string& path, bool replace = false);
  // The same of one in config.lora_dir, by a path that leads nowhere else: invalid_argument with param() "lora_path".
  Status load_adapter_from_folder(const std::string& name, const std::string& path, bool replace = false);
  // Requests no longer find the name; those that use the adapter keep it. Errors: not_found with param() "lora_name".
  Status unload_adapter(const std::string& name);
  // Whether requests may name it. Looks into config.lora_dir.
  bool knows_adapter(const std::string& name) const;
  std::vector<AdapterInfo> adapters() const;  // by name

  // What happens to the prefix cache, with config().enable_kv_cache_events: `tell` is called on the engine thread,
  // which it must not hold up; at last, when the engine stops, on the thread that stops it. Set before the first
  // request.
  void on_kv_events(std::function<void(std::vector<KvCacheEvent>)> tell);

  // Blocks for other instances and from them, with config().kv_transfer (docs/transfer.md); of an engine with a thread
  // of its own. `done` is called once, on the engine's thread or on this one, and must not block. Whatever goes wrong
  // costs time: what is not there is computed. Thread-safe.
  // A copy of what host memory has of the prompt's beginning, of requests with this salt and no adapter. Errors:
  // unavailable (the engine is stopped, or has failed).
  void export_prefix(std::vector<TokenId> prompt, std::string cache_salt, std::function<void(Result<KvPrefix>)> done);
  // Takes blocks into host memory, where requests with this salt find them. done: how many were taken in; those that
  // are there already are not, nor what there is no room for. Errors: also invalid_argument: a prefix that is none of
  // the prompt's, or rotated otherwise, and blocks of another size or place.
  void import_prefix(std::span<const TokenId> prompt, std::string cache_salt, KvPrefix prefix,
                     std::function<void(Result<int64_t>)> done);

  // Forgets all cached prefixes, before the next step.
  void reset_prefix_cache();

  EngineStats stats() const;
  // Of several engines the first one's.
  const FlightRecorder& flight_recorder() const;
  Metrics& metrics();  // vLLM's names; a server adds its own to it

 private:
  struct Impl;
  explicit Engine(std::vector<std::unique_ptr<Impl>> replicas, std::unique_ptr<ReplicaRouter> router);
  static void stop(Impl& impl);

  // The first one has the text, and answers all that is the same for all.
  std::vector<std::unique_ptr<Impl>> replicas_;
  Impl* impl_;
  std::unique_ptr<ReplicaRouter> router_;  // nullptr: there is one
};

}  // namespace quire::engine
