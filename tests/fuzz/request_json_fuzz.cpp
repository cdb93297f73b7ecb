// The bodies of requests: JSON to typed requests, which are checked, or an error that a client can be told. One byte
// steers which endpoint's.
#include <cmath>

#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/openai_schema.h"
#include "server/pooling_schema.h"
#include "tests/fuzz/fuzz.h"
#include "types/sampling_params.h"

namespace {

namespace json = boost::json;
using namespace quire;

// Equal but for the last digits of numbers, where Boost.JSON 1.81 does not round exactly.
bool same(const json::value& a, const json::value& b) {
  if (a.is_double() && b.is_number()) {
    const double x = a.get_double();
    const double y = b.to_number<double>();
    return x == y || std::abs(x - y) <= 1e-14 * std::abs(x);
  }
  if (a.kind() != b.kind()) return false;
  if (const auto* array = a.if_array()) {
    const json::array& other = b.get_array();
    return array->size() == other.size() && std::equal(array->begin(), array->end(), other.begin(), same);
  }
  if (const auto* object = a.if_object()) {
    const json::object& other = b.get_object();
    return object->size() == other.size() && std::all_of(object->begin(), object->end(), [&](const auto& member) {
             const json::value* found = other.if_contains(member.key());
             return found != nullptr && same(member.value(), *found);
           });
  }
  return a == b;
}

void check_refused(const Status& status) {
  fuzz::check_error(status);
  const server::ApiError error = server::to_api_error(status);
  QUIRE_CHECK_MSG(error.status >= 400 && error.status < 500 + (error.status == 501 ? 2 : 0), error.message);
  const server::HttpResponse response = server::error_response(error);
  boost::system::error_code failed;
  (void)json::parse(response.body, failed);
  QUIRE_CHECK_MSG(!failed, response.body);
}

void check_options(const server::GenerationOptions& options) {
  const Status status = validate(options.params, {.vocab_size = 1000});
  if (!status.ok()) check_refused(status);
}

template <typename Request>
bool refused(const Result<Request>& request) {
  if (!request.ok()) check_refused(request.status());
  return !request.ok();
}

// The same of vectors and scores.
bool parse_pooling_as(uint8_t endpoint, const json::object& body) {
  switch (endpoint % 3) {
    case 0: {
      const auto request = server::parse_embeddings_request(body);
      if (refused(request)) return false;
      QUIRE_CHECK(!request->inputs.empty());
      return true;
    }
    case 1: {
      const auto request = server::parse_score_request(body);
      if (refused(request)) return false;
      QUIRE_CHECK(!request->second.empty());
      QUIRE_CHECK(request->first.size() == 1 || request->first.size() == request->second.size());
      return true;
    }
    default: {
      const auto request = server::parse_rerank_request(body);
      if (refused(request)) return false;
      QUIRE_CHECK(!request->documents.empty() && request->top_n <= request->documents.size());
      return true;
    }
  }
}

// Whether it is taken.
bool parse_as(uint8_t endpoint, const json::object& body) {
  if (endpoint >= 128) return parse_pooling_as(endpoint, body);
  constexpr server::SchemaLimits kLimits{.max_model_len = 4096, .trust_request_chat_template = true};
  switch (endpoint % 4) {
    case 0: {
      const auto request = server::parse_chat_request(body, kLimits);
      if (refused(request)) return false;
      check_options(request->options);
      return true;
    }
    case 1: {
      const auto request = server::parse_completion_request(body, kLimits);
      if (refused(request)) return false;
      QUIRE_CHECK(!request->prompts.empty());
      check_options(request->options);
      return true;
    }
    case 2:
      return !refused(server::parse_tokenize_request(body, kLimits));
    default: {
      const auto request = server::parse_detokenize_request(body, kLimits);
      if (refused(request)) return false;
      for (const TokenId id : request->tokens) QUIRE_CHECK(id >= 0);
      return true;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const uint8_t endpoint = input.byte();
  const auto body = server::parse_json_object(input.rest());
  if (refused(body)) return 0;
  const auto again = server::parse_json_object(json::serialize(*body));
  QUIRE_CHECK(again.ok() && same(*body, *again));
  QUIRE_CHECK(parse_as(endpoint, *body) == parse_as(endpoint, *again));
  return 0;
}
