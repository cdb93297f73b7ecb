#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/request_span.h"

namespace quire::server {

namespace {

constexpr size_t kMaxPending = 256 << 10;  // bytes of events formed before the client has taken them

}  // namespace

Generation::Generation(std::shared_ptr<Exchange> exchange, std::unique_ptr<AnswerWriter> writer,
                       std::vector<PreparedPrompt> prompts,
                       std::vector<std::unique_ptr<engine::Completion>> completions, Delivery delivery)
    : exchange_(std::move(exchange)),
      writer_(std::move(writer)),
      answer_(std::move(prompts), completions.size()),
      completions_(std::move(completions)),
      collected_(completions_.size()),
      delivery_(std::move(delivery)),
      unfinished_(completions_.size()) {}

void Generation::start() {
  exchange_->post([self = shared_from_this()] { self->begin(); });
}

void Generation::begin() {
  if (!exchange_->connected()) return;  // the completions end with this
  exchange_->watch([self = shared_from_this()] { self->drop(); },
                   [self = shared_from_this()] {
                     self->aborted_ = true;
                     self->pump();
                   });
  for (const auto& completion : completions_) {
    completion->on_ready([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wake();
    });
  }
  if (delivery_.stream) {
    exchange_->begin_stream({200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}}, ""});
    writer_->begin(answer_, out_);
  }
  pump();
}

// The client is gone. What was generated and never fetched is on its account all the same.
void Generation::drop() {
  over_ = true;
  for (const auto& completion : completions_) {
    if (completion == nullptr) continue;
    if (const auto rest = completion->try_take()) count(static_cast<int64_t>(rest->tokens.size()));
  }
  completions_.clear();  // cancels what runs
  collected_ = {};
  delivery_.ticket.reset();
  delivery_.memory.reset();
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
    for (size_t i = 0; i < completions_.size() && out_.size() < kMaxPending; ++i) {
      const size_t index = (next_choice_ + i) % completions_.size();
      if (completions_[index] != nullptr && !waits(index) && !take(index)) return;
    }
  } while (prompt_became_known_);
  next_choice_ = (next_choice_ + 1) % completions_.size();
  if (delivery_.stream) {
    send_stream();
  } else if (unfinished_ == 0) {
    send_whole();
  }
}

PromptState& Generation::prompt_of(size_t index) {
  return answer_.prompts[index * answer_.prompts.size() / answer_.choices.size()];
}

bool Generation::waits(size_t index) const {
  if (!delivery_.stream || !writer_->prompt_comes_first() || aborted_) return false;
  const PromptState* prompt = answer_.choices[index].prompt;
  return !prompt->known && index > 0 && answer_.choices[index - 1].prompt == prompt;
}

void Generation::note_prompt(PromptState& prompt, engine::OutputDelta& delta) {
  if (!prompt.known) prompt_became_known_ = true;
  prompt.known = true;
  if (!delta.prompt_logprobs.empty()) prompt.logprobs = std::exchange(delta.prompt_logprobs, {});
  // Those after the first find the first one's blocks: what the prompt found of others' is the least.
  if (!delta.num_cached_tokens) return;
  prompt.num_cached_tokens =
      std::min(*delta.num_cached_tokens, prompt.num_cached_tokens.value_or(*delta.num_cached_tokens));
}

bool Generation::take(size_t index) {
  std::optional<engine::OutputDelta> delta = completions_[index]->try_take();
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
  if (delta->finish == FinishReason::kAbort && exchange_->request().span != nullptr) {
    exchange_->request().span->failed("the answer was cut off: the server stops, or an operator ended it");
  }
  note_prompt(prompt_of(index), *delta);
  if (delta->finish != FinishReason::kNone) {
    completions_[index].reset();
    delivery_.load->finished();
    if (--unfinished_ == 0) delivery_.ticket.reset();
  }
  ChoiceState& choice = answer_.choices[index];
  choice.num_tokens += static_cast<int64_t>(delta->tokens.size());
  count(static_cast<int64_t>(delta->tokens.size()));
  choice.num_reasoning_tokens += delta->num_reasoning_tokens;
  choice.num_predicted_tokens += delta->num_predicted_tokens;
  choice.num_mispredicted_tokens += delta->num_mispredicted_tokens;
  for (const grammar::ToolCallPiece& piece : delta->tool_calls) {
    choice.num_tool_calls = std::max(choice.num_tool_calls, int64_t{piece.index} + 1);
  }
  if (delivery_.stream) {
    writer_->piece(answer_, choice, *delta, out_);
  } else {
    append(collected_[index], std::move(*delta));
  }
  return true;
}

void Generation::count(int64_t num_tokens) {
  delivery_.tenant->generated(num_tokens);
  if (RequestSpan* span = exchange_->request().span.get()) span->generated(num_tokens);
}

void Generation::fail(const Status& error) {
  // The request's own doing: it took too long, the constraint that it asks for cannot be followed, or its adapter has
  // been unloaded since.
  const bool own = error.code() == StatusCode::kDeadlineExceeded || error.code() == StatusCode::kInvalidArgument ||
                   error.code() == StatusCode::kNotFound;
  if (own) {
    log_request(LogLevel::kInfo, exchange_->request().id, "the request ends: {}", error.message());
  } else {
    log_request(LogLevel::kError, exchange_->request().id, "the request failed: {}", error.message());
  }
  const bool tellable = own || error.code() == StatusCode::kUnavailable;
  const ApiError told = to_api_error(tellable ? error : internal_error("{}", error.message()));
  if (RequestSpan* span = exchange_->request().span.get()) span->failed(told.message);
  for (auto& completion : completions_) completion.reset();
  delivery_.ticket.reset();
  delivery_.memory.reset();
  unfinished_ = 0;
  if (!delivery_.stream) {
    over_ = true;
    exchange_->respond(writer_->failure(told));
    return;
  }
  writer_->fail(told, out_);
  last_written_ = true;
  send_stream();
}

void Generation::send_stream() {
  if (unfinished_ == 0 && !last_written_) {
    writer_->end(answer_, out_);
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
    self->delivery_.memory.reset();
    self->exchange_->end_stream();
  });
}

void Generation::send_whole() {
  over_ = true;
  if (!delivery_.hand_over) return respond_whole();
  std::exchange(delivery_.hand_over, nullptr)([self = shared_from_this()](std::string params) {
    self->exchange_->post([self, params = std::move(params)] {
      if (!self->exchange_->connected()) return;
      self->answer_.kv_transfer_params = params;
      self->respond_whole();
    });
  });
}

void Generation::respond_whole() {
  HttpResponse response = writer_->whole(answer_, collected_);
  // The exchange keeps this until the client has taken all of the answer: by now that is held as text alone.
  writer_.reset();
  collected_ = {};
  for (PromptState& prompt : answer_.prompts) prompt.logprobs = {};
  // A connection counts what it has not sent yet; of a batch's line nobody else does.
  if (!exchange_->request().in_idle_time) delivery_.memory.reset();
  exchange_->respond(std::move(response));
}

}  // namespace quire::server
