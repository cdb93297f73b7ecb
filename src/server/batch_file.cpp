#include "server/batch_file.h"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>

#include "base/named_file.h"
#include "server/batch_endpoints.h"
#include "server/batch_lines.h"
#include "server/batch_worker.h"
#include "server/local_exchange.h"
#include "server/models.h"

namespace quire::server {

namespace {

Result<int64_t> count_lines(const std::string& path) {
  const auto validated = validate_lines(path, "", std::numeric_limits<int64_t>::max());
  if (!validated.ok()) return validated.status().with_prefix(path + ": ");
  const Validation& found = *validated;
  if (found.errors.empty()) return found.total;
  const LineError& first = found.errors.front();
  return invalid_argument("{}{}: {}{}", path, first.line == 0 ? "" : fmt::format(":{}", first.line), first.message,
                          found.errors.size() > 1 ? fmt::format(" (and {} more)", found.errors.size() - 1) : "");
}

}  // namespace

Status check_batch_files(const std::string& input, const std::string& output) {
  QUIRE_RETURN_IF_ERROR(check_file(input, FileUse::kReadAgain));
  QUIRE_RETURN_IF_ERROR(check_file(output, FileUse::kWrite));
  QUIRE_RETURN_IF_ERROR(count_lines(input).status());
  std::error_code none;  // of one that is not there yet
  if (std::filesystem::equivalent(input, output, none)) {
    return invalid_argument("{} is the file of requests: choose another one for the answers", output);
  }
  return check_answer_file(output);
}

Result<BatchFileResult> run_batch_file(const ServerConfig& config, engine::Engine& engine,
                                       const BatchFileOptions& options,
                                       const std::function<void(const BatchFileResult&)>& progress) {
  BatchFileResult result;
  QUIRE_RETURN_IF_ERROR(check_batch_files(options.input, options.output));
  QUIRE_ASSIGN_OR_RETURN(result.total, count_lines(options.input));
  auto job = std::make_shared<LineJob>(options.input, "");
  QUIRE_ASSIGN_OR_RETURN(job->output, AnswerFile::open(options.output, job->answered));
  result.skipped = job->output.num_lines();

  Tenants tenants({}, engine.metrics());  // everybody
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Models> models,
                         Models::start(config, tenants, engine.metrics(), {resident_model(config, engine)}));
  LocalExchanges exchanges;
  const OpenAiApi openai(*models);
  ResponsesApi responses(config, *models, exchanges);
  const MessagesApi messages(*models);
  const PoolingApi pooling(*models);
  std::mutex mutex;
  std::condition_variable bell;
  bool over = false;
  job->over = [&](LineJob&) {
    const std::lock_guard lock(mutex);
    over = true;
    bell.notify_all();
  };
  BatchWorker worker(
      exchanges, BatchEndpoints(openai, responses, messages, pooling), [] { return false; }, options.concurrency);
  worker.add(job);
  std::unique_lock lock(mutex);
  while (!over && engine.healthy()) {
    bell.wait_for(lock, std::chrono::milliseconds(200), [&] { return over; });
    result.completed = job->completed;
    result.failed = job->failed;
    progress(result);
  }
  // A short file may be over before the first look at it.
  result.completed = job->completed;
  result.failed = job->failed;
  lock.unlock();
  worker.stop();
  if (!over) return unavailable("the engine has failed; see the log above");
  QUIRE_RETURN_IF_ERROR(job->error);
  QUIRE_RETURN_IF_ERROR(job->output.sync());
  return result;
}

}  // namespace quire::server
