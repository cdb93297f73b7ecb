#include "server/batches.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>

#include "base/log.h"
#include "server/api_error.h"
#include "server/random_id.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr int64_t kMostLines = 50000;
constexpr size_t kMostUnderWay = 64;
constexpr size_t kMostKept = 1000;

int64_t now() {
  return static_cast<int64_t>(std::time(nullptr));
}

std::string text_in(const json::object& object, const char* name) {
  return std::string(std::string_view(object.at(name).as_string()));
}

bool is_over(const json::object& batch) {
  constexpr std::string_view kOver[] = {"failed", "completed", "expired", "cancelled"};
  return std::ranges::find(kOver, std::string_view(batch.at("status").as_string())) != std::end(kOver);
}

}  // namespace

Batches::Batches(BatchFolder& folder, BatchWorker& worker, std::vector<std::string> tenants,
                 std::vector<double> weights)
    : folder_(folder), worker_(worker), tenants_(std::move(tenants)), weights_(std::move(weights)) {}

int32_t Batches::tenant_of(const std::string& owner) const {
  const auto tenant = std::ranges::find(tenants_, owner);
  return tenant == tenants_.end() ? -1 : static_cast<int32_t>(tenant - tenants_.begin());
}

void Batches::save(const Entry& entry) {
  if (const Status status = folder_.save_batch(entry.batch); !status.ok()) log_error("{}", status.message());
}

void Batches::set_status(Entry& entry, std::string_view status, const char* time_field) {
  entry.batch.body["status"] = status;
  entry.batch.body[time_field] = now();
}

json::object Batches::shown(const Entry& entry) {
  json::object body = entry.batch.body;
  if (entry.job != nullptr) {
    json::object& counts = body["request_counts"].get_object();
    counts["completed"] = entry.job->completed.load();
    counts["failed"] = entry.job->failed.load();
  }
  return body;
}

void Batches::fail(Entry& entry, const std::vector<LineError>& errors) {
  json::array data;
  for (const LineError& error : errors) {
    data.push_back({{"code", "invalid_request"},
                    {"line", error.line == 0 ? json::value() : json::value(error.line)},
                    {"message", error.message},
                    {"param", error.param.empty() ? json::value() : json::value(error.param)}});
  }
  entry.batch.body["errors"] = {{"object", "list"}, {"data", std::move(data)}};
  set_status(entry, "failed", "failed_at");
  save(entry);
}

Status Batches::open_answers(Entry& entry, LineJob& job) {
  QUIRE_ASSIGN_OR_RETURN(job.output, AnswerFile::open(folder_.content_path(entry.batch.output_id), job.answered));
  QUIRE_ASSIGN_OR_RETURN(job.errors, AnswerFile::open(folder_.content_path(entry.batch.errors_id), job.answered));
  job.completed = job.output.num_lines();
  job.failed = job.errors->num_lines();
  return {};
}

Result<Validation> Batches::validate(const std::string& input_id, const std::string& endpoint) const {
  return validate_lines(folder_.content_path(input_id), endpoint, kMostLines);
}

// From the beginning, or from where it was when the process ended.
void Batches::begin(Entry& entry, const Result<Validation>& validated) {
  json::object& body = entry.batch.body;
  const std::string input = folder_.content_path(text_in(body, "input_file_id"));
  const std::string endpoint = text_in(body, "endpoint");
  if (body.at("status") == "validating") {
    if (!validated.ok()) return fail(entry, {{0, validated.status().message(), "input_file_id"}});
    body["request_counts"].get_object()["total"] = validated->total;
    if (!validated->errors.empty()) return fail(entry, validated->errors);
    set_status(entry, "in_progress", "in_progress_at");
    save(entry);
  }
  auto job = std::make_shared<LineJob>(input, endpoint);
  if (const Status status = open_answers(entry, *job); !status.ok()) {
    return fail(entry, {{0, status.message(), ""}});
  }
  job->tenant = tenant_of(entry.batch.owner);
  const auto room = std::make_shared<HeldBytes>(folder_.place(entry.batch.owner));
  room->set_anyway(static_cast<size_t>(job->output.bytes() + job->errors->bytes()));
  job->room = [this, room](int64_t bytes) { return room->set(static_cast<size_t>(bytes)) ? Status() : folder_.full(); };
  job->expires = std::chrono::system_clock::from_time_t(body.at("expires_at").to_number<int64_t>());
  job->cancelled = body.at("status") == "cancelling";
  job->over = [this, id = text_in(body, "id")](LineJob& ended) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) over(found->second, ended);
  };
  entry.job = job;
  worker_.add(std::move(job));
}

void Batches::over(Entry& entry, LineJob& job) {
  json::object& body = entry.batch.body;
  entry.batch.body["request_counts"].get_object()["completed"] = job.completed.load();
  entry.batch.body["request_counts"].get_object()["failed"] = job.failed.load();
  entry.job.reset();
  job.room = {};  // from here on they are files like others
  const auto publish = [&](const std::string& id, AnswerFile& answers, const char* field, const char* kind) {
    if (const Status status = answers.sync(); !status.ok()) log_error("{}", status.message());
    if (answers.num_lines() == 0) {
      std::error_code ignored;
      std::filesystem::remove(folder_.content_path(id), ignored);
      return;
    }
    const Status status = folder_.adopt_file({.id = id,
                                              .owner = entry.batch.owner,
                                              .filename = text_in(body, "id") + "_" + kind + ".jsonl",
                                              .purpose = "batch_output",
                                              .bytes = answers.bytes(),
                                              .created_at = now()});
    if (!status.ok()) return log_error("{}", status.message());
    body[field] = id;
  };
  publish(entry.batch.output_id, job.output, "output_file_id", "output");
  publish(entry.batch.errors_id, *job.errors, "error_file_id", "error");
  if (!job.error.ok()) return fail(entry, {{0, job.error.message(), ""}});
  if (job.cancelled) {
    set_status(entry, "cancelled", "cancelled_at");
  } else if (job.expired) {
    set_status(entry, "expired", "expired_at");
  } else {
    body["finalizing_at"] = now();
    set_status(entry, "completed", "completed_at");
  }
  save(entry);
}

void Batches::resume() {
  const std::lock_guard lock(mutex_);
  for (Batch& batch : folder_.load_batches()) {
    const std::string id = text_in(batch.body, "id");
    order_.push_back(id);
    Entry& entry = entries_[id];
    entry.batch = std::move(batch);
    if (is_over(entry.batch.body)) continue;
    log_info("batch {} is gone on with", id);
    const json::object& body = entry.batch.body;
    const bool is_new = body.at("status") == "validating";
    begin(entry, is_new ? validate(text_in(body, "input_file_id"), text_in(body, "endpoint")) : Validation());
  }
}

Status Batches::check_share(const std::string& owner) const {
  size_t all = 0;
  size_t own = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.job == nullptr) continue;
    ++all;
    if (entry.batch.owner == owner) ++own;
  }
  if (all >= kMostUnderWay) return resource_exhausted("{} batches are under way already; try again later.", all);
  const int32_t tenant = tenant_of(owner);
  if (own == 0 || tenant < 0 || weights_.size() < 2) return {};
  const double weight = weights_[static_cast<size_t>(tenant)] / *std::ranges::max_element(weights_);
  if (static_cast<double>(own + 1) <= static_cast<double>(kMostUnderWay - all) * weight) return {};
  return resource_exhausted("{} batches of this API key are under way already; try again later.", own);
}

// Of the owner who has the most.
void Batches::forget_oldest() {
  while (order_.size() > kMostKept) {
    std::map<std::string_view, size_t> counts;  // of those that are over
    for (const auto& [id, entry] : entries_) counts[entry.batch.owner] += is_over(entry.batch.body) ? 1 : 0;
    const std::string owner(
        std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })->first);
    const auto oldest = std::ranges::find_if(order_, [&](const std::string& id) {
      const Batch& batch = entries_.at(id).batch;
      return batch.owner == owner && is_over(batch.body);
    });
    if (oldest == order_.end()) return;
    folder_.forget_batch(*oldest);
    entries_.erase(*oldest);
    order_.erase(oldest);
  }
}

Result<json::object> Batches::create(const std::string& owner, const std::string& input_id, const std::string& endpoint,
                                     const std::string& window, int64_t window_seconds, json::value metadata) {
  auto input = folder_.find_file(input_id, owner);
  if (!input.ok()) return input.status().with_param("input_file_id");
  if (input->purpose != "batch") {
    return invalid_argument("File {} was uploaded with the purpose {}; a batch's is batch.", in_quotes(input_id),
                            in_quotes(input->purpose, 40))
        .with_param("input_file_id");
  }
  {
    const std::lock_guard lock(mutex_);
    QUIRE_RETURN_IF_ERROR(check_share(owner));
  }
  // A large file takes a while, and others are not to wait for it.
  const Result<Validation> found = validate(input_id, endpoint);
  const std::lock_guard lock(mutex_);
  QUIRE_RETURN_IF_ERROR(check_share(owner));
  const std::string id = random_id("batch_");
  Batch batch{.owner = owner, .output_id = random_id("file-"), .errors_id = random_id("file-"), .body = {}};
  batch.body = {{"id", id},
                {"object", "batch"},
                {"endpoint", endpoint},
                {"errors", nullptr},
                {"input_file_id", input_id},
                {"completion_window", window},
                {"status", "validating"},
                {"output_file_id", nullptr},
                {"error_file_id", nullptr},
                {"created_at", now()},
                {"in_progress_at", nullptr},
                {"expires_at", now() + window_seconds},
                {"finalizing_at", nullptr},
                {"completed_at", nullptr},
                {"failed_at", nullptr},
                {"expired_at", nullptr},
                {"cancelling_at", nullptr},
                {"cancelled_at", nullptr},
                {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}},
                {"metadata", std::move(metadata)}};
  QUIRE_RETURN_IF_ERROR(folder_.save_batch(batch));
  order_.push_back(id);
  Entry& entry = entries_[id];
  entry.batch = std::move(batch);
  json::object created = entry.batch.body;
  begin(entry, found);
  forget_oldest();
  return created;
}

Result<const Batches::Entry*> Batches::lookup(std::string_view id, std::string_view owner) const {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.batch.owner != owner) {
    return not_found("There is no batch {}.", in_quotes(id)).with_param("batch_id");
  }
  return &found->second;
}

Result<json::object> Batches::find(std::string_view id, std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Entry* entry, lookup(id, owner));
  return shown(*entry);
}

Result<json::object> Batches::cancel(std::string_view id, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  QUIRE_RETURN_IF_ERROR(lookup(id, owner).status());
  Entry& entry = entries_.find(id)->second;
  if (entry.job == nullptr) {
    return invalid_argument("Batch {} is over: its status is {}.", in_quotes(id), text_in(entry.batch.body, "status"))
        .with_param("batch_id");
  }
  if (entry.batch.body.at("status") != "cancelling") {
    set_status(entry, "cancelling", "cancelling_at");
    save(entry);
    worker_.cancel(entry.job);
  }
  return shown(entry);
}

json::array Batches::list(std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  json::array out;
  for (const std::string& id : order_) {
    const Entry& entry = entries_.at(id);
    if (entry.batch.owner == owner) out.emplace_back(shown(entry));
  }
  return out;
}

bool Batches::reads(std::string_view file_id) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const auto& item) {
    return item.second.job != nullptr && item.second.batch.body.at("input_file_id").as_string() == file_id;
  });
}

}  // namespace quire::server
