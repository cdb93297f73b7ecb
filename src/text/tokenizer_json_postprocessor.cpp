// The entry "post_processor" of a tokenizer.json.
#include "text/tokenizer_json.h"

namespace quire::text {
namespace json = boost::json;
namespace {

// Appends the ids of special_tokens.<name>.ids.
Status append_special(const JsonNode& processor, std::string_view name, const TokenTable& tokens,
                      std::vector<TokenId>& ids) {
  const std::string path = processor.path_of("special_tokens");
  QUIRE_ASSIGN_OR_RETURN(const json::object* specials, processor.object("special_tokens"));
  const json::value* special = specials->if_contains(name);
  if (special == nullptr) return invalid_argument("{}: {:?} is missing", path, name);
  const JsonNode node(*special, fmt::format("{}[{:?}]", path, name));
  QUIRE_ASSIGN_OR_RETURN(const json::array* list, node.array("ids"));
  for (const json::value& id : *list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= tokens.size()) {
      return invalid_argument("{}.ids: {} is no id of the vocabulary", node.path(), json::serialize(id));
    }
    ids.push_back(static_cast<TokenId>(id.get_int64()));
  }
  return {};
}

// The entry "pair", where there is one: two Sequences, A first. Anything else is left out: nobody may ever give two
// texts.
Status add_pair_template(const JsonNode& node, const TokenTable& tokens, PostProcessorEntry& entry) {
  const json::value* value = node.find("pair");
  if (value == nullptr || !value->is_array()) return {};
  SpecialFrame frame;
  size_t sequences = 0;
  const json::array& parts = value->get_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonNode part(parts[i], fmt::format("{}[{}]", node.path_of("pair"), i));
    if (const json::value* sequence = part.find("Sequence")) {
      const JsonNode named(*sequence, part.path_of("Sequence"));
      const auto id = named.string("id");
      if (!id.ok() || sequences == 2 || *id != (sequences == 0 ? "A" : "B")) return {};
      ++sequences;
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const json::object* special, part.object("SpecialToken"));
    (void)special;
    const JsonNode token(*part.find("SpecialToken"), part.path_of("SpecialToken"));
    QUIRE_ASSIGN_OR_RETURN(const std::string_view name, token.string("id"));
    std::vector<TokenId>& ids = sequences == 0 ? frame.before : sequences == 1 ? frame.between : frame.after;
    QUIRE_RETURN_IF_ERROR(append_special(node, name, tokens, ids));
  }
  if (sequences == 2) entry.pair = std::move(frame);
  return {};
}

// The entry "single": special tokens around one Sequence.
Status add_template(const JsonNode& node, const TokenTable& tokens, PostProcessorEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const json::array* single, node.array("single"));
  std::vector<TokenId> before, after;
  bool sequence_seen = false;
  for (size_t i = 0; i < single->size(); ++i) {
    const JsonNode part((*single)[i], fmt::format("{}[{}]", node.path_of("single"), i));
    if (part.find("Sequence") != nullptr) {
      if (sequence_seen) return unimplemented("{}: a second Sequence is not supported", part.path());
      sequence_seen = true;
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const json::object* special, part.object("SpecialToken"));
    (void)special;
    const JsonNode token(*part.find("SpecialToken"), part.path_of("SpecialToken"));
    QUIRE_ASSIGN_OR_RETURN(const std::string_view name, token.string("id"));
    QUIRE_RETURN_IF_ERROR(append_special(node, name, tokens, sequence_seen ? after : before));
  }
  if (!sequence_seen) return invalid_argument("{}: no Sequence", node.path_of("single"));
  QUIRE_RETURN_IF_ERROR(add_pair_template(node, tokens, entry));
  // A later processor wraps what an earlier one made.
  entry.prefix.insert(entry.prefix.begin(), before.begin(), before.end());
  entry.suffix.insert(entry.suffix.end(), after.begin(), after.end());
  return {};
}

// ["</s>", 2]
Result<TokenId> named_token(const JsonNode& node, std::string_view key, const TokenTable& tokens) {
  QUIRE_ASSIGN_OR_RETURN(const json::array* pair, node.array(key));
  const bool is_pair = pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_int64();
  const int64_t id = is_pair ? (*pair)[1].get_int64() : -1;
  if (id < 0 || id >= tokens.size()) {
    return invalid_argument("{}: expected a token and its id, found {}", node.path_of(key), json::serialize(*pair));
  }
  return static_cast<TokenId>(id);
}

// BERT and RoBERTa: classifier token, text, separator; between two texts so many separators.
Status add_classifier(const JsonNode& node, const TokenTable& tokens, size_t between, PostProcessorEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const TokenId classifier, named_token(node, "cls", tokens));
  QUIRE_ASSIGN_OR_RETURN(const TokenId separator, named_token(node, "sep", tokens));
  entry.prefix.insert(entry.prefix.begin(), classifier);
  entry.suffix.push_back(separator);
  entry.pair = {.before = {classifier}, .between = std::vector<TokenId>(between, separator), .after = {separator}};
  return {};
}

Status add_processor(const JsonNode& node, const TokenTable& tokens, PostProcessorEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
  if (type == "Sequence") {
    QUIRE_ASSIGN_OR_RETURN(const json::array* processors, node.array("processors"));
    for (size_t i = 0; i < processors->size(); ++i) {
      const std::string path = fmt::format("{}[{}]", node.path_of("processors"), i);
      QUIRE_RETURN_IF_ERROR(add_processor(JsonNode((*processors)[i], path), tokens, entry));
    }
    return {};
  }
  if (type == "ByteLevel") return {};  // moves offsets, which nobody asks for here
  if (type == "TemplateProcessing") return add_template(node, tokens, entry);
  if (type == "BertProcessing") return add_classifier(node, tokens, 1, entry);
  if (type == "RobertaProcessing") return add_classifier(node, tokens, 2, entry);
  return unimplemented("{}: the post-processor {} is not supported yet", node.path(), type);
}

}  // namespace

Result<PostProcessorEntry> read_post_processor(const JsonNode& root, const TokenTable& tokens) {
  PostProcessorEntry entry;
  if (const json::value* value = root.find("post_processor")) {
    QUIRE_RETURN_IF_ERROR(add_processor(JsonNode(*value, "post_processor"), tokens, entry));
  }
  return entry;
}

}  // namespace quire::text
