// Asks batches' lines, a few at a time and only while nobody else waits, in turn among the batches. The server's
// batches and `quire run-batch` share it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "server/batch_lines.h"
#include "server/http.h"
#include "server/local_exchange.h"

namespace quire::server {

// One batch's lines on their way. Handed to a BatchWorker, which alone touches what has no other comment.
struct LineJob {
  LineJob(const std::string& input, std::string endpoint) : reader(input, std::move(endpoint)) {}

  LineReader reader;
  AnswerFile output;
  std::optional<AnswerFile> errors;  // of lines that were not answered with 200; without it `output` has them too
  std::unordered_set<std::string> answered;  // custom_ids that need not be asked again
  int32_t tenant = 0;
  std::chrono::system_clock::time_point expires = std::chrono::system_clock::time_point::max();
  // Whether there is room for so many bytes of answers in all; empty: always.
  std::function<Status(int64_t bytes)> room;
  std::function<void(LineJob&)> over;  // on the worker's thread, once, unless it is stopped before

  // Any thread.
  std::atomic<int64_t> completed{0};
  std::atomic<int64_t> failed{0};

  // After `over` began, also on any thread.
  bool cancelled = false;
  bool expired = false;
  Status error;  // the answers cannot be written

  // The worker's own.
  std::deque<BatchLine> again;  // refused for the time being
  std::vector<std::weak_ptr<LocalExchange>> asked;
  int64_t in_flight = 0;
  bool exhausted = false;
};

class BatchWorker {
 public:
  // Gives a request to the route of its path: on the worker's thread.
  using Ask = std::function<void(const std::shared_ptr<Exchange>&)>;
  // Whether others wait for the engine; nothing new is asked meanwhile.
  using Busy = std::function<bool()>;

  // exchanges must outlive it.
  BatchWorker(LocalExchanges& exchanges, Ask ask, Busy busy, int64_t concurrency);
  ~BatchWorker();  // stop()
  BatchWorker(const BatchWorker&) = delete;
  BatchWorker& operator=(const BatchWorker&) = delete;

  void add(std::shared_ptr<LineJob> job);
  // Asks no more of its lines and lets go of those that are asked; then it is over.
  void cancel(const std::shared_ptr<LineJob>& job);
  // Lets go of everything; jobs are not over then, but can be gone on with. Idempotent.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  std::shared_ptr<LineJob> finished_job();
  std::optional<BatchLine> next_line(LineJob& job);
  bool ask_next(Lock& lock);
  void end_turn(const std::shared_ptr<LineJob>& job);
  void expire();
  void answered(const std::shared_ptr<LineJob>& job, const BatchLine& line, const std::string& request_id,
                const HttpResponse& response);
  static void write(LineJob& job, bool good, const std::string& line);
  static void let_go(LineJob& job);

  LocalExchanges& exchanges_;
  const Ask ask_;
  const Busy busy_;
  const int64_t concurrency_;
  std::mutex mutex_;  // of all jobs, too
  std::condition_variable bell_;
  std::list<std::shared_ptr<LineJob>> jobs_;  // the next to be asked first
  int64_t in_flight_ = 0;
  bool refused_ = false;  // the engine's queue is full
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire::server
