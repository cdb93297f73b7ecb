#include "engine/output.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>

#include "base/hashing.h"

namespace quire::engine {
namespace {

struct Match {
  size_t position = std::string::npos;
  const std::string* stop = nullptr;
};

// The stop string that ends first in reading order: the earliest start, the longer one when two start together.
Match find_stop(const std::string& text, const std::vector<std::string>& stops) {
  Match best;
  for (const std::string& stop : stops) {
    const size_t position = text.find(stop);
    if (position == std::string::npos) continue;
    if (position < best.position || (position == best.position && stop.size() > best.stop->size())) {
      best = {position, &stop};
    }
  }
  return best;
}

// Length of the longest end of `text` that some stop string begins with.
size_t held_length(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t length = std::min(text.size(), stop.size() - 1); length > longest; --length) {
      if (text.compare(text.size() - length, length, stop, 0, length) == 0) longest = length;
    }
  }
  return longest;
}

}  // namespace

void append(OutputDelta& to, OutputDelta&& from) {
  const auto move_all = [](auto& target, auto& source) {
    target.insert(target.end(), std::make_move_iterator(source.begin()), std::make_move_iterator(source.end()));
  };
  to.text += from.text;
  to.reasoning += from.reasoning;
  to.num_reasoning_tokens += from.num_reasoning_tokens;
  for (grammar::ToolCallPiece& piece : from.tool_calls) {
    if (to.tool_calls.empty() || to.tool_calls.back().index != piece.index) {
      to.tool_calls.push_back(std::move(piece));
    } else {
      to.tool_calls.back().arguments += piece.arguments;
    }
  }
  move_all(to.tokens, from.tokens);
  move_all(to.logprobs, from.logprobs);
  move_all(to.prompt_logprobs, from.prompt_logprobs);
  to.finish = from.finish;
  to.stop_reason = std::move(from.stop_reason);
  to.error = std::move(from.error);
  if (from.num_cached_tokens) to.num_cached_tokens = from.num_cached_tokens;
  to.num_predicted_tokens += from.num_predicted_tokens;
  to.num_mispredicted_tokens += from.num_mispredicted_tokens;
  to.cumulative_logprob = from.cumulative_logprob;
  to.receipt = std::move(from.receipt);
  if (from.memory_held) to.memory_held = std::move(from.memory_held);
}

OutputProcessor::OutputProcessor(const text::Tokenizer* tokenizer, const SamplingParams& params, bool keep_logprobs,
                                 std::shared_ptr<const grammar::AnswerReading> reading,
                                 std::shared_ptr<const TokenConstraint> constraint)
    : constraint_(std::move(constraint)),
      reading_(std::move(reading)),
      include_stop_(params.include_stop_str_in_output),
      min_tokens_(params.min_tokens),
      keep_logprobs_(keep_logprobs),
      deterministic_(params.deterministic) {
  if (tokenizer == nullptr || !params.detokenize) return;
  tokenizer_ = tokenizer;
  if (!params.skip_special_tokens) shows_special_ = tokenizer;
  if (reading_ != nullptr && !reading_->plain()) parser_ = grammar::make_answer_parser(*reading_);
  // Marks of calls and of reasoning may be special tokens.
  if (parser_ != nullptr && params.skip_special_tokens) hides_special_ = tokenizer;
  detokenizer_.emplace(*tokenizer, parser_ == nullptr && params.skip_special_tokens,
                       params.skip_special_tokens || params.spaces_between_special_tokens);
  stop_ = params.stop;
}

void OutputProcessor::take_logprobs(PositionLogprobs&& logprobs, OutputDelta& delta) {
  const float logprob = logprobs.chosen.logprob;
  sum_logprobs_ += static_cast<double>(logprob);
  if (deterministic_) {
    const uint64_t entry[2] = {static_cast<uint64_t>(logprobs.chosen.id), std::bit_cast<uint32_t>(logprob)};
    digest_ = hash_bytes(entry, sizeof(entry), digest_);
  }
  if (keep_logprobs_) delta.logprobs.push_back(std::move(logprobs));
}

// Moves what is certain of held and fresh text into the delta. True: a stop string was found.
bool OutputProcessor::release_text(const std::string& fresh, bool last, OutputDelta& delta) {
  held_ += fresh;
  // As in vLLM, no stop ends within the first min_tokens tokens; one that ends behind them may begin there.
  const bool may_stop = num_tokens_ > min_tokens_;
  if (may_stop && !stop_.empty()) {
    if (const Match match = find_stop(held_, stop_); match.stop != nullptr) {
      delta.text.append(held_, 0, match.position + (include_stop_ ? match.stop->size() : 0));
      delta.finish = FinishReason::kStop;
      delta.stop_reason = *match.stop;
      held_.clear();
      return true;
    }
  }
  const size_t keep = last ? 0 : held_length(held_, stop_);
  delta.text.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

// Takes what was released behind `from` for reasoning, calls and text.
void OutputProcessor::read(size_t from, OutputDelta& delta) {
  grammar::AnswerPiece piece;
  parser_->push(std::string_view(delta.text).substr(from), piece);
  delta.text.erase(from);
  append(delta, {.text = std::move(piece.content),
                 .reasoning = std::move(piece.reasoning),
                 .tool_calls = std::move(piece.calls),
                 .finish = delta.finish,
                 .stop_reason = delta.stop_reason,
                 .cumulative_logprob = delta.cumulative_logprob});
}

// Counts a token that came where there was reasoning, or not.
void OutputProcessor::count_reasoning(bool began, OutputDelta& delta) {
  if (!began || !parser_->in_reasoning()) {
    num_held_reasoning_ = 0;
    return;
  }
  ++num_held_reasoning_;
  if (!parser_->holds_mark()) delta.num_reasoning_tokens += std::exchange(num_held_reasoning_, 0);
}

bool OutputProcessor::shows(TokenId token) const {
  return hides_special_ == nullptr || !hides_special_->is_special(token) ||
         grammar::is_mark(hides_special_->token_bytes(token));
}

// An answer that ends by itself, or is cut within JSON, is what was asked for or an error.
void OutputProcessor::check_structured_output(OutputDelta& delta) {
  if (constraint_ == nullptr || !detokenizer_) return;
  answer_ += delta.text;
  if (delta.finish != FinishReason::kStop) return;
  const bool was_cut = !std::holds_alternative<std::monostate>(delta.stop_reason);
  if (was_cut && !constraint_->whole_only()) return;
  std::string_view said = answer_;
  if (said.ends_with(end_text_)) said.remove_suffix(end_text_.size());
  const Status status = constraint_->check(said);
  if (status.ok()) return;
  delta.finish = FinishReason::kError;
  delta.stop_reason = std::monostate();
  delta.error = was_cut ? invalid_argument(
                              "A stop string or token ended the answer before its structured output was "
                              "complete: {}",
                              status.message())
                              .with_param("stop")
                        : internal_error("{}", status.message());
}

OutputDelta OutputProcessor::process(TokenEvent event) {
  OutputDelta delta = process_text(std::move(event));
  if (parser_ != nullptr && delta.finish != FinishReason::kNone && delta.finish != FinishReason::kError) {
    finish_reading(delta);
  }
  check_structured_output(delta);
  return delta;
}

void OutputProcessor::finish_reading(OutputDelta& delta) {
  delta.num_reasoning_tokens += std::exchange(num_held_reasoning_, 0);
  grammar::AnswerPiece rest;
  parser_->finish(rest);
  OutputDelta last{.text = std::move(rest.content),
                   .reasoning = std::move(rest.reasoning),
                   .tool_calls = std::move(rest.calls),
                   .finish = delta.finish,
                   .stop_reason = delta.stop_reason,
                   .cumulative_logprob = delta.cumulative_logprob,
                   .receipt = delta.receipt};
  append(delta, std::move(last));
}

OutputDelta OutputProcessor::process_text(TokenEvent event) {
  OutputDelta delta;
  delta.prompt_logprobs = std::move(event.prompt_logprobs);
  delta.num_cached_tokens = event.num_cached_tokens;
  delta.num_predicted_tokens = event.num_predicted_tokens;
  delta.num_mispredicted_tokens = event.num_mispredicted_tokens;
  delta.cumulative_logprob = event.cumulative_logprob;
  delta.memory_held = std::move(event.memory_held);
  const auto finish = [&]() -> OutputDelta& {
    // Of the adapter's files too: the same tokens of others are not the same answer.
    if (event.adapter_revision != 0) digest_ = hash_bytes(&event.adapter_revision, sizeof(uint64_t), digest_);
    if (deterministic_) delta.receipt = fmt::format("{:016x}", digest_);
    return delta;
  };
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    delta.tokens.push_back(event.tokens[i]);
    ++num_tokens_;
    if (i < event.logprobs.size()) take_logprobs(std::move(event.logprobs[i]), delta);
    if (!detokenizer_) continue;
    const bool ends_answer = event.stop_token && i + 1 == event.tokens.size();
    // The token that ended the answer is no part of its text, unless asked for.
    if (ends_answer && !include_stop_) continue;
    if (!shows(event.tokens[i])) continue;
    // One token at a time: where a stop string ends the answer must not depend on how many tokens came together.
    const size_t from = delta.text.size();
    if (tokenizer_ != nullptr && constraint_ != nullptr) {
      const bool is_special = tokenizer_->is_special(event.tokens[i]);
      const bool is_eos = ends_answer && event.stopped_by_eos;
      const bool may_be_end = shows_special_ != nullptr ? is_eos || is_special : is_eos && !is_special;
      const std::string bytes = may_be_end ? tokenizer_->token_bytes(event.tokens[i]) : "";
      if (may_be_end && (is_eos || !grammar::is_mark(bytes))) {
        end_text_ += bytes;
      } else {
        end_text_.clear();
      }
    }
    const bool stopped = release_text(detokenizer_->append(std::span(&event.tokens[i], 1)), /*last=*/false, delta);
    const bool was_reasoning = parser_ != nullptr && parser_->in_reasoning();
    if (parser_) read(from, delta);
    if (parser_) count_reasoning(was_reasoning, delta);
    if (stopped) return std::move(finish());
  }
  if (event.finish == FinishReason::kNone) return delta;
  if (detokenizer_) {
    const size_t from = delta.text.size();
    const bool stopped = release_text(detokenizer_->finish(), /*last=*/true, delta);
    if (parser_) read(from, delta);
    if (stopped) return std::move(finish());
  }
  delta.finish = event.finish;
  delta.error = std::move(event.error);
  if (event.stop_token && !event.stopped_by_eos) delta.stop_reason = *event.stop_token;
  if (event.finish == FinishReason::kRepetition) delta.stop_reason = "repetition_detected";  // vLLM's word
  return std::move(finish());
}

// More answers than are returned: the best by mean log-probability are, once all are done.
class BestOf {
 public:
  // One processor a stream.
  BestOf(std::vector<std::unique_ptr<TokenStream>> streams, std::vector<OutputProcessor> processors)
      : streams_(std::move(streams)), processors_(std::move(processors)), answers_(streams_.size()) {}

  // True when all answers are there. With `wait`, always.
  bool poll(bool wait) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      while (answers_[i].finish == FinishReason::kNone) {
        std::optional<TokenEvent> event = wait ? streams_[i]->take() : streams_[i]->try_take();
        if (!event) break;
        const bool engine_finished = event->finish != FinishReason::kNone;
        append(answers_[i], processors_[i].process(std::move(*event)));
        if (answers_[i].finish == FinishReason::kNone) continue;
        if (!engine_finished) {
          answers_[i].memory_held = streams_[i]->take_memory_held();
          streams_[i]->cancel(answers_[i].finish, std::ssize(answers_[i].tokens));
        }
        ++num_done_;
      }
    }
    if (num_done_ < streams_.size()) return false;
    if (order_.empty()) rank();
    return true;
  }

  OutputDelta take(size_t rank) { return std::move(answers_[order_[rank]]); }

  void on_ready(std::function<void()> notify) {
    bool first = false;
    {
      const std::lock_guard lock(*mutex_);
      first = notifies_->empty();
      notifies_->push_back(std::move(notify));
    }
    if (!first) return;
    for (const auto& stream : streams_) {
      stream->on_ready([mutex = mutex_, notifies = notifies_] {
        std::vector<std::function<void()>> calls;
        {
          const std::lock_guard lock(*mutex);
          calls = *notifies;
        }
        for (const auto& call : calls) call();
      });
    }
  }

  void cancel() {
    for (const auto& stream : streams_) stream->cancel();
  }

 private:
  void rank() {
    order_.resize(streams_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::stable_sort(order_, std::greater<>(), [this](size_t i) { return processors_[i].mean_logprob(); });
    // The first answer brought what belongs to the prompt, wherever it ranks.
    std::swap(answers_[order_.front()].prompt_logprobs, answers_.front().prompt_logprobs);
    // A failed answer fails the request, whatever its place.
    for (const OutputDelta& answer : answers_) {
      if (answer.finish != FinishReason::kError) continue;
      const Status error = answer.error;
      for (OutputDelta& other : answers_) other = {.finish = FinishReason::kError, .error = error};
      return;
    }
  }

  std::vector<std::unique_ptr<TokenStream>> streams_;
  std::vector<OutputProcessor> processors_;
  std::vector<OutputDelta> answers_;
  std::vector<size_t> order_;  // the best first, once all are done
  size_t num_done_ = 0;
  // Called on the engine thread, perhaps when this is gone.
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<std::function<void()>>> notifies_ =
      std::make_shared<std::vector<std::function<void()>>>();
};

namespace {

// More answers than are returned are ranked.
bool ranks_answers(const SamplingParams& params) {
  return !params.use_beam_search && params.num_sequences() > params.n;
}

}  // namespace

Result<PreparedParams> Completion::prepare(const Engine& engine, SamplingParams params, int32_t tenant,
                                           std::shared_ptr<const TokenConstraint> compiled) {
  if (!params.stop.empty() && (engine.tokenizer() == nullptr || params.use_beam_search)) {
    return invalid_argument("stop strings {}; use stop_token_ids",
                            params.use_beam_search ? "cannot end a beam search's answers"
                                                   : "need a tokenizer, and this engine runs without one")
        .with_param("stop");
  }
  const bool shows_logprobs = params.logprobs.has_value();
  if ((ranks_answers(params) || params.deterministic) && !shows_logprobs) params.logprobs = 0;
  return engine.prepare(std::move(params), shows_logprobs, tenant, std::move(compiled));
}

Result<std::vector<std::unique_ptr<Completion>>> Completion::start(Engine& engine, GenerationRequest request,
                                                                   WhenFull when_full) {
  if (!request.prepared) {
    QUIRE_RETURN_IF_ERROR(engine.check(request.prompt, request.params));
    QUIRE_ASSIGN_OR_RETURN(request.prepared, prepare(engine, std::move(request.params), request.tenant));
  }
  const PreparedParams prepared = *request.prepared;
  const auto n = static_cast<size_t>(prepared.first->n);
  const bool ranks = ranks_answers(*prepared.first);
  const auto make_processor = [&engine, &prepared, reading = request.reading] {
    const auto constraint = prepared.constraint == nullptr ? nullptr : prepared.constraint->constraint;
    return OutputProcessor(engine.tokenizer(), *prepared.first, prepared.shows_logprobs, reading, constraint);
  };
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<TokenStream>> streams,
                         engine.submit(std::move(request), when_full));
  std::vector<std::unique_ptr<Completion>> completions;
  if (ranks) {
    std::vector<OutputProcessor> processors;
    for (size_t i = 0; i < streams.size(); ++i) processors.push_back(make_processor());
    auto best_of = std::make_shared<BestOf>(std::move(streams), std::move(processors));
    for (size_t rank = 0; rank < n; ++rank) {
      completions.push_back(std::unique_ptr<Completion>(new Completion(best_of, rank, num_prompt_tokens)));
    }
    return completions;
  }
  for (std::unique_ptr<TokenStream>& stream : streams) {
    completions.push_back(
        std::unique_ptr<Completion>(new Completion(std::move(stream), make_processor(), num_prompt_tokens)));
  }
  return completions;
}

Result<std::unique_ptr<Completion>> Completion::start_one(Engine& engine, GenerationRequest request) {
  QUIRE_CHECK(request.params.n == 1);
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Completion>> completions, start(engine, std::move(request)));
  return std::move(completions.front());
}

Completion::Completion(std::unique_ptr<TokenStream> stream, OutputProcessor processor, int64_t num_prompt_tokens)
    : stream_(std::move(stream)), processor_(std::move(processor)), num_prompt_tokens_(num_prompt_tokens) {}

Completion::Completion(std::shared_ptr<BestOf> best_of, size_t rank, int64_t num_prompt_tokens)
    : best_of_(std::move(best_of)), rank_(rank), num_prompt_tokens_(num_prompt_tokens) {}

OutputDelta Completion::process(TokenEvent event) {
  const bool engine_finished = event.finish != FinishReason::kNone;
  OutputDelta delta = finish(processor_->process(std::move(event)));
  if (finished_ && !engine_finished) {  // a stop string: the engine does not know yet
    delta.memory_held = stream_->take_memory_held();
    stream_->cancel(delta.finish, num_output_tokens_);
  }
  return delta;
}

OutputDelta Completion::finish(OutputDelta delta) {
  num_output_tokens_ += static_cast<int64_t>(delta.tokens.size());
  finished_ = delta.finish != FinishReason::kNone;
  return delta;
}

std::optional<OutputDelta> Completion::try_take() {
  if (finished_) return std::nullopt;
  if (best_of_) {
    if (!best_of_->poll(/*wait=*/false)) return std::nullopt;
    return finish(best_of_->take(rank_));
  }
  std::optional<TokenEvent> event = stream_->try_take();
  if (!event) return std::nullopt;
  return process(std::move(*event));
}

OutputDelta Completion::take() {
  QUIRE_CHECK(!finished_);
  if (best_of_) {
    best_of_->poll(/*wait=*/true);
    return finish(best_of_->take(rank_));
  }
  return process(stream_->take());
}

void Completion::on_ready(std::function<void()> notify) {
  if (best_of_) {
    best_of_->on_ready(std::move(notify));
  } else {
    stream_->on_ready(std::move(notify));
  }
}

void Completion::cancel() {
  if (best_of_) {
    best_of_->cancel();
  } else {
    stream_->cancel();
  }
}

}  // namespace quire::engine
