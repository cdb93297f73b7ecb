// Requests that this program makes of itself: answers in the background and batches' lines take the same way as those
// of connections, to a client that is a function.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http.h"

namespace quire::server {

// Work that one thread does in order.
class TaskQueue {
 public:
  void post(std::function<void()> work);  // dropped after close()
  void run();                             // until closed
  void close();                           // drops what waits
 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<std::function<void()>> tasks_;
  bool closed_ = false;
};

class LocalExchange final : public Exchange, public std::enable_shared_from_this<LocalExchange> {
 public:
  using Done = std::function<void(HttpResponse)>;

  LocalExchange(HttpRequest request, std::shared_ptr<TaskQueue> queue, Done done);
  ~LocalExchange() override;

  void cancel();  // the client goes away: the answer is 499. Any thread
  void abort();   // the server is stopping: the answer is ended in good order. Any thread

  void respond(HttpResponse response) override;
  void post(std::function<void()> work) override;
  void watch(std::function<void()> on_disconnect, std::function<void()> on_abort) override;
  bool connected() const override { return !over_; }
  // A stream is gathered and given at its end.
  void begin_stream(const HttpResponse& head) override;
  void write(std::string_view data, std::function<void()> done) override;
  void end_stream() override;

 private:
  void finish(HttpResponse response);

  const std::shared_ptr<TaskQueue> queue_;
  // On the queue's thread.
  Done done_;
  HttpResponse stream_;
  std::function<void()> on_disconnect_;
  std::function<void()> on_abort_;
  bool over_ = false;
};

// The thread of all local exchanges.
class LocalExchanges {
 public:
  // begin: sees every request before it is given to its exchange.
  explicit LocalExchanges(std::function<void(HttpRequest&)> begin = {});
  ~LocalExchanges();  // stop()
  LocalExchanges(const LocalExchanges&) = delete;
  LocalExchanges& operator=(const LocalExchanges&) = delete;

  // `done` is called on the thread, once, unless stop() comes first: with the answer, 499 after a cancel, 500 where the
  // exchange was dropped.
  std::shared_ptr<LocalExchange> make(HttpRequest request, LocalExchange::Done done);
  // Any thread.
  void post(std::function<void()> work) { queue_->post(std::move(work)); }
  void abort_all();
  // Ends the work of all and joins. Idempotent.
  void stop();

 private:
  std::vector<std::shared_ptr<LocalExchange>> open();

  const std::function<void(HttpRequest&)> begin_;
  const std::shared_ptr<TaskQueue> queue_ = std::make_shared<TaskQueue>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<LocalExchange>> exchanges_;
  std::thread thread_;
};

}  // namespace quire::server
