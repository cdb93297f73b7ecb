// What a server sends for one request: an event stream of OpenAI's chunks, read as it arrives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

// Why a request failed.
enum class FailureKind : uint8_t {
  kConnection,  // no connection, or it broke before an answer began
  kStatus,      // a status other than 200, or an error event within the answer
  kCut,         // the answer broke off
  kMalformed,   // not HTTP, not an event stream, not JSON, no token
  kTimeout,     // nothing came for too long
};
inline constexpr int kNumFailureKinds = 5;
std::string_view to_string(FailureKind kind);

struct RequestOutcome {
  bool success = false;
  FailureKind failure = FailureKind::kConnection;  // when not
  std::string error;                               // says more, when not
  int64_t prompt_len = 0;                          // tokens
  int64_t output_tokens = 0;
  double start = 0;          // seconds from the run's start
  double ttft = 0;           // seconds from there to the first token
  double latency = 0;        // to the last one
  std::vector<double> itls;  // seconds between events that bring tokens (one or several each)
  std::string text;
  bool retried = false;  // a connection kept from an earlier request was found closed; sent again on a new one
};

// Splits a stream of bytes, in any portions, into the data of its server-sent events.
class EventSplitter {
 public:
  // Calls take(std::string_view data) for each event that has become whole.
  template <typename Take>
  void feed(std::string_view bytes, const Take& take) {
    for (const char c : bytes) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      if (line_.empty()) {
        if (has_data_) take(std::string_view(data_));
        data_.clear();
        has_data_ = false;
      } else {
        end_line();
      }
      line_.clear();
    }
  }

 private:
  void end_line();

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

// The answer to one request. A token counts from the first event that brings text, or the end; a chat's opening event
// with a role alone does not.
class AnswerReader {
 public:
  explicit AnswerReader(bool is_chat) : is_chat_(is_chat) {}

  // Bytes of the body that came `now` seconds after the request was sent.
  void feed(std::string_view bytes, double now);
  // Something has gone wrong already; what follows is of no interest.
  bool failed() const { return failure_.has_value(); }

  // Fills in success or failure, the times, the text, and output_tokens where the server told (0 otherwise).
  // `broken`: the connection ended before the answer did.
  void finish(bool broken, RequestOutcome& outcome) const;

 private:
  void event(std::string_view data, double now);
  void token(std::string_view text, double now);
  void fail(FailureKind kind, std::string error);

  struct Failure {
    FailureKind kind;
    std::string error;
  };
  bool is_chat_;
  EventSplitter splitter_;
  std::string begin_;  // of the body, for messages
  std::optional<Failure> failure_;
  bool any_event_ = false;
  bool any_token_ = false;
  bool ended_ = false;  // a finish_reason, or [DONE]
  double first_ = 0;
  double last_ = 0;
  std::vector<double> itls_;
  std::string text_;
  int64_t completion_tokens_ = 0;
};

}  // namespace quire::bench
