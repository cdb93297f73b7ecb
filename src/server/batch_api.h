// OpenAI's /v1/files and /v1/batches over a folder. Without --batch-folder the paths do not exist.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/batches.h"
#include "server/http.h"
#include "server/models.h"

namespace quire::server {

class BatchApi {
 public:
  // Goes on with unfinished batches. ask: gives a line to its route; all and what `ask` refers to must outlive
  // this. Errors: unavailable (the folder).
  static Result<std::unique_ptr<BatchApi>> open(const ServerConfig& config, const Models& models,
                                                LocalExchanges& exchanges, BatchWorker::Ask ask);
  // Lets go of what is asked; batches are gone on with when the folder is opened again. Idempotent.
  void stop() { worker_.stop(); }

  // Each answers the exchange. Any thread.
  void upload_file(const std::shared_ptr<Exchange>& exchange);
  void list_files(const std::shared_ptr<Exchange>& exchange);
  void find_file(const std::shared_ptr<Exchange>& exchange);
  void file_content(const std::shared_ptr<Exchange>& exchange);
  void remove_file(const std::shared_ptr<Exchange>& exchange);
  void create_batch(const std::shared_ptr<Exchange>& exchange);
  void list_batches(const std::shared_ptr<Exchange>& exchange);
  void find_batch(const std::shared_ptr<Exchange>& exchange);
  void cancel_batch(const std::shared_ptr<Exchange>& exchange);

 private:
  BatchApi(const ServerConfig& config, const Models& models, LocalExchanges& exchanges, BatchWorker::Ask ask,
           std::unique_ptr<BatchFolder> folder);
  const std::string& owner(const Exchange& exchange) const;
  Result<boost::json::object> uploaded(Exchange& exchange);
  Result<boost::json::object> created(Exchange& exchange);
  void answer(const std::shared_ptr<Exchange>& exchange, const Result<boost::json::object>& result) const;

  const std::vector<std::string> owners_;  // by tenant
  const std::unique_ptr<BatchFolder> folder_;
  BatchWorker worker_;
  Batches batches_;
};

}  // namespace quire::server
