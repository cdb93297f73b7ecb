#include "server/pooling_answer.h"

#include <utility>

#include "base/log.h"
#include "server/api_error.h"

namespace quire::server {

PoolingAnswer::PoolingAnswer(std::shared_ptr<Exchange> exchange, engine::Engine& engine, PoolingWork work,
                             std::shared_ptr<Load> load, std::unique_ptr<LoadTicket> ticket,
                             std::shared_ptr<HeldBytes> memory, int retry_after)
    : exchange_(std::move(exchange)),
      engine_(engine),
      work_(std::move(work)),
      load_(std::move(load)),
      ticket_(std::move(ticket)),
      memory_(std::move(memory)),
      retry_after_(retry_after) {}

void PoolingAnswer::start() {
  exchange_->post([self = shared_from_this()] { self->begin(); });
}

void PoolingAnswer::begin() {
  if (!exchange_->connected()) return;
  exchange_->watch([self = shared_from_this()] { self->end(); },
                   [self = shared_from_this()] {
                     if (self->job_ != nullptr) self->fail(unavailable("The server is shutting down."));
                   });
  job_ =
      std::make_unique<engine::PoolingJob>(engine_, std::move(work_.texts), work_.options, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->wake();
      });
  pump();
}

// On the engine's thread: any number of texts before the strand comes to it cost one visit.
void PoolingAnswer::wake() {
  if (woken_.exchange(true)) return;
  exchange_->post([self = shared_from_this()] {
    self->woken_ = false;
    self->pump();
  });
}

void PoolingAnswer::pump() {
  if (job_ == nullptr) return;
  const Result<bool> done = job_->pump();
  if (!done.ok()) return fail(done.status());
  for (engine::PoolingJob::Done& one : job_->take_done()) {
    work_.writer->take(one.text, std::move(one.numbers));
    load_->finished();
  }
  if (!*done) return;
  const int64_t num_tokens = job_->num_tokens();
  const std::unique_ptr<PoolingWriter> writer = std::move(work_.writer);
  const std::shared_ptr<HeldBytes> memory = memory_;
  end();
  exchange_->respond(writer->whole(num_tokens));
}

// What is under way is cancelled with the job.
void PoolingAnswer::end() {
  job_.reset();
  work_.writer.reset();
  ticket_.reset();
  memory_.reset();
}

void PoolingAnswer::fail(const Status& error) {
  const bool tellable = error.code() == StatusCode::kDeadlineExceeded || error.code() == StatusCode::kInvalidArgument ||
                        error.code() == StatusCode::kUnavailable || error.code() == StatusCode::kResourceExhausted;
  if (!tellable) {
    log_request(LogLevel::kError, exchange_->request().id, "the request failed: {}", error.message());
  }
  end();
  answer_error(*exchange_, error, retry_after_);
}

}  // namespace quire::server
