// The entry "pre_tokenizer" of a tokenizer.json.
#include <array>

#include "text/tokenizer_json.h"
#include "text/unicode.h"

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
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object* object, node.object("pattern"));
  (void)object;
  const JsonNode pattern_node(node.value().as_object().at("pattern"), node.path_of("pattern"));
  std::unique_ptr<Pattern> pattern;
  if (pattern_node.find("Regex") != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view regex, pattern_node.string("Regex"));
    auto compiled = make_regex_pattern(regex);
    if (!compiled.ok()) return compiled.status().with_prefix(pattern_node.path_of("Regex") + ": ");
    pattern = std::move(compiled).value();
  } else {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view literal, pattern_node.string("String"));
    pattern = make_literal_pattern(std::string(literal));
  }
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
  if (entry.byte_level) {
    return unimplemented("{}: the pre-tokenizer {} after ByteLevel is not supported yet", node.path(), type);
  }
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
  return unimplemented("{}: the pre-tokenizer {} is not supported yet", node.path(), type);
}

}  // namespace

Result<PreTokenizerEntry> read_pre_tokenizer(const JsonNode& root) {
  PreTokenizerEntry entry;
  if (const boost::json::value* value = root.find("pre_tokenizer")) {
    QUIRE_RETURN_IF_ERROR(add_step(JsonNode(*value, "pre_tokenizer"), entry));
  }
  return entry;
}

}  // namespace quire::text
