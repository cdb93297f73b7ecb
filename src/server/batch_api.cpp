#include "server/batch_api.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/log.h"
#include "server/api_error.h"
#include "server/body_source.h"
#include "server/json_fields.h"
#include "server/listing.h"
#include "server/metadata.h"
#include "server/multipart.h"
#include "server/url.h"

namespace quire::server {
namespace json = boost::json;

namespace {

// Names of tenants that stay the same when keys come and go.
std::vector<std::string> owners_of(const ServerConfig& config) {
  if (config.api_keys.empty()) return {""};
  return lasting_names(config.api_keys, "batches");
}

// "24h", "7d" in seconds.
std::optional<int64_t> window_seconds(std::string_view window) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(window.data(), window.data() + window.size(), count);
  constexpr int64_t kMostDays = 365;
  if (error != std::errc() || end + 1 != window.data() + window.size() || count < 1) return std::nullopt;
  const int64_t hours = *end == 'h' ? count : *end == 'd' && count <= kMostDays ? count * 24 : 0;
  if (hours < 1 || hours > kMostDays * 24) return std::nullopt;
  return hours * 3600;
}

}  // namespace

Result<std::unique_ptr<BatchApi>> BatchApi::open(const ServerConfig& config, const Models& models,
                                                 LocalExchanges& exchanges, BatchWorker::Ask ask) {
  QUIRE_ASSIGN_OR_RETURN(auto folder, BatchFolder::open(config.batch_folder, config.max_batch_folder_bytes,
                                                        owners_of(config), config.api_key_weights));
  std::unique_ptr<BatchApi> api(new BatchApi(config, models, exchanges, std::move(ask), std::move(folder)));
  api->batches_.resume();
  return api;
}

BatchApi::BatchApi(const ServerConfig& config, const Models& models, LocalExchanges& exchanges, BatchWorker::Ask ask,
                   std::unique_ptr<BatchFolder> folder)
    : owners_(owners_of(config)),
      folder_(std::move(folder)),
      worker_(
          exchanges, std::move(ask), [&models] { return models.num_waiting() > 0; }, config.batch_concurrency),
      batches_(*folder_, worker_, owners_, config.api_key_weights) {}

const std::string& BatchApi::owner(const Exchange& exchange) const {
  return owners_[static_cast<size_t>(exchange.request().tenant)];
}

void BatchApi::answer(const std::shared_ptr<Exchange>& exchange, const Result<json::object>& result) const {
  if (!result.ok()) return answer_error(*exchange, result.status());
  exchange->respond({200, "application/json", {}, json::serialize(*result)});
}

// ---------------------------------------------------------------------------------------------------------------
// files

Result<json::object> BatchApi::uploaded(Exchange& exchange) {
  const std::string content_type(exchange.request().header("Content-Type"));
  const HeldBytes memory = exchange.take_memory();
  const std::string body = exchange.take_body();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<FormPart> parts, parse_multipart(content_type, body));
  const FormPart* file = nullptr;
  std::string purpose;
  for (const FormPart& part : parts) {
    if (part.name == "file") {
      file = &part;
    } else if (part.name == "purpose") {
      purpose = part.body.substr(0, 64);
    } else {
      return invalid_argument("The form's field {} is not supported; supported: file, purpose.",
                              in_quotes(part.name, 40))
          .with_param(part.name);
    }
  }
  if (file == nullptr) return invalid_argument("The form needs a file.").with_param("file");
  if (purpose != "batch") {
    return invalid_argument("purpose must be \"batch\", got {}: files here are for batches.", in_quotes(purpose, 40))
        .with_param("purpose");
  }
  if (file->body.empty()) return invalid_argument("The file is empty.").with_param("file");
  QUIRE_ASSIGN_OR_RETURN(
      const StoredFile stored,
      folder_->add_file(owner(exchange), file->filename.empty() ? "file" : file->filename, purpose, file->body));
  return stored.object();
}

void BatchApi::upload_file(const std::shared_ptr<Exchange>& exchange) {
  answer(exchange, uploaded(*exchange));
}

void BatchApi::list_files(const std::shared_ptr<Exchange>& exchange) {
  const std::string& query = exchange->request().query;
  const auto purpose = query_value(query, "purpose");
  json::array files;
  for (const StoredFile& file : folder_->files(owner(*exchange))) {
    if (!purpose || file.purpose == *purpose) files.emplace_back(file.object());
  }
  answer(exchange, page_of(std::move(files), query, /*newest_first=*/true));
}

void BatchApi::find_file(const std::shared_ptr<Exchange>& exchange) {
  const auto file = folder_->find_file(exchange->request().argument, owner(*exchange));
  if (!file.ok()) return answer_error(*exchange, file.status());
  answer(exchange, file->object());
}

void BatchApi::file_content(const std::shared_ptr<Exchange>& exchange) {
  const auto file = folder_->find_file(exchange->request().argument, owner(*exchange));
  if (!file.ok()) return answer_error(*exchange, file.status());
  auto content = FileBody::open(folder_->content_path(file->id));
  if (!content.ok()) return answer_error(*exchange, content.status());
  exchange->respond({200, "application/octet-stream", {}, "", std::move(*content)});
}

void BatchApi::remove_file(const std::shared_ptr<Exchange>& exchange) {
  const std::string& id = exchange->request().argument;
  if (folder_->find_file(id, owner(*exchange)).ok() && batches_.reads(id)) {
    return answer_error(
        *exchange, invalid_argument("A batch that is not over reads file {}.", in_quotes(id)).with_param("file_id"));
  }
  if (const Status status = folder_->remove_file(id, owner(*exchange)); !status.ok()) {
    return answer_error(*exchange, status);
  }
  answer(exchange, json::object{{"id", id}, {"object", "file"}, {"deleted", true}});
}

// ---------------------------------------------------------------------------------------------------------------
// batches

Result<json::object> BatchApi::created(Exchange& exchange) {
  const HeldBytes memory = exchange.take_memory();
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange.take_body()));
  JsonFields fields(body);
  const std::string input = fields.string("input_file_id").value_or("");
  const std::string endpoint = fields.string("endpoint").value_or("");
  const std::string window = fields.string("completion_window").value_or("24h");
  json::value metadata = read_metadata(fields);
  if (input.empty()) fields.fail("input_file_id", "input_file_id is required: the id of an uploaded file.");
  if (!is_batch_endpoint(endpoint)) {
    fields.fail("endpoint",
                fmt::format("endpoint must be one of {}, got {}.", batch_endpoints(), in_quotes(endpoint, 80)));
  }
  const auto seconds = window_seconds(window);
  if (!seconds) {
    fields.fail("completion_window", fmt::format("completion_window must be hours or days (\"24h\", \"7d\"), got {}.",
                                                 in_quotes(window, 40)));
  }
  if (fields.any("output_expires_after") != nullptr && !fields.any("output_expires_after")->is_null()) {
    fields.fail("output_expires_after", "output_expires_after is not supported: files stay until they are deleted.");
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  return batches_.create(owner(exchange), input, endpoint, window, *seconds, std::move(metadata));
}

void BatchApi::create_batch(const std::shared_ptr<Exchange>& exchange) {
  answer(exchange, created(*exchange));
}

void BatchApi::list_batches(const std::shared_ptr<Exchange>& exchange) {
  answer(exchange, page_of(batches_.list(owner(*exchange)), exchange->request().query, /*newest_first=*/true));
}

void BatchApi::find_batch(const std::shared_ptr<Exchange>& exchange) {
  answer(exchange, batches_.find(exchange->request().argument, owner(*exchange)));
}

void BatchApi::cancel_batch(const std::shared_ptr<Exchange>& exchange) {
  answer(exchange, batches_.cancel(exchange->request().argument, owner(*exchange)));
}

}  // namespace quire::server
