// A line of a batch's file: what it asks, or an error by its field. Three bytes go before it: which endpoint the batch
// is of, and what of the line is grown how far.
#include "server/api_error.h"
#include "server/batch_lines.h"
#include "server/json_fields.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  constexpr const char* kEndpoints[] = {"", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"};
  fuzz::Input input(data, size);
  const std::string_view endpoint = kEndpoints[input.byte() % std::size(kEndpoints)];
  const uint8_t where = input.byte();
  const uint8_t grow = input.byte();
  const std::string text = fuzz::grown(input.rest(), where, grow);
  const fuzz::TimePerByte limit(text.size());
  const auto line = server::parse_batch_line(text, endpoint);
  if (!line.ok()) {
    fuzz::check_error(line.status());
    return 0;
  }
  QUIRE_CHECK(!line->custom_id.empty() && line->custom_id.size() <= 512);
  QUIRE_CHECK(server::is_batch_endpoint(line->url) && (endpoint.empty() || line->url == endpoint));
  QUIRE_CHECK(server::parse_json_object(line->body).ok());
  // What is written of it is one line of JSON, whatever it holds.
  for (const std::string& written : {server::answered_line(*line, "req-1", {.status = 200, .body = "{}"}),
                                     server::failed_line(*line, "code", "why")}) {
    QUIRE_CHECK(written.find('\n') == written.size() - 1);
    QUIRE_CHECK(server::parse_json_object(written).ok());
  }
  return 0;
}
