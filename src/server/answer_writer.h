// How an answer is written: as the events of a stream or as one body, in the form of the endpoint that was asked.
// Chats, completions and whatever else generates differ in their writer alone.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "engine/output.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/http.h"

namespace quire::server {

// Used by one thread at a time, for one answer. Either the functions of a stream are called, or whole(); in both cases
// nothing follows the call that ends the answer.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // A stream's events go to the end of `events`, complete ("data: ...\n\n").
  virtual void begin(const Answer& answer, std::string& events) = 0;
  // A piece of a choice, its last one with delta.finish; what tells the client nothing may write nothing.
  virtual void piece(const Answer& answer, const ChoiceState& choice, const engine::OutputDelta& delta,
                     std::string& events) = 0;
  virtual void end(const Answer& answer, std::string& events) = 0;
  // Instead of end(): the request failed in the middle.
  virtual void fail(const ApiError& error, std::string& events) = 0;

  // All of the answer: a delta a choice, in the order of the choices.
  virtual HttpResponse whole(const Answer& answer, std::span<const engine::OutputDelta> choices) = 0;
  // Instead of whole().
  virtual HttpResponse failure(const ApiError& error) { return error_response(error); }

  // Whether a prompt's first choice must have spoken before its others may.
  virtual bool prompt_comes_first() const { return false; }
};

// "data: ...\n\n"
inline std::string sse_event(const boost::json::object& payload) {
  return "data: " + boost::json::serialize(payload) + "\n\n";
}
// With a name: "event: ...\ndata: ...\n\n"
inline std::string sse_event(std::string_view name, const boost::json::object& payload) {
  return "event: " + std::string(name) + "\n" + sse_event(payload);
}
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

}  // namespace quire::server
