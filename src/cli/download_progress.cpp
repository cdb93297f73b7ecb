#include "cli/download_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "base/log.h"

namespace quire::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kBetweenBars = 100ms;
constexpr auto kBetweenLines = 10s;
constexpr auto kWindow = 5s;
constexpr int kBarWidth = 24;

}  // namespace

std::string size_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  if (bytes >= 1'000) return fmt::format("{:.0f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

std::string time_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e7) return "-";
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

DownloadProgress::DownloadProgress(std::string model)
    : model_(std::move(model)), terminal_(isatty(STDERR_FILENO) != 0) {}

void DownloadProgress::started(int files, int64_t bytes, int64_t there) {
  const std::lock_guard guard(mutex_);
  bytes_ = bytes;
  done_ = there;
  fetched_ = 0;
  started_ = shown_ = Clock::now();
  samples_.assign(1, {started_, 0});
  const std::string kept = there > 0 ? fmt::format(", {} of it there from before", size_text(there)) : "";
  const std::string text =
      fmt::format("{}: downloading {} {}, {}{}", model_, files, files == 1 ? "file" : "files", size_text(bytes), kept);
  if (terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
  } else {
    log_info("{}", text);
  }
}

void DownloadProgress::advanced(int64_t bytes) {
  const std::lock_guard guard(mutex_);
  done_ += bytes;
  fetched_ += std::max<int64_t>(bytes, 0);
  const Clock::time_point now = Clock::now();
  if (now - shown_ < (terminal_ ? Clock::duration(kBetweenBars) : Clock::duration(kBetweenLines))) return;
  shown_ = now;
  samples_.emplace_back(now, fetched_);
  while (samples_.size() > 2 && now - samples_[1].first > kWindow) samples_.pop_front();
  show(now);
}

double DownloadProgress::rate(Clock::time_point now) const {
  const auto& [since, bytes] = samples_.front();
  const double seconds = std::chrono::duration<double>(now - since).count();
  return seconds > 0 ? static_cast<double>(fetched_ - bytes) / seconds : 0;
}

void DownloadProgress::show(Clock::time_point now) {
  const double share = bytes_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(bytes_), 0.0, 1.0) : 1;
  const double speed = rate(now);
  const std::string left = time_text(speed > 0 ? static_cast<double>(bytes_ - done_) / speed : -1);
  const std::string numbers =
      fmt::format("{} of {}, {}/s, {} left", size_text(done_), size_text(bytes_), size_text(std::llround(speed)), left);
  if (!terminal_) {
    log_info("{}: {:.0f} % ({})", model_, share * 100, numbers);
    return;
  }
  const int full = static_cast<int>(share * kBarWidth);
  std::fprintf(stderr, "\r\x1b[K%3.0f %% [%s%s] %s", std::floor(share * 100), std::string(full, '#').c_str(),
               std::string(kBarWidth - full, ' ').c_str(), numbers.c_str());
}

void DownloadProgress::note(const std::string& text) {
  const std::lock_guard guard(mutex_);
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[K%s\n", text.c_str());
  } else {
    log_info("{}", text);
  }
}

void DownloadProgress::finished() {
  const std::lock_guard guard(mutex_);
  if (terminal_) std::fputs("\r\x1b[K", stderr);
  if (done_ < bytes_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const std::string text =
      fmt::format("{}: {} in {} ({}/s)", model_, size_text(fetched_), time_text(seconds),
                  size_text(std::llround(static_cast<double>(fetched_) / std::max(seconds, 1e-3))));
  if (terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
  } else {
    log_info("{}", text);
  }
}

}  // namespace quire::cli
