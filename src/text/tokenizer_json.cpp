#include "text/tokenizer_json.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include "text/tokenizer.h"
#include "text/tokenizer_pipeline.h"

namespace quire::text {
namespace json = boost::json;
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr size_t kMaxJsonDepth = 32;

Result<std::vector<AddedToken>> read_added_tokens(const JsonNode& root, TokenTable& tokens) {
  std::vector<AddedToken> added;
  if (root.find("added_tokens") == nullptr) return added;
  QUIRE_ASSIGN_OR_RETURN(const json::array* array, root.array("added_tokens"));
  for (size_t i = 0; i < array->size(); ++i) {
    const JsonNode node((*array)[i], fmt::format("added_tokens[{}]", i));
    QUIRE_ASSIGN_OR_RETURN(AddedToken token, read_added_token(node));
    QUIRE_ASSIGN_OR_RETURN(const int64_t id, node.integer("id"));
    // Usually the vocabulary has the token too, under the same id.
    token.in_model = tokens.find(token.content) == id;
    if (!token.in_model) QUIRE_RETURN_IF_ERROR(tokens.add(token.content, id, node.path()));
    token.id = static_cast<TokenId>(id);
    added.push_back(std::move(token));
  }
  return added;
}

// tokenizer_config.json's "added_tokens_decoder" has tokens by id, usually those that stand in tokenizer.json too; what
// is there alone is added, as transformers does.
Status add_configured_tokens(const JsonNode& config, TokenTable& tokens, std::vector<AddedToken>& added) {
  if (config.find("added_tokens_decoder") == nullptr) return {};
  QUIRE_ASSIGN_OR_RETURN(const json::object* entries, config.object("added_tokens_decoder"));
  std::unordered_set<std::string> known;
  for (const AddedToken& token : added) known.insert(token.content);
  for (const auto& [key, value] : *entries) {
    const JsonNode node(value, fmt::format("added_tokens_decoder[{:?}]", std::string_view(key)));
    QUIRE_ASSIGN_OR_RETURN(AddedToken token, read_added_token(node));
    if (!known.insert(token.content).second) continue;
    const std::optional<TokenId> own = tokens.find(token.content);
    token.in_model = own.has_value();
    // Its number there is the next one, or says nothing.
    token.id = own ? *own : static_cast<TokenId>(tokens.size());
    if (!own) QUIRE_RETURN_IF_ERROR(tokens.add(token.content, token.id, node.path()));
    added.push_back(std::move(token));
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> read_tokenizer(const json::value& document, const JsonNode& config) {
  const JsonNode root(document, "");
  if (!document.is_object()) return invalid_argument("expected a JSON object, found {}", kind_name(document));
  QUIRE_RETURN_IF_ERROR(root.object("model").status());
  const JsonNode model(*root.find("model"), "model");
  QUIRE_ASSIGN_OR_RETURN(const ModelKind kind, read_model_kind(model));

  TokenizerParts parts;
  QUIRE_RETURN_IF_ERROR(read_normalizer(root, parts.normalizer));
  QUIRE_ASSIGN_OR_RETURN(PreTokenizerEntry pre_tokenizer, read_pre_tokenizer(root));
  parts.pre_tokenizer = std::move(pre_tokenizer.pre_tokenizer);
  QUIRE_RETURN_IF_ERROR(read_decoder(root, parts));
  QUIRE_ASSIGN_OR_RETURN(parts.tokens, read_vocab(model, kind));
  QUIRE_ASSIGN_OR_RETURN(parts.added, read_added_tokens(root, parts.tokens));
  QUIRE_RETURN_IF_ERROR(
      add_configured_tokens(config, parts.tokens, parts.added).with_prefix("tokenizer_config.json: "));
  QUIRE_RETURN_IF_ERROR(parts.tokens.check_density("model.vocab and added_tokens"));
  QUIRE_RETURN_IF_ERROR(read_model(model, kind, pre_tokenizer.byte_level, parts));
  QUIRE_ASSIGN_OR_RETURN(PostProcessorEntry around, read_post_processor(root, parts.tokens));
  parts.prefix = std::move(around.prefix);
  parts.suffix = std::move(around.suffix);
  parts.pair = std::move(around.pair);
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts)));
}

}  // namespace

Result<AddedToken> read_added_token(const JsonNode& node) {
  AddedToken token;
  QUIRE_ASSIGN_OR_RETURN(token.content, node.string("content"));
  QUIRE_ASSIGN_OR_RETURN(token.special, node.boolean("special", false));
  QUIRE_ASSIGN_OR_RETURN(token.normalized, node.boolean("normalized", !token.special));
  QUIRE_ASSIGN_OR_RETURN(token.single_word, node.boolean("single_word", false));
  QUIRE_ASSIGN_OR_RETURN(token.lstrip, node.boolean("lstrip", false));
  QUIRE_ASSIGN_OR_RETURN(token.rstrip, node.boolean("rstrip", false));
  return token;
}

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

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config) {
  if (tokenizer_json.size() > kMaxJsonBytes) {
    return invalid_argument("tokenizer.json: {} bytes; at most {} are read", tokenizer_json.size(), kMaxJsonBytes);
  }
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::monotonic_resource memory;
  json::parser parser(json::storage_ptr(), options);
  parser.reset(&memory);
  boost::system::error_code error;
  const size_t used = parser.write(tokenizer_json, error);
  if (error) return invalid_argument("tokenizer.json: not valid JSON at byte {}: {}", used, error.message());
  json::value config = json::object();
  if (!tokenizer_config.empty()) {
    config = json::parse(tokenizer_config, error);
    if (error) return invalid_argument("tokenizer_config.json: not valid JSON: {}", error.message());
  }
  auto made = read_tokenizer(parser.release(), JsonNode(config, ""));
  if (!made.ok()) return made.status().with_prefix("tokenizer.json: ");
  return made;
}

}  // namespace quire::text
