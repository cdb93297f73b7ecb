#include "cli/terminal.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>

#include "cli/word_wrap.h"

namespace quire::cli {
namespace {

std::atomic<bool> interrupt_seen{false};
void (*previous_handler)(int) = SIG_DFL;

void on_interrupt(int) {
  interrupt_seen = true;
}

// Rung by the engine's thread; a ring may come after the wait is over.
struct Bell {
  std::mutex mutex;
  std::condition_variable condition;
  bool rung = false;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Columns of the terminal that standard output is; 0: it is none, or does not say.
int terminal_columns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupt_seen = false;
  previous_handler = std::signal(SIGINT, on_interrupt);
}
InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, previous_handler);
}
bool InterruptGuard::interrupted() {
  return interrupt_seen;
}
void InterruptGuard::clear() {
  interrupt_seen = false;
}

StreamedAnswer stream_answer(engine::Completion& completion) {
  StreamedAnswer answer;
  const auto start = std::chrono::steady_clock::now();
  WordWrap wrap(terminal_columns());
  auto bell = std::make_shared<Bell>();
  completion.on_ready([bell] {
    const std::lock_guard lock(bell->mutex);
    bell->rung = true;
    bell->condition.notify_one();
  });
  while (!completion.finished()) {
    {
      std::unique_lock lock(bell->mutex);
      // A signal does not wake a waiting thread: look for one now and then.
      bell->condition.wait_for(lock, std::chrono::milliseconds(50), [&] { return bell->rung; });
      bell->rung = false;
    }
    if (InterruptGuard::interrupted()) {
      completion.cancel();
      answer.interrupted = true;
      break;
    }
    while (std::optional<engine::OutputDelta> delta = completion.try_take()) {
      if (answer.num_tokens == 0 && !delta->tokens.empty()) answer.first_token_seconds = seconds_since(start);
      answer.num_tokens += static_cast<int64_t>(delta->tokens.size());
      answer.text += delta->text;
      answer.finish = delta->finish;
      answer.error = std::move(delta->error);
      wrap.set_columns(terminal_columns());  // its window may have changed
      print(wrap.add(delta->text));
    }
  }
  print(wrap.finish());
  answer.decode_seconds = seconds_since(start) - answer.first_token_seconds;
  return answer;
}

std::string speed_line(int64_t num_prompt_tokens, const StreamedAnswer& answer) {
  const double rate = answer.decode_seconds > 0
                          ? static_cast<double>(std::max<int64_t>(answer.num_tokens - 1, 0)) / answer.decode_seconds
                          : 0;
  return fmt::format("[{} prompt tokens, {:.2f} s to the first token; {} tokens, {:.1f} tok/s]", num_prompt_tokens,
                     answer.first_token_seconds, answer.num_tokens, rate);
}

}  // namespace quire::cli
