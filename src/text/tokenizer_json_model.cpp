// The entry "model" of a tokenizer.json.
#include <algorithm>
#include <limits>

#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

namespace quire::text {
namespace json = boost::json;
namespace {

// Ids by name.
Result<TokenTable> read_token_map(const JsonNode& model) {
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

// [["token", score], ...]: the index is the id.
Result<TokenTable> read_token_list(const JsonNode& model) {
  QUIRE_ASSIGN_OR_RETURN(const json::array* vocab, model.array("vocab"));
  TokenTable tokens;
  tokens.reserve(vocab->size());
  for (size_t i = 0; i < vocab->size(); ++i) {
    const json::array* pair = (*vocab)[i].if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number()) {
      return invalid_argument("model.vocab[{}]: expected a token and its score, found {}", i, kind_name((*vocab)[i]));
    }
    QUIRE_RETURN_IF_ERROR(tokens.add((*pair)[0].get_string(), static_cast<int64_t>(i), "model.vocab"));
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

Result<std::optional<TokenId>> read_unk_token(const JsonNode& model, const TokenTable& tokens) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view unk, model.string_or("unk_token", ""));
  std::optional<TokenId> id;
  if (unk.empty()) return id;
  id = tokens.find(unk);
  if (!id) return invalid_argument("model.unk_token {:?} is not in the vocabulary", unk);
  return id;
}

Result<BpeOptions> read_bpe_options(const JsonNode& model, const TokenTable& tokens) {
  BpeOptions options;
  if (const json::value* dropout = model.find("dropout")) {
    const bool is_zero = dropout->is_number() && dropout->to_number<double>() == 0.0;
    if (!is_zero)
      return unimplemented("model.dropout {} is not supported; expected null or 0", json::serialize(*dropout));
  }
  QUIRE_ASSIGN_OR_RETURN(options.ignore_merges, model.boolean("ignore_merges", false));
  QUIRE_ASSIGN_OR_RETURN(options.fuse_unk, model.boolean("fuse_unk", false));
  QUIRE_ASSIGN_OR_RETURN(options.byte_fallback, model.boolean("byte_fallback", false));
  QUIRE_ASSIGN_OR_RETURN(options.continuation_prefix, model.string_or("continuing_subword_prefix", ""));
  QUIRE_ASSIGN_OR_RETURN(options.end_suffix, model.string_or("end_of_word_suffix", ""));
  QUIRE_ASSIGN_OR_RETURN(options.unk, read_unk_token(model, tokens));
  return options;
}

// Text must never become a special token, whatever it spells: those are found before the model is asked. Nor does the
// model know tokens that were only added to it.
std::vector<bool> hidden_tokens(const TokenizerParts& parts) {
  std::vector<bool> hidden(static_cast<size_t>(parts.tokens.size()), false);
  for (const AddedToken& token : parts.added) {
    if (token.special || !token.in_model) hidden[static_cast<size_t>(token.id)] = true;
  }
  return hidden;
}

Status read_bpe(const JsonNode& model, bool byte_level, TokenizerParts& parts) {
  QUIRE_ASSIGN_OR_RETURN(const MergeList merges, read_merges(model));
  QUIRE_ASSIGN_OR_RETURN(BpeOptions options, read_bpe_options(model, parts.tokens));
  const bool affixes = !options.continuation_prefix.empty() || !options.end_suffix.empty();
  // The model's own alphabet of bytes knows neither affixes nor bytes to fall back on.
  options.byte_level = byte_level && !affixes && !options.byte_fallback;
  if (byte_level && !options.byte_level) parts.pre_tokenizer.add(make_byte_alphabet_step());
  auto made = BpeModel::make(parts.tokens, merges, hidden_tokens(parts), options);
  if (!made.ok()) return made.status().with_prefix("model.");
  parts.model = std::move(made).value();
  parts.kind = byte_level ? "bpe (byte level)" : options.byte_fallback ? "bpe (byte fallback)" : "bpe";
  return {};
}

Status read_unigram(const JsonNode& model, TokenizerParts& parts) {
  constexpr double kUnkPenalty = 10.0;
  UnigramOptions options;
  QUIRE_ASSIGN_OR_RETURN(options.byte_fallback, model.boolean("byte_fallback", false));
  if (model.find("unk_id") != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t unk, model.integer("unk_id"));
    if (parts.tokens.size() <= unk) {
      return invalid_argument("model.unk_id: {} is no id of {} tokens", unk, parts.tokens.size());
    }
    options.unk = static_cast<TokenId>(unk);
  }
  QUIRE_ASSIGN_OR_RETURN(const json::array* vocab, model.array("vocab"));
  const std::vector<bool> hidden = hidden_tokens(parts);
  std::vector<UnigramPiece> pieces;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab->size(); ++i) {
    const json::array& pair = (*vocab)[i].get_array();
    const double score = pair[1].to_number<double>();
    least = std::min(least, score);
    const bool matches = !hidden[i] && !pair[0].get_string().empty();
    if (matches) pieces.push_back({static_cast<TokenId>(i), score});
  }
  options.unk_score = vocab->empty() ? 0 : least - kUnkPenalty;
  auto made = UnigramModel::make(parts.tokens, pieces, options);
  if (!made.ok()) return made.status().with_prefix("model.");
  parts.model = std::move(made).value();
  parts.kind = options.byte_fallback ? "unigram (byte fallback)" : "unigram";
  return {};
}

Status read_word_piece(const JsonNode& model, TokenizerParts& parts) {
  WordPieceOptions options;
  QUIRE_ASSIGN_OR_RETURN(const std::string_view unk, model.string_or("unk_token", "[UNK]"));
  const auto id = parts.tokens.find(unk);
  if (!id) return invalid_argument("model.unk_token {:?} is not in the vocabulary", unk);
  options.unk = *id;
  QUIRE_ASSIGN_OR_RETURN(options.continuation_prefix, model.string_or("continuing_subword_prefix", "##"));
  if (model.find("max_input_chars_per_word") != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(options.max_characters, model.integer("max_input_chars_per_word"));
  }
  parts.model = WordPieceModel::make(parts.tokens, hidden_tokens(parts), options);
  parts.kind = "wordpiece";
  return {};
}

Status read_word_level(const JsonNode& model, TokenizerParts& parts) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view name, model.string_or("unk_token", ""));
  parts.model = WordLevelModel::make(parts.tokens, hidden_tokens(parts), parts.tokens.find(name));
  parts.kind = "wordlevel";
  return {};
}

}  // namespace

Result<ModelKind> read_model_kind(const JsonNode& model) {
  // Old files name no type; only BPE has merges, only Unigram a list of pairs.
  const json::value* vocab = model.find("vocab");
  const std::string_view unnamed = model.find("merges") != nullptr           ? "BPE"
                                   : vocab != nullptr && vocab->is_array()   ? "Unigram"
                                   : model.find("continuing_subword_prefix") ? "WordPiece"
                                                                             : "unnamed";
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type, model.string_or("type", unnamed));
  if (type == "BPE") return ModelKind::kBpe;
  if (type == "Unigram") return ModelKind::kUnigram;
  if (type == "WordPiece") return ModelKind::kWordPiece;
  if (type == "WordLevel") return ModelKind::kWordLevel;
  return unimplemented("model: the model {} is not supported", type);
}

Result<TokenTable> read_vocab(const JsonNode& model, ModelKind kind) {
  return kind == ModelKind::kUnigram ? read_token_list(model) : read_token_map(model);
}

Status read_model(const JsonNode& model, ModelKind kind, bool byte_level, TokenizerParts& parts) {
  if (kind == ModelKind::kBpe) return read_bpe(model, byte_level, parts);
  if (byte_level) parts.pre_tokenizer.add(make_byte_alphabet_step());
  if (kind == ModelKind::kUnigram) return read_unigram(model, parts);
  if (kind == ModelKind::kWordPiece) return read_word_piece(model, parts);
  return read_word_level(model, parts);
}

}  // namespace quire::text
