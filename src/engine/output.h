// Output processing: tokens to text, stop strings. Runs on the consumer's thread, never on the
// engine's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "text/detokenizer.h"
#include "types/token_event.h"

namespace quire::engine {

// What became certain since the last delta. Text runs behind tokens where a stop string or a UTF-8
// sequence may still be completing.
struct OutputDelta {
  std::string text;
  std::vector<TokenId> tokens;                    // the token that ended the answer included
  std::vector<PositionLogprobs> logprobs;         // beside tokens, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // once, if asked for
  FinishReason finish = FinishReason::kNone;
  // kStop: the stop string or stop token id that was hit; monostate for the model's own end of
  // sequence.
  std::variant<std::monostate, std::string, TokenId> stop_reason;
  Status error;  // kError
};

// Turns events into deltas. Without a tokenizer there is no text and no stop string.
class OutputProcessor {
 public:
  OutputProcessor(const text::Tokenizer* tokenizer, const SamplingParams& params);

  // When the delta's finish is kStop and the event's was kNone, a stop string was found: the caller
  // must cancel the work. Later events must not be processed.
  OutputDelta process(TokenEvent event);

 private:
  bool release_text(std::string fresh, bool last, OutputDelta& delta);

  std::optional<text::IncrementalDetokenizer> detokenizer_;
  std::vector<std::string> stop_;
  bool include_stop_;
  std::string held_;  // text that may be the beginning of a stop string
  int32_t min_tokens_;
  int32_t num_tokens_ = 0;
};

// A stream with its processor: what a server or an embedder holds for one answer.
class Completion {
 public:
  // Errors: those of Engine::submit(); stop strings without a tokenizer are an invalid_argument.
  // The engine must outlive it.
  static Result<std::unique_ptr<Completion>> start(Engine& engine, GenerationRequest request);

  std::optional<OutputDelta> try_take();  // nullopt: nothing yet, or nothing any more after a finish
  OutputDelta take();                     // REQUIRES: not finished()
  void on_ready(std::function<void()> notify);
  void cancel();

  bool finished() const { return finished_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }

 private:
  Completion(std::unique_ptr<TokenStream> stream, OutputProcessor processor, int64_t num_prompt_tokens);
  OutputDelta process(TokenEvent event);

  std::unique_ptr<TokenStream> stream_;
  OutputProcessor processor_;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_output_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace quire::engine
