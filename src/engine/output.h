// Output processing: tokens to text, stop strings. Runs on the consumer's thread, never on the
// engine's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "grammar/answer_reading.h"
#include "text/detokenizer.h"
#include "types/token_event.h"

namespace quire::engine {

// What became certain since the last delta. Text runs behind tokens where a stop string or a UTF-8
// sequence may still be completing.
struct OutputDelta {
  std::string text;
  // Where the answer is read for them; the text is then what is neither.
  std::string reasoning;
  std::vector<grammar::ToolCallPiece> tool_calls;
  int64_t num_reasoning_tokens = 0;               // of tokens
  std::vector<TokenId> tokens;                    // the token that ended the answer included
  std::vector<PositionLogprobs> logprobs;         // beside tokens, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // once, if asked for
  FinishReason finish = FinishReason::kNone;
  // kStop: the stop string or stop token id that was hit; monostate for the model's own end of
  // sequence.
  std::variant<std::monostate, std::string, TokenId> stop_reason;
  Status error;                              // kError
  std::optional<int32_t> num_cached_tokens;  // once: of the prompt, found in the prefix cache
  int32_t num_predicted_tokens = 0;          // as TokenEvent has them
  int32_t num_mispredicted_tokens = 0;
  std::optional<double> cumulative_logprob;  // of a beam search's answer
  // With the end, if params.deterministic: a hash of the answer's tokens and the bits of their log-probabilities, the
  // same wherever and beside whatever the same request ran (16 hexadecimal digits).
  std::string receipt;
  // With the end: as TokenEvent::memory_held. Whoever gathers deltas drops it with their log-probabilities.
  std::shared_ptr<const void> memory_held;
};

void append(OutputDelta& to, OutputDelta&& from);

// Turns events into deltas. Without a tokenizer there is no text and no stop string.
class OutputProcessor {
 public:
  // keep_logprobs: those of the events are passed on; else they were for receipt or ranking alone.
  // reading: nullptr where all is text. constraint: that the answer must have; nullptr: any.
  OutputProcessor(const text::Tokenizer* tokenizer, const SamplingParams& params, bool keep_logprobs = true,
                  std::shared_ptr<const grammar::AnswerReading> reading = nullptr,
                  std::shared_ptr<const TokenConstraint> constraint = nullptr);

  // When the delta's finish is kStop and the event's was kNone, a stop string was found: the caller
  // must cancel the work. Later events must not be processed.
  OutputDelta process(TokenEvent event);

  // Mean log-probability of the tokens so far; of a beam search's answer the whole's.
  double mean_logprob() const { return num_tokens_ == 0 ? 0 : sum_logprobs_ / num_tokens_; }

 private:
  bool release_text(const std::string& fresh, bool last, OutputDelta& delta);
  void read(size_t from, OutputDelta& delta);
  void count_reasoning(bool began, OutputDelta& delta);
  bool shows(TokenId token) const;
  OutputDelta process_text(TokenEvent event);
  void take_logprobs(PositionLogprobs&& logprobs, OutputDelta& delta);
  void finish_reading(OutputDelta& delta);
  void check_structured_output(OutputDelta& delta);

  std::shared_ptr<const TokenConstraint> constraint_;  // that the answer must have
  std::string answer_;                                 // so far, where it must have one
  std::string end_text_;                               // at its end, of special tokens and the end token, if shown
  const text::Tokenizer* tokenizer_ = nullptr;         // where there is text
  const text::Tokenizer* shows_special_ = nullptr;     // they are
  std::optional<text::IncrementalDetokenizer> detokenizer_;
  std::shared_ptr<const grammar::AnswerReading> reading_;
  std::unique_ptr<grammar::AnswerParser> parser_;   // of an answer that is read
  const text::Tokenizer* hides_special_ = nullptr;  // of such an answer: special tokens that are no marks are left out
  std::vector<std::string> stop_;
  bool include_stop_;
  std::string held_;                // text that may be the beginning of a stop string
  int64_t num_held_reasoning_ = 0;  // tokens that are reasoning, unless they turn out to be of the mark behind it
  int32_t min_tokens_;
  int32_t num_tokens_ = 0;
  bool keep_logprobs_;
  bool deterministic_;
  uint64_t digest_ = 0;  // of tokens and log-probabilities so far
  double sum_logprobs_ = 0;
};

class BestOf;

// A stream with its processor: what a server or an embedder holds for one answer.
class Completion {
 public:
  // One an answer: n of them; with best_of the n of the best mean log-probability, which come whole when all are done.
  // Errors: those of prepare(), unless the request comes prepared, and of Engine::submit().
  // The engine must outlive them. All of one request are used by one thread at a time.
  static Result<std::vector<std::unique_ptr<Completion>>> start(Engine& engine, GenerationRequest request,
                                                                WhenFull when_full = WhenFull::kRefuse);
  // For GenerationRequest::prepared: Engine::prepare(), with what ranking and receipts need. Errors: its own; stop
  // strings without a tokenizer, or for a beam search, are an invalid_argument.
  static Result<PreparedParams> prepare(const Engine& engine, SamplingParams params, int32_t tenant = 0,
                                        std::shared_ptr<const TokenConstraint> compiled = nullptr);
  // The same where there is one answer. REQUIRES: n is 1.
  static Result<std::unique_ptr<Completion>> start_one(Engine& engine, GenerationRequest request);

  std::optional<OutputDelta> try_take();  // nullopt: nothing yet, or nothing any more after a finish
  OutputDelta take();                     // REQUIRES: not finished()
  void on_ready(std::function<void()> notify);
  void cancel();

  bool finished() const { return finished_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }

 private:
  Completion(std::unique_ptr<TokenStream> stream, OutputProcessor processor, int64_t num_prompt_tokens);
  Completion(std::shared_ptr<BestOf> best_of, size_t rank, int64_t num_prompt_tokens);
  OutputDelta process(TokenEvent event);
  OutputDelta finish(OutputDelta delta);

  // Either a stream of its own, or a place among the best.
  std::unique_ptr<TokenStream> stream_;
  std::optional<OutputProcessor> processor_;
  std::shared_ptr<BestOf> best_of_;
  size_t rank_ = 0;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_output_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace quire::engine
