// How busy the server is: who may queue more, and when one that may not should come back.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace quire::server {

class Load;

// Answers under way of one tenant; gives its place back when it goes.
class LoadTicket {
 public:
  LoadTicket(std::shared_ptr<Load> load, int32_t tenant, int64_t answers);
  ~LoadTicket();
  LoadTicket(const LoadTicket&) = delete;
  LoadTicket& operator=(const LoadTicket&) = delete;

 private:
  std::shared_ptr<Load> load_;
  int32_t tenant_;
  int64_t answers_;
};

// Thread-safe.
class Load : public std::enable_shared_from_this<Load> {
 public:
  using Clock = std::chrono::steady_clock;

  // weights: of the tenants, by number; not empty, all > 0. running, queued: how many may be at work and wait.
  Load(std::vector<double> weights, int64_t running, int64_t queued);

  // Room for so many of the tenant, or nullptr. With one tenant the queue's own bound is the only one. Among several a
  // tenant may have its share at work, and of the queue as much as is left free, times its weight over the heaviest
  // one's (the dynamic threshold of Choudhury and Hahne, 1998): one that floods takes about half of the queue, two a
  // third each, and there is always room for the next. A tenant that has nothing under way is never refused here.
  std::unique_ptr<LoadTicket> enter(int32_t tenant, int64_t answers);

  // Seconds after which a refused client may find room: as long as half of `waiting` answers take at the pace of the
  // last ones, from 1 to 60.
  int retry_after(int64_t waiting, Clock::time_point now = Clock::now()) const;
  void finished(Clock::time_point now = Clock::now());  // an answer

 private:
  friend class LoadTicket;
  void leave(int32_t tenant, int64_t answers);

  mutable std::mutex mutex_;
  struct Tenant {
    double running;  // its share of those at work
    double weight;   // over the heaviest
    int64_t held = 0;
  };
  std::vector<Tenant> tenants_;
  const int64_t running_;
  const int64_t queued_;
  int64_t total_ = 0;
  std::array<Clock::time_point, 64> ends_{};  // a ring of when the last answers ended
  size_t num_ends_ = 0;
};

}  // namespace quire::server
