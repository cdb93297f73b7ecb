#include "engine/output.h"

#include <algorithm>

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

OutputProcessor::OutputProcessor(const text::Tokenizer* tokenizer, const SamplingParams& params)
    : include_stop_(params.include_stop_str_in_output), min_tokens_(params.min_tokens) {
  if (tokenizer == nullptr || !params.detokenize) return;
  detokenizer_.emplace(*tokenizer, params.skip_special_tokens);
  stop_ = params.stop;
}

// Moves what is certain of held and fresh text into the delta. True: a stop string was found.
bool OutputProcessor::release_text(std::string fresh, bool last, OutputDelta& delta) {
  held_ += fresh;
  // As in vLLM, text of the first min_tokens tokens neither stops nor begins a stop.
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
  const size_t keep = last || !may_stop ? 0 : held_length(held_, stop_);
  delta.text.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

OutputDelta OutputProcessor::process(TokenEvent event) {
  OutputDelta delta;
  delta.prompt_logprobs = std::move(event.prompt_logprobs);
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    delta.tokens.push_back(event.tokens[i]);
    if (i < event.logprobs.size()) delta.logprobs.push_back(std::move(event.logprobs[i]));
    ++num_tokens_;
    if (!detokenizer_) continue;
    const bool ends_answer = event.stop_token && i + 1 == event.tokens.size();
    // The token that ended the answer is no part of its text, unless asked for.
    if (ends_answer && !include_stop_) continue;
    // One token at a time: where a stop string ends the answer must not depend on how many tokens came together.
    if (release_text(detokenizer_->append(std::span(&event.tokens[i], 1)), /*last=*/false, delta)) return delta;
  }
  if (event.finish == FinishReason::kNone) return delta;
  if (detokenizer_ && release_text(detokenizer_->finish(), /*last=*/true, delta)) return delta;
  delta.finish = event.finish;
  delta.error = std::move(event.error);
  if (event.stop_token && !event.stopped_by_eos) delta.stop_reason = *event.stop_token;
  return delta;
}

Result<std::unique_ptr<Completion>> Completion::start(Engine& engine, GenerationRequest request) {
  if (engine.tokenizer() == nullptr && !request.params.stop.empty()) {
    return invalid_argument("stop strings need a tokenizer, and this engine runs without one; use stop_token_ids")
        .with_param("stop");
  }
  OutputProcessor processor(engine.tokenizer(), request.params);
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<TokenStream> stream, engine.submit(std::move(request)));
  return std::unique_ptr<Completion>(new Completion(std::move(stream), std::move(processor), num_prompt_tokens));
}

Completion::Completion(std::unique_ptr<TokenStream> stream, OutputProcessor processor, int64_t num_prompt_tokens)
    : stream_(std::move(stream)), processor_(std::move(processor)), num_prompt_tokens_(num_prompt_tokens) {}

OutputDelta Completion::process(TokenEvent event) {
  const bool engine_finished = event.finish != FinishReason::kNone;
  OutputDelta delta = processor_.process(std::move(event));
  num_output_tokens_ += static_cast<int64_t>(delta.tokens.size());
  finished_ = delta.finish != FinishReason::kNone;
  if (finished_ && !engine_finished) stream_->cancel();  // a stop string: the engine does not know yet
  return delta;
}

std::optional<OutputDelta> Completion::try_take() {
  if (finished_) return std::nullopt;
  std::optional<TokenEvent> event = stream_->try_take();
  if (!event) return std::nullopt;
  return process(std::move(*event));
}

OutputDelta Completion::take() {
  QUIRE_CHECK(!finished_);
  return process(stream_->take());
}

void Completion::on_ready(std::function<void()> notify) {
  stream_->on_ready(std::move(notify));
}

void Completion::cancel() {
  stream_->cancel();
}

}  // namespace quire::engine
