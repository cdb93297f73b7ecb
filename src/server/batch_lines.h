// Batches' lines: what is asked, what is answered, and the files they stand in. A line of the input is
// {"custom_id", "method": "POST", "url": "/v1/...", "body"}; one of the output {"id", "custom_id", "response",
// "error"}.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "server/http.h"

namespace quire::server {

struct BatchLine {
  std::string custom_id;
  std::string url;
  std::string body;       // JSON
  int32_t num_loads = 0;  // that failed, of its model or adapter
};

// endpoint: the only url that lines may have; empty: any that a batch may ask. Errors: invalid_argument with param().
Result<BatchLine> parse_batch_line(std::string_view line, std::string_view endpoint);
bool is_batch_endpoint(std::string_view url);
// Those that a batch may ask, for a message.
std::string batch_endpoints();

// A line of the output, with its newline.
std::string answered_line(const BatchLine& line, std::string_view request_id, const HttpResponse& response);
std::string failed_line(const BatchLine& line, std::string_view code, std::string_view message);

struct LineError {
  int64_t line = 0;  // from 1; 0: of the file
  std::string message;
  std::string param;
};

struct Validation {
  int64_t total = 0;
  std::vector<LineError> errors;  // the first few
};

// Whether answers may be written behind what is in the file, if there is one: its first line is an answer, or what is
// left of one. Errors: invalid_argument.
Status check_answer_file(const std::string& path);

// Whether every line can be asked, with a custom_id of its own. Empty lines are none.
// Errors: not_found when the file cannot be read.
Result<Validation> validate_lines(const std::string& path, std::string_view endpoint, int64_t max_lines);

// Lines one after the other.
class LineReader {
 public:
  // REQUIRES: validate_lines() found no error.
  LineReader(const std::string& path, std::string endpoint) : file_(path), endpoint_(std::move(endpoint)) {}
  std::optional<BatchLine> next();

 private:
  std::ifstream file_;
  std::string endpoint_;
};

// A file of answers, a whole line at a time: what was half written when the process died is cut off, and done again.
class AnswerFile {
 public:
  AnswerFile() = default;
  ~AnswerFile();
  AnswerFile(AnswerFile&& other) noexcept;
  AnswerFile& operator=(AnswerFile&& other) noexcept;

  // Made where it is not there. answered: gets the custom_ids of the lines that are. Errors: unavailable.
  static Result<AnswerFile> open(const std::string& path, std::unordered_set<std::string>& answered);
  // Errors: unavailable (the disk is full).
  Status append(std::string_view line);
  // To the disk.
  Status sync();
  int64_t num_lines() const { return num_lines_; }
  int64_t bytes() const { return bytes_; }

 private:
  int fd_ = -1;
  int64_t num_lines_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace quire::server
