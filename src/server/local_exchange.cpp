#include "server/local_exchange.h"

#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/body_source.h"
#include "server/request_span.h"

namespace quire::server {

void TaskQueue::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    tasks_.push_back(std::move(work));
  }
  bell_.notify_one();
}

void TaskQueue::run() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      bell_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
      if (closed_) return;
      work = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      work();
    } catch (const std::exception& error) {  // no memory, most likely
      log_error("work in the background failed: {}", error.what());
    }
  }
}

void TaskQueue::close() {
  std::deque<std::function<void()>> dropped;  // outside the lock: what it owns may post
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(tasks_);
  }
  bell_.notify_all();
}

LocalExchange::LocalExchange(HttpRequest request, std::shared_ptr<TaskQueue> queue, Done done)
    : Exchange(std::move(request)), queue_(std::move(queue)), done_(std::move(done)) {}

LocalExchange::~LocalExchange() {
  if (!done_) return;
  if (request().span != nullptr) request().span->end(500);
  queue_->post([done = std::move(done_), path = request().path] {
    done(error_response_at(path, to_api_error(internal_error("a request was dropped without an answer"))));
  });
}

void LocalExchange::post(std::function<void()> work) {
  queue_->post([self = shared_from_this(), work = std::move(work)] { work(); });
}

void LocalExchange::respond(HttpResponse response) {
  post([this, response = std::move(response)]() mutable { finish(std::move(response)); });
}

void LocalExchange::finish(HttpResponse response) {
  if (over_) return;
  over_ = true;
  if (const auto source = std::exchange(response.source, nullptr)) {
    response.body.reserve(source->size());
    for (auto piece = source->next(); piece.ok() && !piece->empty(); piece = source->next()) response.body += *piece;
  }
  const auto release_disconnect = std::exchange(on_disconnect_, {});
  const auto release_abort = std::exchange(on_abort_, {});
  if (request().span != nullptr) request().span->end(response.status);
  if (const Done done = std::exchange(done_, {})) done(std::move(response));
}

void LocalExchange::cancel() {
  post([this] {
    if (over_) return;
    const auto on_disconnect = std::exchange(on_disconnect_, {});
    finish({499, "application/json", {}, ""});
    if (on_disconnect) on_disconnect();
  });
}

void LocalExchange::abort() {
  post([this] {
    if (const auto on_abort = std::exchange(on_abort_, {})) on_abort();
  });
}

void LocalExchange::watch(std::function<void()> on_disconnect, std::function<void()> on_abort) {
  if (over_) return;
  on_disconnect_ = std::move(on_disconnect);
  on_abort_ = std::move(on_abort);
}

void LocalExchange::begin_stream(const HttpResponse& head) {
  stream_ = {head.status, head.content_type, head.headers, ""};
}

void LocalExchange::write(std::string_view data, std::function<void()> done) {
  if (over_) return;
  stream_.body += data;
  post(std::move(done));
}

void LocalExchange::end_stream() {
  finish(std::move(stream_));
}

LocalExchanges::LocalExchanges(std::function<void(HttpRequest&)> begin)
    : begin_(std::move(begin)), thread_([queue = queue_] { queue->run(); }) {}

LocalExchanges::~LocalExchanges() {
  stop();
}

std::shared_ptr<LocalExchange> LocalExchanges::make(HttpRequest request, LocalExchange::Done done) {
  if (begin_) begin_(request);
  auto exchange = std::make_shared<LocalExchange>(std::move(request), queue_, std::move(done));
  const std::lock_guard lock(mutex_);
  std::erase_if(exchanges_, [](const auto& weak) { return weak.expired(); });
  exchanges_.push_back(exchange);
  return exchange;
}

std::vector<std::shared_ptr<LocalExchange>> LocalExchanges::open() {
  std::vector<std::shared_ptr<LocalExchange>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : exchanges_) {
    if (auto exchange = weak.lock()) out.push_back(std::move(exchange));
  }
  return out;
}

void LocalExchanges::abort_all() {
  for (const auto& exchange : open()) exchange->abort();
}

void LocalExchanges::stop() {
  if (!thread_.joinable()) return;
  for (const auto& exchange : open()) exchange->cancel();  // breaks the ring of exchange and generation
  queue_->post([queue = queue_.get()] { queue->close(); });
  thread_.join();
}

}  // namespace quire::server
