#include "bench/answer_reader.h"

#include <array>

#include <boost/json.hpp>

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr size_t kMostOfMessage = 200;

const json::value* member(const json::value& value, std::string_view name) {
  const json::object* object = value.if_object();
  return object != nullptr ? object->if_contains(name) : nullptr;
}

std::string_view text_member(const json::value& value, std::string_view name) {
  const json::value* found = member(value, name);
  const json::string* text = found != nullptr ? found->if_string() : nullptr;
  return text != nullptr ? std::string_view(*text) : std::string_view();
}

// Of a chat's delta: the answer, or the thinking before it.
std::string_view delta_text(const json::value& delta) {
  for (const std::string_view name : {"content", "reasoning_content", "reasoning"}) {
    if (const std::string_view text = text_member(delta, name); !text.empty()) return text;
  }
  return {};
}

}  // namespace

std::string_view to_string(FailureKind kind) {
  switch (kind) {
    case FailureKind::kConnection:
      return "connection";
    case FailureKind::kStatus:
      return "status";
    case FailureKind::kCut:
      return "cut";
    case FailureKind::kMalformed:
      return "malformed";
    case FailureKind::kTimeout:
      return "timeout";
  }
  return "";
}

void EventSplitter::end_line() {
  constexpr std::string_view kData = "data:";
  std::string_view line = line_;
  if (!line.starts_with(kData)) return;  // a comment, or a field that OpenAI's streams do not use
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

void AnswerReader::fail(FailureKind kind, std::string error) {
  if (!failure_) failure_ = Failure{kind, std::move(error)};
}

void AnswerReader::feed(std::string_view bytes, double now) {
  if (begin_.size() < kMostOfMessage) begin_ += bytes.substr(0, kMostOfMessage - begin_.size());
  splitter_.feed(bytes, [&](std::string_view data) {
    if (!failed()) event(data, now);
  });
}

void AnswerReader::event(std::string_view data, double now) {
  any_event_ = true;
  if (data == "[DONE]") {
    ended_ = true;
    return;
  }
  std::array<unsigned char, 4096> memory;
  json::monotonic_resource resource(memory.data(), memory.size());
  json::error_code error;
  const json::value chunk = json::parse(data, error, &resource);
  if (error || !chunk.is_object()) {
    return fail(FailureKind::kMalformed, "an event is no JSON object: " + std::string(data.substr(0, kMostOfMessage)));
  }
  if (const json::value* problem = member(chunk, "error"); problem != nullptr && !problem->is_null()) {
    return fail(FailureKind::kStatus,
                "an error within the answer: " + json::serialize(*problem).substr(0, kMostOfMessage));
  }
  if (const json::value* usage = member(chunk, "usage"); usage != nullptr) {
    const json::value* tokens = member(*usage, "completion_tokens");
    if (tokens != nullptr && tokens->is_int64()) completion_tokens_ = tokens->get_int64();
  }
  const json::value* choices = member(chunk, "choices");
  const json::array* list = choices != nullptr ? choices->if_array() : nullptr;
  if (list == nullptr || list->empty()) return;
  const json::value& choice = list->front();
  const bool is_end = !text_member(choice, "finish_reason").empty();
  const json::value* delta = member(choice, "delta");
  const std::string_view text =
      is_chat_ ? (delta != nullptr ? delta_text(*delta) : std::string_view()) : text_member(choice, "text");
  // No text: half a character of a completion, a chat's opening, or an end that follows the last token.
  if (!text.empty() || (is_end ? !any_token_ : !is_chat_)) token(text, now);
  if (is_end) ended_ = true;
}

void AnswerReader::token(std::string_view text, double now) {
  if (any_token_) {
    itls_.push_back(now - last_);
  } else {
    first_ = now;
  }
  any_token_ = true;
  last_ = now;
  text_ += text;
}

void AnswerReader::finish(bool broken, RequestOutcome& outcome) const {
  outcome.output_tokens = completion_tokens_;
  outcome.ttft = first_;
  outcome.latency = last_;
  outcome.itls = itls_;
  outcome.text = text_;
  const auto failed_by = [&](FailureKind kind, std::string error) {
    outcome.success = false;
    outcome.failure = kind;
    outcome.error = std::move(error);
  };
  if (failure_) return failed_by(failure_->kind, failure_->error);
  if (!ended_ && (broken || any_token_)) {
    return failed_by(FailureKind::kCut,
                     "the answer broke off after " + std::to_string(itls_.size() + any_token_) + " events with tokens");
  }
  if (!any_event_) return failed_by(FailureKind::kMalformed, "no event stream: " + begin_);
  if (!any_token_) return failed_by(FailureKind::kMalformed, "an answer without a token");
  outcome.success = true;
}

}  // namespace quire::bench
