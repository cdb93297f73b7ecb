// A chat template and, behind a NUL, its variables as JSON. What is rendered is the same twice, within the limits, and
// none of a user's text is trusted.
#include <boost/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "text/chat_template.h"

namespace {

namespace json = boost::json;

constexpr std::string_view kMark = "~users own~";
constexpr std::string_view kMostOfMark = "users own";

// Every string of a user says whose it is.
void mark(json::value& value) {
  if (auto* string = value.if_string()) {
    string->append(kMark);
  } else if (auto* array = value.if_array()) {
    for (json::value& item : *array) mark(item);
  } else if (auto* object = value.if_object()) {
    for (auto& member : *object) mark(member.value());
  }
}

json::object variables_of(std::string_view text) {
  json::parse_options options;
  options.max_depth = 64;
  boost::system::error_code error;
  json::value parsed = json::parse(text, error, {}, options);
  if (error || !parsed.is_object()) parsed = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  mark(parsed);
  return std::move(parsed.as_object());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const std::string_view source = input.until(std::string_view("\0", 1));
  constexpr text::TemplateLimits kLimits{
      .max_steps = 100'000, .max_output_bytes = 4 << 20, .max_time = std::chrono::milliseconds(200)};
  const auto parsed = text::ChatTemplate::parse(source, kLimits, [] { return std::tm{.tm_mday = 1, .tm_year = 126}; });
  if (!parsed.ok()) {
    fuzz::check_error(parsed.status());
    return 0;
  }
  const json::object variables = variables_of(input.rest());
  const json::object trusted = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_generation_prompt", true}};
  const auto rendered = parsed->render(variables, trusted);
  if (!rendered.ok()) {
    fuzz::check_error(rendered.status());
    return 0;
  }
  // Else the template's own text may have the mark, made of several pieces too.
  const bool marked = source.find(kMostOfMark) == std::string_view::npos;
  int64_t bytes = 0;
  for (size_t i = 0; i < rendered->size(); ++i) {
    const text::TextPiece& piece = (*rendered)[i];
    bytes += static_cast<int64_t>(piece.text.size());
    QUIRE_CHECK(i == 0 || (*rendered)[i - 1].trusted != piece.trusted);
    QUIRE_CHECK_MSG(!marked || !piece.trusted || piece.text.find(kMark) == std::string::npos, piece.text);
  }
  QUIRE_CHECK(bytes <= kLimits.max_output_bytes);
  const auto again = parsed->render(variables, trusted);
  if (again.ok()) {
    QUIRE_CHECK(text::concatenate(*again) == text::concatenate(*rendered));
  } else {
    QUIRE_CHECK_MSG(again.status().code() == StatusCode::kResourceExhausted, again.status().message());  // of time
  }
  return 0;
}
