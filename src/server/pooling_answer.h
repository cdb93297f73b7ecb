// One request for vectors or scores on its way out: takes from the engine what is done, and answers when all is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/pooling.h"
#include "server/http.h"
#include "server/load.h"

namespace quire::server {

// Makes the answer of the numbers, which come in no order.
class PoolingWriter {
 public:
  virtual ~PoolingWriter() = default;
  virtual void take(size_t text, std::vector<float> numbers) = 0;
  // When all were taken; num_tokens: of all texts.
  virtual HttpResponse whole(int64_t num_tokens) = 0;
};

// What its texts are to be answered with.
struct PoolingWork {
  std::vector<engine::PooledText> texts;
  engine::PoolingJobOptions options;
  std::unique_ptr<PoolingWriter> writer;
  int64_t answer_bytes = 0;  // of the numbers and their text, about
};

class PoolingAnswer : public std::enable_shared_from_this<PoolingAnswer> {
 public:
  PoolingAnswer(std::shared_ptr<Exchange> exchange, engine::Engine& engine, PoolingWork work,
                std::shared_ptr<Load> load, std::unique_ptr<LoadTicket> ticket, std::shared_ptr<HeldBytes> memory,
                int retry_after);

  // Any thread; once. From here on the exchange keeps it alive until the answer is out or the client gone.
  void start();

 private:
  void begin();
  void wake();
  void pump();
  void end();
  void fail(const Status& error);

  std::shared_ptr<Exchange> exchange_;
  engine::Engine& engine_;
  PoolingWork work_;
  std::shared_ptr<Load> load_;
  std::unique_ptr<LoadTicket> ticket_;
  std::shared_ptr<HeldBytes> memory_;
  const int retry_after_;
  std::atomic<bool> woken_{false};
  // On the client's strand.
  std::unique_ptr<engine::PoolingJob> job_;  // nullptr: over, or not begun
};

}  // namespace quire::server
