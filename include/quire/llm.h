// quire's C++ API: load a model, generate. One header; link quire::quire.
//
//   auto llm = quire::LLM::create({.model = "model.gguf"});
//   if (!llm.ok()) ...llm.status().message()...
//   auto outputs = (*llm)->generate({"Once upon a time"}, {.max_tokens = 32});
//
// Thread-safe: any thread may generate at once; everything runs in one batch on the engine's own threads.
//
// Whoever has a loop already makes the steps himself:
//
//   auto llm = quire::LLM::create({.model = "model.gguf"}, quire::Drive::kCaller);
//   (*llm)->add_request("first", "Once upon a time", {.max_tokens = 32});  // at any time, as many as there are
//   while ((*llm)->has_unfinished()) {
//     auto outputs = (*llm)->step();
//     if (!outputs.ok()) ...the engine has failed...
//     for (const quire::StepOutput& output : *outputs) ...output.request_id, output.outputs[0].text...
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "types/drive.h"
#include "types/engine_config.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire {

namespace engine {
class Engine;
}

// A prompt is text, or token ids as they are.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
};

struct CompletionOutput {
  std::string text;
  std::vector<TokenId> token_ids;            // the token that ended the answer included
  std::vector<PositionLogprobs> logprobs;    // beside token_ids, if asked for
  std::optional<double> cumulative_logprob;  // of a beam search's answer
  std::string receipt;                       // if params.deterministic: a hash of tokens and log-probabilities
  FinishReason finish_reason = FinishReason::kNone;
  // kStop: the stop string or stop token id that was hit; monostate for the model's own end.
  std::variant<std::monostate, std::string, TokenId> stop_reason;
  Status error;  // kError: why; this request alone failed
};

// The first answer stands in the output itself; all params.n of them in `outputs`, the first included.
struct RequestOutput : CompletionOutput {
  std::vector<TokenId> prompt_token_ids;
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt's tokens but the first, if asked for
  int32_t num_cached_tokens = 0;                  // of the prompt, found in the prefix cache
  std::vector<CompletionOutput> outputs;          // [n]; of a beam search the best first
};

// What an asynchronous request has newly produced.
struct RequestUpdate {
  std::string text;
  std::vector<TokenId> token_ids;
  FinishReason finish_reason = FinishReason::kNone;  // the last update has one
  Status error;
};

// A running asynchronous request. Dropping it cancels the request; the callback is not called once cancel() or the
// destructor has returned, unless it is the caller.
class Generation {
 public:
  struct State;
  explicit Generation(std::shared_ptr<State> state);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  void cancel();
  void wait();  // until the last update has been handed out, or the request was cancelled. Not from the callback.

 private:
  std::shared_ptr<State> state_;
};

// An adapter (LoRA) of the model, with config.enable_lora: by a name that LLM::load_lora() or config.lora_dir gives it,
// or with the path of PEFT's folder or a GGUF file, from which it is loaded under the name when it is first used.
struct LoraRequest {
  std::string name;
  std::string path;  // empty: it is known already
};

struct GenerateOptions {
  bool progress = true;             // a line on standard error while it is a terminal
  std::optional<LoraRequest> lora;  // of all prompts
};

// How a request of add_request() stands to the others.
struct RequestOptions {
  int32_t priority = 0;                              // config.scheduling_policy "priority": lower goes first
  std::string cache_salt;                            // shares cached prefixes with requests of the same salt alone
  std::optional<std::chrono::milliseconds> timeout;  // until its last token, seen at a step; unset: config's
  std::optional<LoraRequest> lora;
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of these, found in the prefix cache
  int64_t completion_tokens = 0;  // of all answers, so far
};

// What one answer has newly produced: text, token_ids and logprobs are those since the last step.
struct CompletionUpdate : CompletionOutput {
  int32_t index = 0;  // in [0, params.n)
};

// What one request has newly produced. Of best_of and of a beam search the answers come whole, with the last step.
struct StepOutput {
  std::string request_id;
  std::vector<CompletionUpdate> outputs;          // the answers that have something new, the lowest index first
  std::vector<PositionLogprobs> prompt_logprobs;  // once, if asked for
  bool finished = false;                          // all its answers are: nothing follows, the id is free again
  RequestUsage usage;
};

// The vector of one text.
struct EmbeddingOutput {
  std::vector<TokenId> prompt_token_ids;
  std::vector<float> embedding;
};

// What a classifying head says of one text.
struct ClassificationOutput {
  std::vector<TokenId> prompt_token_ids;
  std::vector<float> probabilities;  // [labels], after the activation that the model asks for
  std::string label;                 // of the largest; empty where the head has no names
};

struct PoolingOptions {
  int64_t dimensions = 0;         // of vectors: the first so many, of models that were made for it; 0: all
  std::optional<bool> normalize;  // vectors of length 1; unset: as the model's files say
  int64_t max_tokens = 0;   // longer texts are cut to so many tokens, special ones included; 0: refused if too long;
                            // below 0: cut to the context
  std::string prompt_name;  // of those in the model's files that stand before a text; empty: the usual one
  bool progress = true;     // a line on standard error while it is a terminal
};

class LLM {
 public:
  // Loads the model onto config.device. Drive::kCaller: for add_request() and step(); there is no engine thread.
  // Errors: whatever is wrong with files or configuration, in words for people.
  static Result<std::unique_ptr<LLM>> create(EngineConfig config, Drive drive = Drive::kOwnThread);
  // The same over an engine made elsewhere.
  explicit LLM(std::unique_ptr<engine::Engine> engine);
  ~LLM();  // ends what is under way with kAbort, of which callbacks are told. Not from a callback.
  LLM(const LLM&) = delete;
  LLM& operator=(const LLM&) = delete;

  // Answers all prompts, in one batch as far as memory allows; outputs in the order of the prompts. Blocks. There may
  // be any number: they are submitted as others are done, so that config's bounds on what waits are kept to. Errors:
  // the first prompt or parameter that is refused (nothing is generated then). With Drive::kCaller it makes the steps
  // itself; requests of add_request() go on in them, and what they produce comes with the next step().
  Result<std::vector<RequestOutput>> generate(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                              GenerateOptions options = {});
  // The same for one conversation through the model's chat template.
  Result<RequestOutput> chat(const std::vector<ChatMessage>& messages, const SamplingParams& params);

  // Loads an adapter for requests to name; waits until it is in memory. replace: in the place of one of that name,
  // whose requests go on with it. Errors: what is wrong with its files or with the name; that it does not fit the
  // model.
  Status load_lora(const LoraRequest& lora, bool replace = false);
  // Requests no longer find the name; those that use the adapter go on. Errors: not_found.
  Status unload_lora(const std::string& name);

  // The vectors of texts, in their order, of a model that embeds (config.runner). Blocks as generate() does; a vector's
  // bits do not depend on what else is computed. Errors: those of the first text that is refused, with param()
  // "prompt"; of options; invalid_argument for a model that is served for something else.
  Result<std::vector<EmbeddingOutput>> embed(const std::vector<Prompt>& prompts, const PoolingOptions& options = {});
  // The same for a model with a classifying head.
  Result<std::vector<ClassificationOutput>> classify(const std::vector<Prompt>& prompts,
                                                     const PoolingOptions& options = {});
  // How well each pair goes together: of a model with a head of one number that, after its activation; of a model that
  // embeds the cosine of both vectors. [pairs]
  Result<std::vector<float>> score(const std::vector<std::pair<std::string, std::string>>& pairs,
                                   const PoolingOptions& options = {});

  // Starts one request. `on_update` is called for each new token (or several, when the callback is slower than the
  // engine), on a thread of this object, one call at a time for all requests: return soon. Errors: as generate().
  // params.n must be 1. Refused with Drive::kCaller: nobody would make the steps.
  Result<std::unique_ptr<Generation>> generate_async(const Prompt& prompt, const SamplingParams& params,
                                                     std::function<void(const RequestUpdate&)> on_update,
                                                     const std::optional<LoraRequest>& lora = {});

  // With Drive::kCaller, vLLM's LLMEngine. step() is called by one thread at a time, not always the same; the others at
  // any time by any thread, also while a step runs.

  // Takes on a request, which begins with the next step. An id may be used again when its request is finished or
  // aborted. Errors, which disturb nobody else: invalid_argument with param() "request_id" (empty, or in use), "prompt"
  // (empty, too long, ids outside the vocabulary, text without a tokenizer), "messages" or a sampling parameter;
  // resource_exhausted when config's bounds on what waits are reached: make some steps first; unavailable after a
  // failure; invalid_argument with Drive::kOwnThread.
  Status add_request(std::string request_id, const Prompt& prompt, const SamplingParams& params,
                     RequestOptions options = {});
  // The same for a conversation through the model's chat template.
  Status add_request(std::string request_id, const std::vector<ChatMessage>& messages, const SamplingParams& params,
                     RequestOptions options = {});

  // Exactly one step of the engine: schedules, computes, samples and commits. Returns the requests that it has brought
  // something new, in the order of their arrival; none while prompts are being computed in chunks. Does nothing when
  // there is nothing to do. With config.async_scheduling the step that ends here was begun by the call before.
  // The calling thread is bound to the core that the compute threads leave free (threads that it starts later inherit
  // that).
  // Errors: invalid_argument while another thread is in step(), and with Drive::kOwnThread; internal when the engine
  // fails: all its requests are over then and has_unfinished() is false; unavailable ever after.
  Result<std::vector<StepOutput>> step();

  // Ends a request: no step returns anything of it any more. Its work and blocks are dropped by the next step. False:
  // there is no such request, or it is finished.
  bool abort_request(const std::string& request_id);

  // Whether step() should be called: a request is not finished, or the engine has something to clear up behind one.
  bool has_unfinished() const;
  int64_t num_unfinished() const;  // requests added, neither finished nor aborted

  // Everything underneath.
  engine::Engine& engine();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
