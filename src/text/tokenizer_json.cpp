#include "text/tokenizer_json.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_pipeline.h"

namespace quire::text {
namespace json = boost::json;
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxJsonDepth = 32;

Result<TokenTable> read_vocab(const JsonNode& model) {
  QUIRE_ASSIGN_OR_RETURN(const json::object* vocab, model.object("vocab"));
  TokenTable tokens;
  tokens.reserve(vocab->size());
  for (const auto& [token, id] : *vocab) {
    if (!id.is_int64()) {
      return invalid_argument("model.vocab: the id of {:?} is {}; expected 0 to {}", std::string_view(token),
                              json::serialize(id), kMaxTokenId);
    }
    QUIRE_RETURN_IF_ERROR(tokens.add(token, id.get_int64(), "model.vocab"));
  }
  return tokens;
}

// Both spellings: "a b" and ["a", "b"].
Result<MergeList> read_merges(const JsonNode& model) {
  QUIRE_ASSIGN_OR_RETURN(const json::array* array, model.array("merges"));
  MergeList merges;
  merges.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const json::value& entry = (*array)[i];
    if (const json::array* pair = entry.if_array()) {
      if (pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string()) {
        return invalid_argument("model.merges[{}]: expected two strings", i);
      }
      merges.emplace_back((*pair)[0].get_string(), (*pair)[1].get_string());
      continue;
    }
    if (!entry.is_string()) {
      return invalid_argument("model.merges[{}]: expected \"left right\" or [\"left\", \"right\"], found {}", i,
                              kind_name(entry));
    }
    const std::string_view text = entry.get_string();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return invalid_argument("model.merges[{}]: {:?} is not two tokens with one space between", i, text);
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

Result<std::vector<AddedToken>> read_added_tokens(const JsonNode& root, TokenTable& tokens) {
  std::vector<AddedToken> added;
  if (root.find("added_tokens") == nullptr) return added;
  QUIRE_ASSIGN_OR_RETURN(const json::array* array, root.array("added_tokens"));
  for (size_t i = 0; i < array->size(); ++i) {
    const JsonNode node((*array)[i], fmt::format("added_tokens[{}]", i));
    AddedToken token;
    QUIRE_ASSIGN_OR_RETURN(const std::string_view content, node.string("content"));
    QUIRE_ASSIGN_OR_RETURN(const int64_t id, node.integer("id"));
    QUIRE_ASSIGN_OR_RETURN(token.special, node.boolean("special", false));
    QUIRE_ASSIGN_OR_RETURN(token.normalized, node.boolean("normalized", !token.special));
    QUIRE_ASSIGN_OR_RETURN(token.single_word, node.boolean("single_word", false));
    QUIRE_ASSIGN_OR_RETURN(token.lstrip, node.boolean("lstrip", false));
    QUIRE_ASSIGN_OR_RETURN(token.rstrip, node.boolean("rstrip", false));
    // Usually the vocabulary has the token too, under the same id.
    if (tokens.find(content) != id) QUIRE_RETURN_IF_ERROR(tokens.add(content, id, node.path()));
    token.content = content;
    token.id = static_cast<TokenId>(id);
    added.push_back(std::move(token));
  }
  return added;
}

Status refuse_unless_empty(const JsonNode& node, std::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view value, node.string_or(key, ""));
  if (value.empty()) return {};
  return unimplemented("{} {:?} is not supported yet", node.path_of(key), value);
}

Result<BpeOptions> read_bpe_options(const JsonNode& model, const TokenTable& tokens) {
  BpeOptions options;
  QUIRE_RETURN_IF_ERROR(refuse_unless_empty(model, "continuing_subword_prefix"));
  QUIRE_RETURN_IF_ERROR(refuse_unless_empty(model, "end_of_word_suffix"));
  if (const json::value* dropout = model.find("dropout")) {
    const bool is_zero = dropout->is_number() && dropout->to_number<double>() == 0.0;
    if (!is_zero)
      return unimplemented("model.dropout {} is not supported; expected null or 0", json::serialize(*dropout));
  }
  QUIRE_ASSIGN_OR_RETURN(options.ignore_merges, model.boolean("ignore_merges", false));
  QUIRE_ASSIGN_OR_RETURN(options.fuse_unk, model.boolean("fuse_unk", false));
  QUIRE_ASSIGN_OR_RETURN(options.byte_fallback, model.boolean("byte_fallback", false));
  QUIRE_ASSIGN_OR_RETURN(const std::string_view unk, model.string_or("unk_token", ""));
  if (!unk.empty()) {
    options.unk = tokens.find(unk);
    if (!options.unk) return invalid_argument("model.unk_token {:?} is not in the vocabulary", unk);
  }
  return options;
}

Result<TokenSpelling> read_decoder(const JsonNode& root) {
  std::vector<std::string> types;
  const json::value* value = root.find("decoder");
  if (value == nullptr) return unimplemented("decoder: null (tokens joined by spaces) is not supported yet");
  const JsonNode decoder(*value, "decoder");
  const auto add = [&types](const JsonNode& node) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
    if (type != "ByteLevel" && type != "Fuse") {
      return unimplemented("{}: the decoder {} is not supported yet", node.path(), type);
    }
    types.emplace_back(type);
    return {};
  };
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, decoder.string("type"));
  if (type != "Sequence") {
    QUIRE_RETURN_IF_ERROR(add(decoder));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const json::array* steps, decoder.array("decoders"));
    for (size_t i = 0; i < steps->size(); ++i) {
      QUIRE_RETURN_IF_ERROR(add(JsonNode((*steps)[i], fmt::format("decoder.decoders[{}]", i))));
    }
  }
  // Fuse joins the tokens; ByteLevel after it would ask whether all of the text is of the alphabet, not each token.
  const auto byte_levels = std::count(types.begin(), types.end(), "ByteLevel");
  if (byte_levels == 0) return TokenSpelling::kVerbatim;
  if (byte_levels > 1 || types[0] != "ByteLevel") {
    return unimplemented("decoder: only one ByteLevel, before any Fuse, is supported yet; found {}",
                         fmt::join(types, ", "));
  }
  return TokenSpelling::kByteAlphabet;
}

Status add_normalizer(const JsonNode& node, Normalizer& normalizer) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, node.string("type"));
  if (type == "Sequence") {
    QUIRE_ASSIGN_OR_RETURN(const json::array* steps, node.array("normalizers"));
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string path = fmt::format("{}[{}]", node.path_of("normalizers"), i);
      QUIRE_RETURN_IF_ERROR(add_normalizer(JsonNode((*steps)[i], path), normalizer));
    }
    return {};
  }
  const auto form = normalization_form(type);
  if (!form) return unimplemented("{}: the normalizer {} is not supported yet", node.path(), type);
  normalizer.add(*form);
  return {};
}

Result<std::unique_ptr<TokenModel>> read_bpe(const JsonNode& model, const TokenizerParts& parts, bool byte_level) {
  QUIRE_ASSIGN_OR_RETURN(const MergeList merges, read_merges(model));
  QUIRE_ASSIGN_OR_RETURN(BpeOptions options, read_bpe_options(model, parts.tokens));
  options.byte_level = byte_level;
  std::vector<bool> hidden(static_cast<size_t>(parts.tokens.size()), false);
  for (const AddedToken& token : parts.added) {
    if (token.special) hidden[static_cast<size_t>(token.id)] = true;
  }
  auto made = BpeModel::make(parts.tokens, merges, hidden, options);
  if (!made.ok()) return made.status().with_prefix("model.");
  return made;
}

Result<std::unique_ptr<Tokenizer>> read_tokenizer(const json::value& document) {
  const JsonNode root(document, "");
  if (!document.is_object()) return invalid_argument("expected a JSON object, found {}", kind_name(document));
  QUIRE_RETURN_IF_ERROR(root.object("model").status());
  const JsonNode model(*root.find("model"), "model");
  // Old files name no type; only BPE has merges.
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type,
                         model.string_or("type", model.find("merges") ? "BPE" : "unnamed"));
  if (type != "BPE") return unimplemented("model: the model {} is not supported yet", type);

  TokenizerParts parts;
  if (const json::value* normalizer = root.find("normalizer")) {
    QUIRE_RETURN_IF_ERROR(add_normalizer(JsonNode(*normalizer, "normalizer"), parts.normalizer));
  }
  QUIRE_ASSIGN_OR_RETURN(PreTokenizerEntry pre_tokenizer, read_pre_tokenizer(root));
  parts.pre_tokenizer = std::move(pre_tokenizer.pre_tokenizer);
  QUIRE_ASSIGN_OR_RETURN(parts.spelling, read_decoder(root));
  QUIRE_ASSIGN_OR_RETURN(parts.tokens, read_vocab(model));
  QUIRE_ASSIGN_OR_RETURN(parts.added, read_added_tokens(root, parts.tokens));
  QUIRE_RETURN_IF_ERROR(parts.tokens.check_density("model.vocab and added_tokens"));
  QUIRE_ASSIGN_OR_RETURN(parts.model, read_bpe(model, parts, pre_tokenizer.byte_level));
  QUIRE_ASSIGN_OR_RETURN(PostProcessorEntry around, read_post_processor(root, parts.tokens));
  parts.prefix = std::move(around.prefix);
  parts.suffix = std::move(around.suffix);
  parts.kind = pre_tokenizer.byte_level ? "bpe (byte level)" : "bpe";
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts)));
}

}  // namespace

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

const json::value* JsonNode::find(std::string_view key) const {
  const json::object* object = value_->if_object();
  if (object == nullptr) return nullptr;
  const json::value* found = object->if_contains(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

namespace {

Status wrong_kind(const JsonNode& node, std::string_view key, std::string_view expected) {
  const json::value* found = node.find(key);
  if (found == nullptr) return invalid_argument("{}: expected {}, found nothing", node.path_of(key), expected);
  return invalid_argument("{}: expected {}, found {}", node.path_of(key), expected, kind_name(*found));
}

}  // namespace

Result<std::string_view> JsonNode::string(std::string_view key) const {
  const json::value* found = find(key);
  if (found == nullptr || !found->is_string()) return wrong_kind(*this, key, "a string");
  return std::string_view(found->get_string());
}

Result<const json::array*> JsonNode::array(std::string_view key) const {
  const json::value* found = find(key);
  if (found == nullptr || !found->is_array()) return wrong_kind(*this, key, "an array");
  return &found->get_array();
}

Result<const json::object*> JsonNode::object(std::string_view key) const {
  const json::value* found = find(key);
  if (found == nullptr || !found->is_object()) return wrong_kind(*this, key, "an object");
  return &found->get_object();
}

Result<bool> JsonNode::boolean(std::string_view key, bool absent) const {
  const json::value* found = find(key);
  if (found == nullptr) return absent;
  if (!found->is_bool()) return wrong_kind(*this, key, "a boolean");
  return found->get_bool();
}

Result<std::string_view> JsonNode::string_or(std::string_view key, std::string_view absent) const {
  if (find(key) == nullptr) return absent;
  return string(key);
}

Result<int64_t> JsonNode::integer(std::string_view key) const {
  const json::value* found = find(key);
  if (found == nullptr || !found->is_int64() || found->get_int64() < 0) {
    if (found != nullptr && found->is_number()) {
      return invalid_argument("{}: {} is no id; expected 0 to {}", path_of(key), json::serialize(*found), kMaxTokenId);
    }
    return wrong_kind(*this, key, "an integer that is not negative");
  }
  return found->get_int64();
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json) {
  if (tokenizer_json.size() > kMaxFileBytes) {
    return invalid_argument("tokenizer.json: {} bytes; at most {} are read", tokenizer_json.size(), kMaxFileBytes);
  }
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::monotonic_resource memory;
  json::parser parser(json::storage_ptr(), options);
  parser.reset(&memory);
  boost::system::error_code error;
  const size_t used = parser.write(tokenizer_json, error);
  if (error) return invalid_argument("tokenizer.json: not valid JSON at byte {}: {}", used, error.message());
  auto made = read_tokenizer(parser.release());
  if (!made.ok()) return made.status().with_prefix("tokenizer.json: ");
  return made;
}

}  // namespace quire::text
