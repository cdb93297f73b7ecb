#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr size_t kMaxPending = 256 << 10;  // bytes of events formed before the client has taken them

// Whether the client would learn anything from a chunk made of this.
bool worth_a_chunk(const AnswerContext& context, const engine::OutputDelta& delta) {
  return !delta.text.empty() || delta.finish != FinishReason::kNone ||
         (!delta.tokens.empty() && (context.num_logprobs || context.return_token_ids));
}

}  // namespace

Generation::Generation(std::shared_ptr<Exchange> exchange, AnswerContext context, std::vector<PreparedPrompt> prompts,
                       std::vector<std::unique_ptr<engine::Completion>> completions, Delivery delivery)
    : exchange_(std::move(exchange)),
      format_(std::move(context)),
      prompts_(std::move(prompts)),
      shared_(prompts_.size()),
      delivery_(std::move(delivery)),
      unfinished_(completions.size()) {
  const size_t n = completions.size() / prompts_.size();
  for (size_t i = 0; i < completions.size(); ++i) {
    Choice choice;
    choice.progress.index = static_cast<int32_t>(i);
    choice.prompt = i / n;
    choice.progress.prompt = &prompts_[choice.prompt];
    choice.progress.prompt_logprobs = &shared_[choice.prompt].logprobs;
    choice.completion = std::move(completions[i]);
    choices_.push_back(std::move(choice));
  }
}

void Generation::start() {
  exchange_->post([self = shared_from_this()] { self->begin(); });
}

void Generation::begin() {
  if (!exchange_->connected()) return;  // the completions end with this
  exchange_->watch(
      [self = shared_from_this()] {
        self->over_ = true;
        self->choices_.clear();  // cancels what runs
        self->delivery_.ticket.reset();
      },
      [self = shared_from_this()] {
        self->aborted_ = true;
        self->pump();
      });
  for (Choice& choice : choices_) {
    choice.completion->on_ready([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wake();
    });
  }
  if (format_.context().stream) {
    exchange_->begin_stream({200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}}, ""});
    if (format_.context().chat) {
      for (Choice& choice : choices_) {
        json::object opening = format_.envelope({format_.opening_choice(choice.progress)}, usage_of(choice));
        if (format_.context().return_token_ids) {
          opening["prompt_token_ids"] = ids_array(choice.progress.prompt->ids);
        }
        out_ += sse_event(opening);
      }
    }
  }
  pump();
}

// On the engine's thread: any number of tokens before the strand comes to it cost one visit.
void Generation::wake() {
  if (woken_.exchange(true)) return;
  exchange_->post([self = shared_from_this()] {
    self->woken_ = false;
    self->pump();
  });
}

void Generation::pump() {
  if (over_ || writing_) return;  // pumped again when the client has taken what was written
  do {
    prompt_became_known_ = false;  // those that waited for it have their turn again
    for (size_t i = 0; i < choices_.size() && out_.size() < kMaxPending; ++i) {
      Choice& choice = choices_[(next_choice_ + i) % choices_.size()];
      if (choice.completion != nullptr && !waits(choice) && !take(choice)) return;
    }
  } while (prompt_became_known_);
  next_choice_ = (next_choice_ + 1) % choices_.size();
  if (format_.context().stream) {
    send_stream();
  } else if (unfinished_ == 0) {
    send_whole();
  }
}

// An echoed prompt's log-probabilities begin a streamed choice, and the first choice alone brings them.
bool Generation::waits(const Choice& choice) const {
  const AnswerContext& context = format_.context();
  if (!context.stream || !context.echo || !context.num_logprobs || shared_[choice.prompt].known || aborted_)
    return false;
  return choice.progress.index > 0 && choices_[static_cast<size_t>(choice.progress.index) - 1].prompt == choice.prompt;
}

void Generation::note_prompt(const Choice& choice, engine::OutputDelta& delta) {
  Shared& shared = shared_[choice.prompt];
  if (!shared.known) prompt_became_known_ = true;
  shared.known = true;
  if (!delta.prompt_logprobs.empty()) shared.logprobs = std::exchange(delta.prompt_logprobs, {});
  // Those after the first find the first one's blocks: what the prompt found of others' is the least.
  if (!delta.num_cached_tokens) return;
  shared.num_cached_tokens =
      std::min(*delta.num_cached_tokens, shared.num_cached_tokens.value_or(*delta.num_cached_tokens));
}

bool Generation::take(Choice& choice) {
  std::optional<engine::OutputDelta> delta = choice.completion->try_take();
  if (!delta) {
    if (!aborted_) return true;
    delta.emplace();
    delta->finish = FinishReason::kAbort;
  } else if (aborted_ && delta->finish == FinishReason::kNone) {
    delta->finish = FinishReason::kAbort;
  }
  if (delta->finish == FinishReason::kError) {
    fail(delta->error);
    return false;
  }
  note_prompt(choice, *delta);
  if (delta->finish != FinishReason::kNone) {
    choice.completion.reset();
    delivery_.load->finished();
    if (--unfinished_ == 0) delivery_.ticket.reset();
  }
  give(choice, std::move(*delta));
  return true;
}

void Generation::give(Choice& choice, engine::OutputDelta delta) {
  choice.progress.num_tokens += static_cast<int64_t>(delta.tokens.size());
  if (format_.context().stream) {
    if (!worth_a_chunk(format_.context(), delta)) return;
    json::object part = format_.choice(choice.progress, delta);
    out_ += sse_event(format_.envelope({std::move(part)}, usage_of(choice)));
    return;
  }
  append(choice.collected, std::move(delta));
}

json::value Generation::usage_of(const Choice& choice) const {
  if (!delivery_.continuous_usage) return nullptr;
  return usage_object(static_cast<int64_t>(choice.progress.prompt->ids.size()), choice.progress.num_tokens,
                      shared_[choice.prompt].num_cached_tokens.value_or(0));
}

json::object Generation::total_usage() const {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  for (const PreparedPrompt& prompt : prompts_) prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  for (const Choice& choice : choices_) completion_tokens += choice.progress.num_tokens;
  int64_t cached_tokens = 0;
  for (const Shared& shared : shared_) cached_tokens += shared.num_cached_tokens.value_or(0);
  return usage_object(prompt_tokens, completion_tokens, cached_tokens);
}

void Generation::fail(const Status& error) {
  const bool late = error.code() == StatusCode::kDeadlineExceeded;
  if (late) {
    log_info("request {} ends: {}", format_.context().id, error.message());
  } else {
    log_error("request {} failed: {}", format_.context().id, error.message());
  }
  const bool tellable = late || error.code() == StatusCode::kUnavailable;
  const ApiError told = to_api_error(tellable ? error : internal_error("{}", error.message()));
  for (Choice& choice : choices_) choice.completion.reset();
  delivery_.ticket.reset();
  unfinished_ = 0;
  if (!format_.context().stream) {
    over_ = true;
    exchange_->respond(error_response(told));
    return;
  }
  out_ += sse_event(error_object(told));
  out_ += kSseDone;
  last_written_ = true;
  send_stream();
}

void Generation::send_stream() {
  if (unfinished_ == 0 && !last_written_) {
    if (delivery_.include_usage) out_ += sse_event(format_.envelope({}, total_usage()));
    out_ += kSseDone;
    last_written_ = true;
  }
  if (out_.empty()) return;
  writing_ = true;
  const std::string events = std::exchange(out_, {});
  exchange_->write(events, [self = shared_from_this()] {
    self->writing_ = false;
    if (self->over_) return;
    if (!self->last_written_) return self->pump();
    self->over_ = true;
    self->exchange_->end_stream();
  });
}

void Generation::send_whole() {
  over_ = true;
  json::array choices;
  for (Choice& choice : choices_) choices.emplace_back(format_.choice(choice.progress, choice.collected));
  json::object answer = format_.envelope(std::move(choices), total_usage());
  if (format_.context().chat) {
    if (format_.context().prompt_logprobs_asked) {
      answer["prompt_logprobs"] = format_.prompt_logprobs(shared_.front().logprobs);
    }
    if (format_.context().return_token_ids) answer["prompt_token_ids"] = ids_array(prompts_.front().ids);
  }
  exchange_->respond({200, "application/json", {}, json::serialize(answer)});
}

}  // namespace quire::server
