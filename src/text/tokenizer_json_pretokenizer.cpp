// The entry "pre_tokenizer" of a tokenizer.json.
#include <array>

#include "text/tokenizer_json.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

struct NamedBehavior {
  std::string_view name;
  SplitBehavior behavior;
};
constexpr std::array kBehaviors = {NamedBehavior{"Isolated", SplitBehavior::kIsolated},
                                   NamedBehavior{"Removed", SplitBehavior::kRemoved},
                                   NamedBehavior{"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                   NamedBehavior{"MergedWithNext", SplitBehavior::kMergedWithNext},
                                   NamedBehavior{"Contiguous", SplitBehavior::kContiguous}};

Result<SplitBehavior> read_behavior(const JsonNode& node, std::string_view absent) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view name, node.string_or("behavior", absent));
  for (const NamedBehavior& known : kBehaviors) {
    if (known.name == name) return known.behavior;
  }
  return invalid_argument("{}: {:?} is no split behavior", node.path_of("behavior"), name);
}

Status add_split(const JsonNode& node, PreTokenizerEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> pattern, read_pattern(node, "pattern"));
  QUIRE_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(node, "Isolated"));
  QUIRE_ASSIGN_OR_RETURN(const bool invert, node.boolean("invert", false));
  entry.pre_tokenizer.add(make_split_step(std::move(pattern), behavior, invert));
  return {};
}

Status add_byte_level(const JsonNode& node, PreTokenizerEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const bool prefix_space, node.boolean("add_prefix_space", true));
  QUIRE_ASSIGN_OR_RETURN(const bool use_regex, node.boolean("use_regex", true));
  if (prefix_space) entry.pre_tokenizer.add(make_prefix_space_step());
  if (use_regex) {
    entry.pre_tokenizer.add(make_split_step(make_scanner_pattern(kGpt2Regex), SplitBehavior::kIsolated, false));
  }
  entry.byte_level = true;
  return {};
}

Status add_metaspace(const JsonNode& node, PreTokenizerEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(std::string replacement, read_character(node, "replacement"));
  QUIRE_ASSIGN_OR_RETURN(const std::string_view name, node.string_or("prepend_scheme", "always"));
  // The older spelling of "never".
  QUIRE_ASSIGN_OR_RETURN(const bool prefix_space, node.boolean("add_prefix_space", true));
  QUIRE_ASSIGN_OR_RETURN(const bool split, node.boolean("split", true));
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") scheme = PrependScheme::kFirst;
  if (name == "never" || !prefix_space) scheme = PrependScheme::kNever;
  if (name != "always" && name != "first" && name != "never") {
    return invalid_argument("{}: {:?} is none of always, first and never", node.path_of("prepend_scheme"), name);
  }
  entry.pre_tokenizer.add(make_metaspace_step(std::move(replacement), scheme, split));
  return {};
}

Status add_rare_step(const JsonNode& node, std::string_view type, PreTokenizerEntry& entry) {
  if (type == "CharDelimiterSplit") {
    QUIRE_ASSIGN_OR_RETURN(std::string delimiter, read_character(node, "delimiter"));
    entry.pre_tokenizer.add(
        make_split_step(make_literal_pattern(std::move(delimiter)), SplitBehavior::kRemoved, false));
    return {};
  }
  if (type == "FixedLength") {
    int64_t length = 5;
    if (node.find("length") != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(length, node.integer("length"));
    }
    if (length == 0) return invalid_argument("{}: 0; expected at least 1", node.path_of("length"));
    entry.pre_tokenizer.add(make_fixed_length_step(static_cast<size_t>(length)));
    return {};
  }
  if (type == "UnicodeScripts") {
    QUIRE_ASSIGN_OR_RETURN(auto step, make_scripts_step());
    entry.pre_tokenizer.add(std::move(step));
    return {};
  }
  return unimplemented("{}: the pre-tokenizer {} is not supported", node.path(), type);
}

Status add_step(const JsonNode& node, PreTokenizerEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
  if (type == "Sequence") {
    QUIRE_ASSIGN_OR_RETURN(const boost::json::array* steps, node.array("pretokenizers"));
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string path = fmt::format("{}[{}]", node.path_of("pretokenizers"), i);
      QUIRE_RETURN_IF_ERROR(add_step(JsonNode((*steps)[i], path), entry));
    }
    return {};
  }
  // Only behind the last step may the alphabet of bytes be left to the model.
  if (entry.byte_level) entry.pre_tokenizer.add(make_byte_alphabet_step());
  entry.byte_level = false;
  if (type == "ByteLevel") return add_byte_level(node, entry);
  if (type == "Split") return add_split(node, entry);
  if (type == "Digits") {
    QUIRE_ASSIGN_OR_RETURN(const bool individual, node.boolean("individual_digits", false));
    const SplitBehavior behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    entry.pre_tokenizer.add(make_split_step(make_class_pattern(kNumber), behavior, false));
    return {};
  }
  if (type == "Punctuation") {
    QUIRE_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(node, "Isolated"));
    entry.pre_tokenizer.add(make_split_step(make_class_pattern(kPunctuation | kAsciiSymbol), behavior, false));
    return {};
  }
  if (type == "Whitespace") {
    entry.pre_tokenizer.add(make_word_step());
    return {};
  }
  if (type == "WhitespaceSplit") {
    entry.pre_tokenizer.add(make_split_step(make_class_pattern(kSpace), SplitBehavior::kRemoved, false));
    return {};
  }
  if (type == "Metaspace") return add_metaspace(node, entry);
  if (type == "BertPreTokenizer") {
    entry.pre_tokenizer.add(make_split_step(make_class_pattern(kSpace), SplitBehavior::kRemoved, false));
    entry.pre_tokenizer.add(
        make_split_step(make_class_pattern(kPunctuation | kAsciiSymbol), SplitBehavior::kIsolated, false));
    return {};
  }
  return add_rare_step(node, type, entry);
}

}  // namespace

Result<std::unique_ptr<Pattern>> read_pattern(const JsonNode& node, std::string_view key) {
  QUIRE_RETURN_IF_ERROR(node.object(key).status());
  const JsonNode pattern(*node.find(key), node.path_of(key));
  if (pattern.find("Regex") == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view literal, pattern.string("String"));
    return make_literal_pattern(std::string(literal));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string_view regex, pattern.string("Regex"));
  auto compiled = make_regex_pattern(regex);
  if (!compiled.ok()) return compiled.status().with_prefix(pattern.path_of("Regex") + ": ");
  return compiled;
}

Result<std::string> read_character(const JsonNode& node, std::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view text, node.string(key));
  if (text.empty() || decode_code_point(text.data()).length != text.size()) {
    return invalid_argument("{}: {:?} is not one character", node.path_of(key), text);
  }
  return std::string(text);
}

Result<PreTokenizerEntry> read_pre_tokenizer(const JsonNode& root) {
  PreTokenizerEntry entry;
  if (const boost::json::value* value = root.find("pre_tokenizer")) {
    QUIRE_RETURN_IF_ERROR(add_step(JsonNode(*value, "pre_tokenizer"), entry));
  }
  return entry;
}

}  // namespace quire::text
