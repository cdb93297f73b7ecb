#include "grammar/check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/parse_json.h"
#include "text/utf8.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

Status check_size(std::string_view what, size_t bytes, size_t most) {
  if (bytes <= most) return {};
  return invalid_argument("the {} has {} bytes; at most {} are taken", what, bytes, most);
}

Result<json::value> parse(std::string_view what, std::string_view text, const GrammarLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_size(what, text.size(), limits.max_bytes));
  boost::system::error_code error;
  json::value value = parse_json(text, error, {.max_depth = static_cast<size_t>(limits.max_depth)});
  if (error)
    return invalid_argument("the {} is no JSON of at most {} levels: {}", what, limits.max_depth, error.message());
  return value;
}

// Reads {n}, {n,}, {n,m} or {,m} at `at`, which is behind the brace. Returns the largest count, or -1 where it is no
// such thing; `at` is then as it was.
int64_t read_count(std::string_view text, size_t& at, int64_t most) {
  size_t i = at;
  int64_t largest = -1;
  int64_t number = -1;
  for (; i < text.size() && text[i] != '}'; ++i) {
    const char c = text[i];
    if (c >= '0' && c <= '9') {
      number = std::min((number < 0 ? 0 : number) * 10 + (c - '0'), most + 1);
      largest = std::max(largest, number);
    } else if (c == ',') {
      number = -1;
    } else if (c != ' ') {
      return -1;
    }
  }
  if (i >= text.size() || largest < 0) return -1;
  at = i + 1;
  return largest;
}

// How often the parts of an expression or grammar can be copied: each group's largest product of counts inside it.
class RepetitionCheck {
 public:
  RepetitionCheck(std::string_view what, const GrammarLimits& limits) : what_(what), limits_(limits) {}

  Status open() {
    if (static_cast<int64_t>(groups_.size()) > limits_.max_depth) {
      return invalid_argument("the {} has groups more than {} deep", what_, limits_.max_depth);
    }
    groups_.push_back(1);
    last_ = 1;
    return {};
  }

  Status close() {
    if (groups_.size() < 2) return invalid_argument("the {} closes a group that was not opened", what_);
    last_ = groups_.back();
    groups_.pop_back();
    groups_.back() = std::max(groups_.back(), last_);
    return {};
  }

  void item() { last_ = 1; }

  // Of what was last: a group or an item.
  Status repeat(int64_t count) {
    if (count > limits_.max_count) {
      return invalid_argument("the {} repeats a part up to {} times or more; at most {} are taken", what_,
                              limits_.max_count, limits_.max_count);
    }
    last_ *= std::max<int64_t>(count, 1);
    // A single item that is repeated costs little, however often; what multiplies is repetition within repetition.
    if (last_ > limits_.max_repetition && last_ != count) {
      return invalid_argument("the {} has counts within counts that multiply to {}; at most {} are taken", what_, last_,
                              limits_.max_repetition);
    }
    groups_.back() = std::max(groups_.back(), last_);
    return {};
  }

  Status finish() const {
    if (groups_.size() == 1) return {};
    return invalid_argument("the {} opens a group that is not closed", what_);
  }

 private:
  std::string_view what_;
  const GrammarLimits& limits_;
  std::vector<int64_t> groups_{1};
  int64_t last_ = 1;
};

// A class of characters from behind its '[': returns where it ends.
size_t behind_class(std::string_view text, size_t at) {
  if (at < text.size() && text[at] == '^') ++at;
  for (; at < text.size() && text[at] != ']'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

Status check_nested(const json::value& value, const GrammarLimits& limits);

Status check_tag_member(std::string_view name, const json::value& value, const GrammarLimits& limits) {
  if (name == "json_schema" || name == "schema") return check_json_schema(value, limits);
  if (name == "pattern" && value.is_string()) return check_regex(value.get_string(), limits);
  if (name == "grammar" && value.is_string()) return check_ebnf(value.get_string(), limits);
  return check_nested(value, limits);
}

// The structured outputs within a structural tag.
Status check_nested(const json::value& value, const GrammarLimits& limits) {
  if (const auto* object = value.if_object()) {
    for (const auto& [name, member] : *object) QUIRE_RETURN_IF_ERROR(check_tag_member(name, member, limits));
  } else if (const auto* array = value.if_array()) {
    if (static_cast<int64_t>(array->size()) > limits.max_alternatives) {
      return invalid_argument("the structural tag has a list of {} members; at most {} are taken", array->size(),
                              limits.max_alternatives);
    }
    for (const json::value& member : *array) QUIRE_RETURN_IF_ERROR(check_nested(member, limits));
  } else if (const auto* number = value.if_int64()) {
    if (*number > limits.max_count * 1000) return invalid_argument("the structural tag counts to {}", *number);
  }
  return {};
}

Status check_choices(const std::vector<std::string>& choices, const GrammarLimits& limits) {
  if (choices.empty()) return invalid_argument("the list of choices is empty");
  if (static_cast<int64_t>(choices.size()) > limits.max_alternatives) {
    return invalid_argument("there are {} choices; at most {} are taken", choices.size(), limits.max_alternatives);
  }
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) return invalid_argument("a choice is empty");
    bytes += choice.size();
  }
  return check_size("list of choices", bytes, limits.max_bytes);
}

}  // namespace

Status check_regex(std::string_view pattern, const GrammarLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_size("regular expression", pattern.size(), limits.max_regex_bytes));
  if (pattern.empty()) return invalid_argument("the regular expression is empty");
  RepetitionCheck repetitions("regular expression", limits);
  bool quantified = false;  // what stands before was repeated already
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i++];
    int64_t count = 0;
    switch (c) {
      case '\\':
        if (i == pattern.size()) return invalid_argument("the regular expression ends with a backslash");
        if (pattern[i] >= '1' && pattern[i] <= '9') {
          return invalid_argument("the regular expression refers back (\\{}), which is not supported", pattern[i]);
        }
        ++i;
        repetitions.item();
        break;
      case '[':
        i = behind_class(pattern, i);
        if (pattern[i - 1] != ']') return invalid_argument("the regular expression has a '[' without its ']'");
        repetitions.item();
        break;
      case '(':
        if (pattern.substr(i).starts_with("?=") || pattern.substr(i).starts_with("?!") ||
            pattern.substr(i).starts_with("?<=") || pattern.substr(i).starts_with("?<!")) {
          return invalid_argument("the regular expression looks ahead or behind ({}), which is not supported",
                                  pattern.substr(i - 1, 3));
        }
        if (pattern.substr(i).starts_with("?:")) i += 2;
        QUIRE_RETURN_IF_ERROR(repetitions.open());
        quantified = true;  // nothing to repeat yet
        continue;
      case ')':
        QUIRE_RETURN_IF_ERROR(repetitions.close());
        break;
      case '*':
      case '+':
      case '?':
        if (quantified && c != '?') {
          return invalid_argument("the regular expression has a '{}' with nothing to repeat before it", c);
        }
        QUIRE_RETURN_IF_ERROR(repetitions.repeat(1));
        quantified = true;
        continue;
      case '{':
        count = read_count(pattern, i, limits.max_count);
        if (count < 0)
          return invalid_argument("the regular expression has a '{{' that is no count; write \\{{ for the character");
        QUIRE_RETURN_IF_ERROR(repetitions.repeat(count));
        quantified = true;
        continue;
      default:
        repetitions.item();
        break;
    }
    quantified = c == '|';
  }
  return repetitions.finish();
}

Status check_ebnf(std::string_view grammar, const GrammarLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_size("grammar", grammar.size(), limits.max_bytes));
  RepetitionCheck repetitions("grammar", limits);
  for (size_t i = 0; i < grammar.size();) {
    const char c = grammar[i++];
    if (c == '#') {
      i = std::min(grammar.find('\n', i), grammar.size());
    } else if (c == '"') {
      while (i < grammar.size() && grammar[i] != '"') i += grammar[i] == '\\' ? 2 : 1;
      if (i >= grammar.size()) return invalid_argument("the grammar has a '\"' without its other one");
      ++i;
      repetitions.item();
    } else if (c == '[') {
      i = behind_class(grammar, i);
      repetitions.item();
    } else if (c == '(') {
      QUIRE_RETURN_IF_ERROR(repetitions.open());
    } else if (c == ')') {
      QUIRE_RETURN_IF_ERROR(repetitions.close());
    } else if (c == '{') {
      const int64_t count = read_count(grammar, i, limits.max_count);
      if (count >= 0) QUIRE_RETURN_IF_ERROR(repetitions.repeat(count));
    }
  }
  return repetitions.finish();
}

Status check_structured_output(const StructuredOutput& output, const GrammarLimits& limits) {
  if (!text::is_valid_utf8(output.text)) return invalid_argument("it is no UTF-8");
  switch (output.kind) {
    case StructuredOutput::Kind::kJsonObject:
      return {};
    case StructuredOutput::Kind::kJsonSchema: {
      QUIRE_ASSIGN_OR_RETURN(const json::value schema, parse("schema", output.text, limits));
      return check_json_schema(schema, limits);
    }
    case StructuredOutput::Kind::kRegex:
      return check_regex(output.text, limits);
    case StructuredOutput::Kind::kChoice:
      return check_choices(output.choices, limits);
    case StructuredOutput::Kind::kGrammar:
      return check_ebnf(output.text, limits);
    case StructuredOutput::Kind::kStructuralTag: {
      QUIRE_ASSIGN_OR_RETURN(const json::value tag, parse("structural tag", output.text, limits));
      return check_nested(tag, limits);
    }
  }
  return internal_error("unknown kind of structured output");
}

}  // namespace quire::grammar
