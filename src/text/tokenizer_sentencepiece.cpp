// A tokenizer of SentencePiece's model file, as SentencePiece itself encodes and decodes, with the added tokens of the
// tokenizer_config.json beside it.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <boost/json.hpp>

#include "text/bpe.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_pipeline.h"
#include "text/unigram.h"

namespace quire::text {
namespace {

namespace json = boost::json;

constexpr size_t kMaxModelBytes = size_t{256} << 20;

// Pieces of other types are no text: they are found before the model is asked, or never.
bool is_text(SentencePieceType type) {
  return type == SentencePieceType::kNormal || type == SentencePieceType::kUserDefined ||
         type == SentencePieceType::kUnused;
}

Status add_pieces(const SentencePieceModel& model, TokenizerParts& parts) {
  parts.tokens.reserve(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const auto token = static_cast<TokenId>(id);
    if (piece.text.empty()) continue;  // an id without text
    QUIRE_RETURN_IF_ERROR(parts.tokens.add(piece.text, token, "pieces"));
    if (piece.type == SentencePieceType::kUnknown && parts.unknown == kNoToken) parts.unknown = token;
    if (piece.type == SentencePieceType::kControl) {
      AddedToken added;
      added.content = piece.text;
      added.id = token;
      added.special = true;
      parts.added.push_back(std::move(added));
    }
  }
  if (parts.unknown == kNoToken) return invalid_argument("pieces: none is of the type unknown");
  parts.unknown_text = model.unknown_surface;
  return {};
}

Status check_bytes(const SentencePieceModel& model, const TokenTable& tokens) {
  for (int byte = 0; model.byte_fallback && byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    if (!tokens.find(name))
      return invalid_argument("trainer_spec.byte_fallback is set, but there is no piece {}", name);
  }
  return {};
}

Result<std::unique_ptr<TokenModel>> make_unigram(const SentencePieceModel& model, const TokenizerParts& parts) {
  constexpr double kUnkPenalty = 10.0;
  float least = std::numeric_limits<float>::max();
  float greatest = std::numeric_limits<float>::lowest();
  for (const SentencePiece& piece : model.pieces) {
    if (piece.type != SentencePieceType::kNormal) continue;
    least = std::min(least, piece.score);
    greatest = std::max(greatest, piece.score);
  }
  const bool any_normal = least <= greatest;
  std::vector<UnigramPiece> pieces;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.text.empty() || !is_text(piece.type) || piece.type == SentencePieceType::kUnused) continue;
    const bool user_defined = piece.type == SentencePieceType::kUserDefined;
    // A symbol that a user defined beats every other way to write it.
    const float bonus = any_normal ? greatest : 0.0f;
    const double score = user_defined ? static_cast<double>(static_cast<float>(piece.text.size()) * bonus) - 0.1
                                      : static_cast<double>(piece.score);
    pieces.push_back({static_cast<TokenId>(id), score});
  }
  UnigramOptions options;
  options.unk = parts.unknown;
  options.byte_fallback = model.byte_fallback;
  options.unk_score = static_cast<double>(static_cast<float>((any_normal ? least : 0.0f) - kUnkPenalty));
  options.float_sums = true;
  return UnigramModel::make(parts.tokens, pieces, options);
}

Result<std::unique_ptr<TokenModel>> make_bpe(const SentencePieceModel& model, const TokenizerParts& parts) {
  std::vector<ScoredToken> scored;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.text.empty() || !is_text(piece.type)) continue;
    scored.push_back({static_cast<TokenId>(id), piece.score, piece.type == SentencePieceType::kUnused,
                      piece.type == SentencePieceType::kUserDefined});
  }
  BpeOptions options;
  options.unk = parts.unknown;
  options.fuse_unk = true;
  options.byte_fallback = model.byte_fallback;
  return BpeModel::make_by_scores(parts.tokens, scored, options);
}

std::shared_ptr<const ByteTrie> user_defined_symbols(const SentencePieceModel& model) {
  std::vector<ByteTrie::Entry> entries;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type == SentencePieceType::kUserDefined) entries.push_back({piece.text, static_cast<int32_t>(id)});
  }
  return entries.empty() ? nullptr : std::make_shared<const ByteTrie>(std::move(entries));
}

Status add_decoder(const SentencePieceModel& model, TokenizerParts& parts) {
  if (model.has_denormalizer) return unimplemented("denormalizer_spec: rules for decoding are not supported");
  parts.spelling = TokenSpelling::kChain;
  parts.decodes_bytes = true;
  SentencePieceDecoderOptions options;
  options.strips_one_space = model.add_dummy_prefix;
  options.strips_all_spaces = model.remove_extra_whitespaces;
  parts.decoder.add(sentencepiece_decoder(options));
  return {};
}

Status build(const SentencePieceModel& model, bool prefix_only_at_start, TokenizerParts& parts) {
  QUIRE_RETURN_IF_ERROR(add_pieces(model, parts));
  QUIRE_RETURN_IF_ERROR(check_bytes(model, parts.tokens));
  auto charsmap = PrecompiledCharsmap::parse(model.precompiled_charsmap);
  if (!charsmap.ok()) return charsmap.status().with_prefix("normalizer_spec.precompiled_charsmap: ");
  const auto user_defined = user_defined_symbols(model);
  SentencePieceNormalizerOptions options;
  options.charsmap = std::move(charsmap).value();
  options.user_defined = user_defined;
  options.add_dummy_prefix = model.add_dummy_prefix;
  options.prefix_only_at_start = prefix_only_at_start;
  options.remove_extra_whitespaces = model.remove_extra_whitespaces;
  options.escape_whitespaces = model.escape_whitespaces;
  options.whitespace_as_suffix = model.whitespace_as_suffix;
  parts.normalizer.add(make_sentencepiece_step(std::move(options)));
  if (model.type == SentencePieceModelType::kUnigram) {
    QUIRE_ASSIGN_OR_RETURN(parts.model, make_unigram(model, parts));
    parts.kind = "sentencepiece unigram";
  } else if (model.type == SentencePieceModelType::kBpe) {
    if (user_defined != nullptr) parts.pre_tokenizer.add(make_keys_step(user_defined));
    QUIRE_ASSIGN_OR_RETURN(parts.model, make_bpe(model, parts));
    parts.kind = "sentencepiece bpe";
  } else {
    return unimplemented("trainer_spec.model_type: {} models are not supported; supported: unigram and bpe",
                         model.type == SentencePieceModelType::kWord ? "word" : "char");
  }
  if (model.byte_fallback) parts.kind += " (byte fallback)";
  return add_decoder(model, parts);
}

// tokenizer_config.json: "added_tokens_decoder" has the added tokens by id.
Status add_configured_tokens(const JsonNode& config, TokenizerParts& parts) {
  if (config.find("added_tokens_decoder") == nullptr) return {};
  QUIRE_ASSIGN_OR_RETURN(const json::object* entries, config.object("added_tokens_decoder"));
  for (const auto& [key, value] : *entries) {
    const std::string_view digits = key;
    const JsonNode node(value, fmt::format("added_tokens_decoder[{:?}]", digits));
    const bool is_number =
        !digits.empty() && digits.size() <= 8 && digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number) return invalid_argument("{}: not an id", node.path());
    const int64_t id = std::stoll(std::string(digits));
    QUIRE_ASSIGN_OR_RETURN(AddedToken token, read_added_token(node));
    token.normalized = false;  // looked for in the text as it came
    if (parts.tokens.find(token.content) != id) QUIRE_RETURN_IF_ERROR(parts.tokens.add(token.content, id, node.path()));
    token.id = static_cast<TokenId>(id);
    std::erase_if(parts.added, [&](const AddedToken& known) { return known.id == token.id; });
    parts.added.push_back(std::move(token));
  }
  return parts.tokens.check_density("added_tokens_decoder");
}

// "bos_token" is a spelling or an added token; absent, the model's own.
Result<std::optional<TokenId>> configured_id(const JsonNode& config, std::string_view key, int32_t own,
                                             const TokenTable& tokens) {
  std::optional<TokenId> id;
  if (own >= 0 && tokens.find(own) != nullptr) id = own;
  const json::value* value = config.find(key);
  if (value == nullptr) return id;
  std::string_view name;
  if (value->is_object()) {
    QUIRE_ASSIGN_OR_RETURN(name, JsonNode(*value, config.path_of(key)).string("content"));
  } else {
    QUIRE_ASSIGN_OR_RETURN(name, config.string(key));
  }
  id = tokens.find(name);
  if (!id) return invalid_argument("{}: {:?} is not in the vocabulary", config.path_of(key), name);
  return id;
}

Status add_special_ids(const JsonNode& config, const SentencePieceModel& model, TokenizerParts& parts) {
  QUIRE_ASSIGN_OR_RETURN(parts.bos, configured_id(config, "bos_token", model.bos_id, parts.tokens));
  QUIRE_ASSIGN_OR_RETURN(const auto eos, configured_id(config, "eos_token", model.eos_id, parts.tokens));
  if (eos) parts.eos.push_back(*eos);
  // A file that does not say means what the class it names adds: T5's and its kin's an end, the others a beginning.
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, config.string_or("tokenizer_class", ""));
  const bool ends = type.starts_with("T5") || type.starts_with("MT5") || type.starts_with("Pegasus");
  QUIRE_ASSIGN_OR_RETURN(const bool add_bos, config.boolean("add_bos_token", !ends));
  QUIRE_ASSIGN_OR_RETURN(const bool add_eos, config.boolean("add_eos_token", ends));
  if (add_bos && parts.bos) parts.prefix.push_back(*parts.bos);
  if (add_eos && eos) parts.suffix.push_back(*eos);
  return {};
}

Result<std::unique_ptr<Tokenizer>> make(std::string_view bytes, const json::value& document) {
  const JsonNode config(document, "");
  QUIRE_ASSIGN_OR_RETURN(const SentencePieceModel model, parse_sentencepiece_model(bytes));
  // Files that say "legacy": false put the dummy prefix only before the whole text, not behind every special token.
  QUIRE_ASSIGN_OR_RETURN(const bool legacy, config.boolean("legacy", true));
  TokenizerParts parts;
  QUIRE_RETURN_IF_ERROR(build(model, !legacy, parts));
  QUIRE_RETURN_IF_ERROR(add_configured_tokens(config, parts).with_prefix("tokenizer_config.json: "));
  QUIRE_RETURN_IF_ERROR(add_special_ids(config, model, parts).with_prefix("tokenizer_config.json: "));
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts)));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_sentencepiece(std::string_view model,
                                                                 std::string_view tokenizer_config) {
  if (model.size() > kMaxModelBytes || tokenizer_config.size() > kMaxModelBytes) {
    return invalid_argument("tokenizer.model: {} bytes; at most {} are read", model.size(), kMaxModelBytes);
  }
  json::value document = json::object();
  if (!tokenizer_config.empty()) {
    boost::system::error_code error;
    document = json::parse(tokenizer_config, error);
    if (error) return invalid_argument("tokenizer_config.json: not valid JSON: {}", error.message());
    if (!document.is_object()) return invalid_argument("tokenizer_config.json: expected a JSON object");
  }
  auto made = make(model, document);
  if (!made.ok()) return made.status().with_prefix("tokenizer.model: ");
  return made;
}

}  // namespace quire::text
