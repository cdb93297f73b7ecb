#include "server/batch_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/random_id.h"
#include "server/refused_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr std::string_view kEndpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                           "/v1/messages",         "/v1/embeddings",  "/v1/score",
                                           "/v1/rerank",           "/classify",       "/pooling"};
constexpr size_t kMostCustomId = 512;
constexpr size_t kMostErrors = 20;

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

Status file_error(const char* what) {
  return unavailable("A batch's file cannot be {}: {}.", what, std::strerror(errno));
}

std::string quoted_json(std::string_view text) {
  return json::serialize(json::string(text));
}

}  // namespace

bool is_batch_endpoint(std::string_view url) {
  return std::find(std::begin(kEndpoints), std::end(kEndpoints), url) != std::end(kEndpoints);
}

std::string batch_endpoints() {
  return fmt::format("{}", fmt::join(kEndpoints, ", "));
}

Result<BatchLine> parse_batch_line(std::string_view text, std::string_view endpoint) {
  QUIRE_ASSIGN_OR_RETURN(const json::object object, parse_json_object(text));
  JsonFields fields(object);
  BatchLine line{.custom_id = fields.string("custom_id").value_or(""), .url = fields.string("url").value_or("")};
  if (line.custom_id.empty() || line.custom_id.size() > kMostCustomId) {
    fields.fail("custom_id", fmt::format("custom_id must be a string of 1 to {} bytes.", kMostCustomId));
  }
  if (fields.string("method").value_or("POST") != "POST") fields.fail("method", "method must be POST.");
  if (!endpoint.empty() && line.url != endpoint) {
    fields.fail("url", fmt::format("url must be the batch's endpoint, {}, got {}.", endpoint, in_quotes(line.url, 80)));
  } else if (!is_batch_endpoint(line.url)) {
    fields.fail("url", fmt::format("url must be one of {}, got {}.", batch_endpoints(), in_quotes(line.url, 80)));
  }
  const json::object* body = fields.object("body");
  if (body == nullptr) fields.fail("body", "body must be an object: the request.");
  QUIRE_RETURN_IF_ERROR(fields.status());
  for (const char* name : {"stream", "background"}) {
    const json::value* value = body->if_contains(name);
    if (value == nullptr || is_falsy(*value)) continue;
    return invalid_argument("{} is not for a batch's lines: nobody waits for them.", name)
        .with_param(std::string("body.") + name);
  }
  line.body = json::serialize(*body);
  return line;
}

std::string answered_line(const BatchLine& line, std::string_view request_id, const HttpResponse& response) {
  return fmt::format(
      R"({{"id":"{}","custom_id":{},"response":{{"status_code":{},"request_id":{},"body":{}}},"error":null}})"
      "\n",
      random_id("batch_req_"), quoted_json(line.custom_id), response.status, quoted_json(request_id),
      response.body.empty() ? "null" : response.body);
}

std::string failed_line(const BatchLine& line, std::string_view code, std::string_view message) {
  return fmt::format(R"({{"id":"{}","custom_id":{},"response":null,"error":{{"code":{},"message":{}}}}})"
                     "\n",
                     random_id("batch_req_"), quoted_json(line.custom_id), quoted_json(code), quoted_json(message));
}

Result<Validation> validate_lines(const std::string& path, std::string_view endpoint, int64_t max_lines) {
  std::ifstream file(path);
  if (!file) return not_found("The batch's input file cannot be read.");
  Validation found;
  std::unordered_set<std::string> ids;
  int64_t number = 0;
  for (std::string text; std::getline(file, text) && found.errors.size() < kMostErrors;) {
    ++number;
    if (is_blank(text)) continue;
    ++found.total;
    const auto line = parse_batch_line(text, endpoint);
    if (!line.ok()) {
      found.errors.push_back({number, line.status().message(), line.status().param()});
    } else if (!ids.insert(line->custom_id).second) {
      found.errors.push_back(
          {number, fmt::format("custom_id {} is there twice.", in_quotes(line->custom_id, 80)), "custom_id"});
    } else if (found.total > max_lines) {
      found.errors.push_back({number, fmt::format("The file has more than {} requests.", max_lines), ""});
      break;
    }
  }
  if (found.total == 0) found.errors.push_back({0, "The file has no requests.", ""});
  return found;
}

std::optional<BatchLine> LineReader::next() {
  for (std::string text; std::getline(file_, text);) {
    if (is_blank(text)) continue;
    auto line = parse_batch_line(text, endpoint_);
    if (line.ok()) return std::move(*line);  // else the file is another than the one that was looked at
  }
  return std::nullopt;
}

// ---------------------------------------------------------------------------------------------------------------
// answers

AnswerFile::~AnswerFile() {
  if (fd_ >= 0) ::close(fd_);
}

AnswerFile::AnswerFile(AnswerFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), num_lines_(other.num_lines_), bytes_(other.bytes_) {}

AnswerFile& AnswerFile::operator=(AnswerFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  num_lines_ = other.num_lines_;
  bytes_ = other.bytes_;
  return *this;
}

Result<AnswerFile> AnswerFile::open(const std::string& path, std::unordered_set<std::string>& answered) {
  AnswerFile out;
  out.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (out.fd_ < 0) return file_error("opened");
  std::ifstream file(path, std::ios::binary);
  for (std::string text; std::getline(file, text) && !file.eof();) {  // without its newline a line is not whole
    boost::system::error_code error;
    const json::value line = json::parse(text, error, {}, {.max_depth = kMaxAnswerDepth});
    const json::object* object = error ? nullptr : line.if_object();
    const json::value* id = object == nullptr ? nullptr : object->if_contains("custom_id");
    if (id == nullptr || !id->is_string()) break;
    answered.emplace(std::string_view(id->get_string()));
    ++out.num_lines_;
    out.bytes_ += static_cast<int64_t>(text.size()) + 1;
  }
  if (::ftruncate(out.fd_, out.bytes_) != 0 || ::lseek(out.fd_, out.bytes_, SEEK_SET) < 0) return file_error("cut");
  return out;
}

Status check_answer_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (!file || !std::getline(file, text)) return {};  // there is none, or nothing is in it
  constexpr std::string_view kBegin = R"({"id":")";
  const bool is_part = file.eof() && std::string_view(text).substr(0, kBegin.size()) == kBegin.substr(0, text.size());
  boost::system::error_code error;
  const json::value line = json::parse(text, error, {}, {.max_depth = kMaxAnswerDepth});
  const json::object* object = error ? nullptr : line.if_object();
  const bool is_answer = object != nullptr && object->contains("custom_id") && object->contains("response");
  if (is_part || is_answer) return {};
  return invalid_argument(
      "{} is there and does not begin with an answer to a batch's line: remove it, or choose another file", path);
}

Status AnswerFile::append(std::string_view line) {
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const Status error = file_error("written");
      // Half a line would spoil the next one.
      if (::ftruncate(fd_, bytes_) != 0 || ::lseek(fd_, bytes_, SEEK_SET) < 0) return file_error("cut");
      return error;
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += static_cast<int64_t>(line.size());
  ++num_lines_;
  return {};
}

Status AnswerFile::sync() {
  return ::fsync(fd_) == 0 ? Status() : file_error("written to the disk");
}

}  // namespace quire::server
