#include "channel.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>

namespace quire::python {

// Which requests have something new. Streams tell it, perhaps when the channel is gone.
struct Channel::Ready {
  std::mutex mutex;
  std::condition_variable bell;
  std::vector<uint64_t> numbers;  // may hold one several times
  int descriptor = -1;

  ~Ready() {
    if (descriptor >= 0) close(descriptor);
  }
  void add(uint64_t number) {
    const std::lock_guard lock(mutex);
    numbers.push_back(number);
    bell.notify_one();
    if (descriptor >= 0 && numbers.size() == 1) ring();
  }
  void ring() const {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(descriptor, &one, sizeof one);
  }
  std::vector<uint64_t> take(std::chrono::milliseconds wait) {
    std::vector<uint64_t> taken;
    std::unique_lock lock(mutex);
    if (wait.count() > 0) bell.wait_for(lock, wait, [this] { return !numbers.empty(); });
    taken.swap(numbers);
    if (descriptor >= 0) {
      uint64_t rung = 0;
      [[maybe_unused]] const auto read_bytes = read(descriptor, &rung, sizeof rung);
    }
    lock.unlock();
    std::ranges::sort(taken);
    const auto repeated = std::ranges::unique(taken);
    taken.erase(repeated.begin(), repeated.end());
    return taken;
  }
};

Channel::Channel(std::shared_ptr<OwnedEngine> engine, bool whole)
    : engine_(std::move(engine)), whole_(whole), ready_(std::make_shared<Ready>()) {}

Channel::~Channel() {
  if (!engine_->elsewhere()) return;
  // The streams tell threads that are not here, under locks that one of them may have held.
  for (auto& [number, running] : running_) {
    for (auto& answer : running.answers) (void)answer.release();
  }
}

Result<uint64_t> Channel::submit(std::vector<TokenId> prompt, const Params& params, const SubmitOptions& options) {
  engine::GenerationRequest request{.prompt = std::move(prompt),
                                    .params = {},
                                    .prepared = params.prepared,
                                    .priority = options.priority,
                                    .adapter = options.adapter,
                                    .cache_salt = options.cache_salt};
  if (!(options.timeout >= 0 && options.timeout < 1e9)) {
    return invalid_argument("timeout must be in [0, 1e9) seconds, got {}", options.timeout).with_param("timeout");
  }
  if (options.timeout > 0) {
    request.timeout = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(options.timeout * 1000)));
  }
  QUIRE_ASSIGN_OR_RETURN(auto answers,
                         engine::Completion::start(*engine_->engine, std::move(request),
                                                   options.wait ? engine::WhenFull::kWait : engine::WhenFull::kRefuse));
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_number_++;
  Running& running = running_[number];
  running.answers = std::move(answers);
  running.whole.resize(whole_ ? running.answers.size() : 0);
  for (const auto& answer : running.answers) {
    answer->on_ready([ready = ready_, number] { ready->add(number); });
  }
  return number;
}

bool Channel::cancel(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return running_.erase(number) > 0;
}

std::vector<Update> Channel::take(std::chrono::milliseconds wait) {
  std::vector<Update> updates;
  for (const uint64_t number : ready_->take(wait)) {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(number);
    if (found == running_.end()) continue;  // cancelled
    take_of(number, found->second, updates);
    const auto& answers = found->second.answers;
    if (std::ranges::all_of(answers, [](const auto& answer) { return answer->finished(); })) running_.erase(found);
  }
  return updates;
}

void Channel::take_of(uint64_t number, Running& running, std::vector<Update>& updates) {
  for (size_t i = 0; i < running.answers.size(); ++i) {
    while (std::optional<engine::OutputDelta> delta = running.answers[i]->try_take()) {
      num_tokens_ += static_cast<int64_t>(delta->tokens.size());
      if (whole_) {
        engine::append(running.whole[i], std::move(*delta));
      } else {
        updates.push_back({number, static_cast<int32_t>(i), false, std::move(*delta)});
      }
    }
  }
  const bool done = std::ranges::all_of(running.answers, [](const auto& answer) { return answer->finished(); });
  if (done && whole_) {
    for (size_t i = 0; i < running.whole.size(); ++i) {
      updates.push_back({number, static_cast<int32_t>(i), false, std::move(running.whole[i])});
    }
  }
  if (done && !updates.empty() && updates.back().number == number) updates.back().last = true;
}

size_t Channel::size() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

int64_t Channel::num_tokens() const {
  const std::lock_guard lock(mutex_);
  return num_tokens_;
}

Result<int> Channel::descriptor() {
  const std::lock_guard lock(ready_->mutex);
  if (ready_->descriptor >= 0) return ready_->descriptor;
  ready_->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (ready_->descriptor < 0) return internal_error("cannot make an event descriptor: {}", std::strerror(errno));
  if (!ready_->numbers.empty()) ready_->ring();
  return ready_->descriptor;
}

}  // namespace quire::python
