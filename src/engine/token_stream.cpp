#include "engine/token_stream.h"

#include <iterator>

namespace quire::engine {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

void merge(TokenEvent& into, TokenEvent&& event) {
  append(into.tokens, std::move(event.tokens));
  append(into.logprobs, std::move(event.logprobs));
  append(into.prompt_logprobs, std::move(event.prompt_logprobs));
  if (!event.pooled.empty()) into.pooled = std::move(event.pooled);
  into.finish = event.finish;
  if (event.num_cached_tokens) into.num_cached_tokens = event.num_cached_tokens;
  into.num_predicted_tokens += event.num_predicted_tokens;
  into.num_mispredicted_tokens += event.num_mispredicted_tokens;
  into.cumulative_logprob = event.cumulative_logprob;
  into.stop_token = event.stop_token;
  into.stopped_by_eos = event.stopped_by_eos;
  into.adapter_revision = event.adapter_revision;
  into.error = std::move(event.error);
}

}  // namespace

void TokenStream::State::put(TokenEvent event) {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex);
    finished = event.finish != FinishReason::kNone;
    const bool was_empty = !pending;
    if (was_empty) {
      pending = std::move(event);
    } else {
      merge(*pending, std::move(event));
    }
    // One call for everything that waits: the consumer takes it all at once.
    if (was_empty) call = notify;
    ready.notify_one();
  }
  if (call) call();
}

std::optional<TokenEvent> TokenStream::State::take_locked() {
  std::optional<TokenEvent> event = std::move(pending);
  pending.reset();
  if (event && event->finish != FinishReason::kNone) event->memory_held = std::move(memory_held);
  return event;
}

void TokenStream::State::close() {
  const std::lock_guard lock(mutex);
  finished = true;
}

TokenStream::TokenStream(std::shared_ptr<State> state) : state_(std::move(state)) {}

TokenStream::~TokenStream() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->notify = nullptr;
  }
  cancel();
}

std::optional<TokenEvent> TokenStream::try_take() {
  const std::lock_guard lock(state_->mutex);
  return state_->take_locked();
}

TokenEvent TokenStream::take() {
  std::unique_lock lock(state_->mutex);
  QUIRE_CHECK(state_->pending || !state_->finished);  // nothing follows the last event
  state_->ready.wait(lock, [&] { return state_->pending.has_value(); });
  return *state_->take_locked();
}

void TokenStream::on_ready(const std::function<void()>& notify) {
  bool call_now = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->notify = notify;
    call_now = state_->pending.has_value();
  }
  if (call_now) notify();
}

void TokenStream::cancel(FinishReason finish, std::optional<int64_t> num_tokens) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->finished) return;
  }
  const std::lock_guard lock(state_->inbox->mutex);
  state_->inbox->ended.push_back({state_->id, finish, num_tokens});
  state_->inbox->bell.notify_one();
}

std::shared_ptr<const void> TokenStream::take_memory_held() {
  const std::lock_guard lock(state_->mutex);
  return std::move(state_->memory_held);
}

SequenceId TokenStream::id() const {
  return state_->id;
}

}  // namespace quire::engine
