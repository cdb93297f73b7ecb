#include "server/batch_worker.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <utility>

#include "base/log.h"
#include "server/random_id.h"

namespace quire::server {

namespace {

constexpr std::chrono::milliseconds kWhileBusy{20};
// Of a line whose model, or adapter, cannot be loaded: it may be that its files are just being replaced.
constexpr int32_t kMostLoads = 3;

// Refused for the time being, and not for a model that is still not there.
bool is_asked_again(const HttpResponse& response, BatchLine& line) {
  if (response.status == 503 && response.error_param == "model") return ++line.num_loads < kMostLoads;
  return response.status == 429 || response.status == 503;
}

std::string expired_line(const BatchLine& line) {
  return failed_line(line, "batch_expired", "This request could not be executed before the completion window ended.");
}

}  // namespace

BatchWorker::BatchWorker(LocalExchanges& exchanges, Ask ask, Busy busy, int64_t concurrency)
    : exchanges_(exchanges), ask_(std::move(ask)), busy_(std::move(busy)), concurrency_(concurrency), thread_([this] {
        run();
      }) {}

BatchWorker::~BatchWorker() {
  stop();
}

void BatchWorker::let_go(LineJob& job) {
  for (const auto& weak : job.asked) {
    if (const auto exchange = weak.lock()) exchange->cancel();
  }
  job.asked.clear();
}

void BatchWorker::add(std::shared_ptr<LineJob> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  bell_.notify_all();
}

void BatchWorker::cancel(const std::shared_ptr<LineJob>& job) {
  const std::lock_guard lock(mutex_);
  job->cancelled = true;
  job->again.clear();
  let_go(*job);
  bell_.notify_all();
}

void BatchWorker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& job : jobs_) let_go(*job);
    bell_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // What is asked refers to this: it must have ended.
  Lock lock(mutex_);
  bell_.wait(lock, [&] { return in_flight_ == 0; });
  jobs_.clear();
}

std::shared_ptr<LineJob> BatchWorker::finished_job() {
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    LineJob& job = **it;
    const bool no_more = job.cancelled || job.expired || !job.error.ok() || (job.exhausted && job.again.empty());
    if (!no_more || job.in_flight > 0) continue;
    std::shared_ptr<LineJob> done = *it;
    jobs_.erase(it);
    return done;
  }
  return nullptr;
}

void BatchWorker::run() {
  Lock lock(mutex_);
  while (!stopping_) {
    expire();
    if (const std::shared_ptr<LineJob> done = finished_job()) {
      lock.unlock();
      done->over(*done);
      lock.lock();
      continue;
    }
    const bool full = in_flight_ >= concurrency_;
    if (!jobs_.empty() && !full && (refused_ || busy_())) {
      refused_ = false;
      bell_.wait_for(lock, kWhileBusy);
    } else if (jobs_.empty() || full || !ask_next(lock)) {
      if (!stopping_) bell_.wait(lock);
    }
  }
}

std::optional<BatchLine> BatchWorker::next_line(LineJob& job) {
  if (!job.again.empty()) {
    BatchLine line = std::move(job.again.front());
    job.again.pop_front();
    return line;
  }
  while (auto line = job.reader.next()) {
    if (!job.answered.contains(line->custom_id)) return line;
  }
  job.exhausted = true;
  return std::nullopt;
}

// What is left of batches that are too late is answered at once.
void BatchWorker::expire() {
  const auto now = std::chrono::system_clock::now();
  for (const auto& job : jobs_) {
    if (now < job->expires || job->expired || job->cancelled || !job->error.ok()) continue;
    job->expired = true;
    while (const auto line = next_line(*job)) write(*job, /*good=*/false, expired_line(*line));
  }
}

// Behind all others, so that batches of one tenant have one turn among them; of these this one is the last.
void BatchWorker::end_turn(const std::shared_ptr<LineJob>& job) {
  const int32_t tenant = job->tenant;
  const auto of_tenant = [tenant](const auto& other) { return other->tenant == tenant; };
  std::list<std::shared_ptr<LineJob>> others;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto next = std::next(it);
    if (!of_tenant(*it)) others.splice(others.end(), jobs_, it);
    it = next;
  }
  jobs_.splice(jobs_.begin(), others);
}

// Asks the next line of the job whose turn it is. False: there is none to be asked now.
bool BatchWorker::ask_next(Lock& lock) {
  for (size_t i = jobs_.size(); i > 0; --i) {
    jobs_.splice(jobs_.end(), jobs_, jobs_.begin());
    const std::shared_ptr<LineJob> job = jobs_.back();
    if (job->cancelled || job->expired || !job->error.ok()) continue;
    std::optional<BatchLine> line = next_line(*job);
    if (!line) {
      if (job->in_flight == 0) return true;  // it is over
      continue;
    }
    end_turn(job);
    HttpRequest request;
    request.method = "POST";
    request.path = line->url;
    request.body = line->body;
    request.id = random_id();
    request.tenant = job->tenant;
    request.in_idle_time = true;
    const std::string id = request.id;
    auto exchange = exchanges_.make(std::move(request), [this, job, line = *line, id](const HttpResponse& response) {
      answered(job, line, id, response);
    });
    std::erase_if(job->asked, [](const auto& weak) { return weak.expired(); });
    job->asked.push_back(exchange);
    ++job->in_flight;
    ++in_flight_;
    lock.unlock();
    try {
      ask_(exchange);
    } catch (const std::exception& error) {  // the exchange ends with it, which answers 500
      log_error("a batch's line failed: {}", error.what());
    }
    exchange.reset();
    lock.lock();
    return true;
  }
  return false;
}

void BatchWorker::write(LineJob& job, bool good, const std::string& line) {
  const int64_t bytes = job.output.bytes() + (job.errors ? job.errors->bytes() : 0) + static_cast<int64_t>(line.size());
  Status status = job.room ? job.room(bytes) : Status();
  if (status.ok()) status = (good || !job.errors ? job.output : *job.errors).append(line);
  if (!status.ok()) {
    if (job.error.ok()) log_error("{}", status.message());
    job.error = std::move(status);
    return;
  }
  ++(good ? job.completed : job.failed);
}

void BatchWorker::answered(const std::shared_ptr<LineJob>& job, const BatchLine& line, const std::string& request_id,
                           const HttpResponse& response) {
  const std::lock_guard lock(mutex_);
  --job->in_flight;
  --in_flight_;
  const bool dropped = response.status == 499 || stopping_ || job->cancelled;
  BatchLine again = line;
  const bool refused = !dropped && is_asked_again(response, again);
  if (refused && job->expired) {
    write(*job, /*good=*/false, expired_line(line));
  } else if (refused) {
    job->again.push_back(std::move(again));
    refused_ = true;
  } else if (!dropped) {
    write(*job, response.status == 200, answered_line(line, request_id, response));
  }
  bell_.notify_all();
}

}  // namespace quire::server
