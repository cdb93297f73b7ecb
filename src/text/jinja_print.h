// Values as text: Python's repr and JSON, one walk with two styles.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::text::jinja {

struct PrintStyle {
  std::string_view none, yes, no;
  std::string (*real)(double);
  std::string (*quoted)(std::string_view);
  // JSON: tuples are lists, keys are text, and what has no form in JSON fails. Else: Python's repr.
  bool is_json = false;
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
  std::optional<std::string> indent;  // a line for each element, with this before it for each level
  bool sort_keys = false;
};

PrintStyle python_style();
// json.dumps with its defaults but for ensure_ascii.
PrintStyle json_style(bool ensure_ascii);

}  // namespace quire::text::jinja
