// quire's C++ API: load a model, generate. One header; link quire::quire.
//
//   auto llm = quire::LLM::create({.model = "model.gguf"});
//   if (!llm.ok()) ...llm.status().message()...
//   auto outputs = (*llm)->generate({"Once upon a time"}, {.max_tokens = 32});
//
// Thread-safe: any thread may generate at once; everything runs in one batch on the engine's own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
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

struct GenerateOptions {
  bool progress = true;  // a line on standard error while it is a terminal
};

class LLM {
 public:
  // Loads the model onto config.device. Errors: whatever is wrong with files or configuration, in words for people.
  static Result<std::unique_ptr<LLM>> create(EngineConfig config);
  // The same over an engine made elsewhere.
  explicit LLM(std::unique_ptr<engine::Engine> engine);
  ~LLM();
  LLM(const LLM&) = delete;
  LLM& operator=(const LLM&) = delete;

  // Answers all prompts, in one batch as far as memory allows; outputs in the order of the prompts. Blocks.
  // Errors: the first prompt or parameter that is refused (nothing is generated then).
  Result<std::vector<RequestOutput>> generate(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                              GenerateOptions options = {});
  // The same for one conversation through the model's chat template.
  Result<RequestOutput> chat(const std::vector<ChatMessage>& messages, const SamplingParams& params);

  // Starts one request. `on_update` is called for each new token (or several, when the callback is slower than the
  // engine), on a thread of this object, one call at a time for all requests: return soon. Errors: as generate().
  // params.n must be 1.
  Result<std::unique_ptr<Generation>> generate_async(const Prompt& prompt, const SamplingParams& params,
                                                     std::function<void(const RequestUpdate&)> on_update);

  // Everything underneath.
  engine::Engine& engine();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
