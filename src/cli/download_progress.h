// How far a download is: a bar on a terminal, a line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "hub/options.h"

namespace quire::cli {

class DownloadProgress final : public hub::Progress {
 public:
  explicit DownloadProgress(std::string model);

  void started(int files, int64_t bytes, int64_t there) override;
  void advanced(int64_t bytes) override;
  void note(const std::string& text) override;
  void finished() override;

 private:
  using Clock = std::chrono::steady_clock;

  void show(Clock::time_point now);
  double rate(Clock::time_point now) const;  // bytes a second, of the last seconds

  const std::string model_;
  const bool terminal_;
  std::mutex mutex_;
  int64_t bytes_ = 0;
  int64_t done_ = 0;
  int64_t fetched_ = 0;
  Clock::time_point started_, shown_;
  std::deque<std::pair<Clock::time_point, int64_t>> samples_;  // bytes fetched by then
};

// "4.37 GB", "512 kB"
std::string size_text(int64_t bytes);

// "0:42", "1:02:03"; "-" where it cannot be said.
std::string time_text(double seconds);

}  // namespace quire::cli
