// From the vocabulary of a GGUF file.
#include <algorithm>
#include <memory>
#include <utility>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_pipeline.h"
#include "text/unicode.h"
#include "text/unigram.h"
#include "text/utf8.h"
#include "text/wordpiece.h"

namespace quire::text {
namespace {

// How WordPiece spells a token of a "bert" vocabulary, whose words begin with U+2581 and whose continuations with
// nothing.
std::string bert_spelling(const Vocabulary& vocabulary, size_t id) {
  const std::string& token = vocabulary.tokens[id];
  const bool is_plain = vocabulary.token_types.empty() || vocabulary.token_types[id] == VocabularyTokenType::kNormal ||
                        vocabulary.token_types[id] == VocabularyTokenType::kUnused;
  if (token.starts_with(kSpaceSymbol)) return token.substr(std::string_view(kSpaceSymbol).size());
  if (!is_plain || token.empty() || (token.starts_with('[') && token.ends_with(']'))) return token;
  return "##" + token;
}

Status read_tokens(const Vocabulary& vocabulary, TokenizerParts& parts, std::vector<bool>& hidden) {
  if (vocabulary.tokens.empty()) return invalid_argument("tokenizer.ggml.tokens: no tokens");
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != vocabulary.tokens.size()) {
    return invalid_argument("tokenizer.ggml.token_type: {} types for {} tokens", vocabulary.token_types.size(),
                            vocabulary.tokens.size());
  }
  parts.tokens.reserve(vocabulary.tokens.size());
  hidden.resize(vocabulary.tokens.size(), false);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!is_valid_utf8(vocabulary.tokens[id])) {
      return invalid_argument("tokenizer.ggml.tokens[{}]: not valid UTF-8", id);
    }
    const std::string token = vocabulary.model == "bert" ? bert_spelling(vocabulary, id) : vocabulary.tokens[id];
    // An empty spelling stands for no text; the id stays a hole, though counted.
    if (token.empty()) continue;
    QUIRE_RETURN_IF_ERROR(parts.tokens.add(token, static_cast<int64_t>(id), "tokenizer.ggml.tokens"));
    if (vocabulary.token_types.empty()) continue;
    const VocabularyTokenType type = vocabulary.token_types[id];
    if (type != VocabularyTokenType::kControl && type != VocabularyTokenType::kUserDefined) continue;
    const bool special = type == VocabularyTokenType::kControl;
    AddedToken added;
    added.content = token;
    added.id = static_cast<TokenId>(id);
    added.special = special;
    hidden[id] = special;
    parts.added.push_back(std::move(added));
  }
  return {};
}

// "left right" at the one space; a space of the text itself is written as another character.
Result<MergeList> read_merges(const Vocabulary& vocabulary) {
  MergeList merges;
  merges.reserve(vocabulary.merges.size());
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const std::string_view text = vocabulary.merges[i];
    const size_t space = text.find(' ', 1);
    if (text.empty() || space == std::string_view::npos || space + 1 == text.size() || !is_valid_utf8(text)) {
      return invalid_argument("tokenizer.ggml.merges[{}]: {:?} is not two tokens with a space between", i, text);
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

Status check_id(std::optional<TokenId> id, std::string_view key, const Vocabulary& vocabulary) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocabulary.tokens.size())) return {};
  return invalid_argument("{}: {} is no id of {} tokens", key, *id, vocabulary.tokens.size());
}

Status read_special_ids(const Vocabulary& vocabulary, TokenizerParts& parts) {
  QUIRE_RETURN_IF_ERROR(check_id(vocabulary.bos_id, "tokenizer.ggml.bos_token_id", vocabulary));
  QUIRE_RETURN_IF_ERROR(check_id(vocabulary.eos_id, "tokenizer.ggml.eos_token_id", vocabulary));
  QUIRE_RETURN_IF_ERROR(check_id(vocabulary.eot_id, "tokenizer.ggml.eot_token_id", vocabulary));
  parts.bos = vocabulary.bos_id;
  if (vocabulary.eos_id) parts.eos.push_back(*vocabulary.eos_id);
  if (vocabulary.eot_id && vocabulary.eot_id != vocabulary.eos_id) parts.eos.push_back(*vocabulary.eot_id);
  if (vocabulary.add_bos) {
    if (!vocabulary.bos_id)
      return invalid_argument("tokenizer.ggml.add_bos_token is true, but there is no bos_token_id");
    parts.prefix.push_back(*vocabulary.bos_id);
  }
  if (vocabulary.add_eos) {
    if (!vocabulary.eos_id)
      return invalid_argument("tokenizer.ggml.add_eos_token is true, but there is no eos_token_id");
    parts.suffix.push_back(*vocabulary.eos_id);
  }
  return {};
}

// What text may become by merging or Viterbi: not control tokens, bytes and the unknown token.
bool is_text(const Vocabulary& vocabulary, size_t id) {
  if (vocabulary.tokens[id].empty()) return false;
  if (vocabulary.token_types.empty()) return true;
  const VocabularyTokenType type = vocabulary.token_types[id];
  return type == VocabularyTokenType::kNormal || type == VocabularyTokenType::kUserDefined ||
         type == VocabularyTokenType::kUnused || type == VocabularyTokenType::kUndefined;
}

Status check_scores(const Vocabulary& vocabulary) {
  if (vocabulary.scores.size() == vocabulary.tokens.size()) return {};
  return invalid_argument("tokenizer.ggml.scores: {} scores for {} tokens", vocabulary.scores.size(),
                          vocabulary.tokens.size());
}

std::optional<TokenId> unknown_id(const Vocabulary& vocabulary) {
  if (vocabulary.unk_id) return vocabulary.unk_id;
  for (size_t id = 0; id < vocabulary.token_types.size(); ++id) {
    if (vocabulary.token_types[id] == VocabularyTokenType::kUnknown) return static_cast<TokenId>(id);
  }
  return std::nullopt;
}

// As Hugging Face decodes what SentencePiece's converters write.
void add_sentencepiece_decoder(bool strips_space, TokenizerParts& parts) {
  parts.spelling = TokenSpelling::kChain;
  parts.decodes_bytes = true;
  parts.decoder.add(replace_decoder(make_literal_pattern(std::string(kSpaceSymbol)), " "));
  parts.decoder.add(byte_fallback_decoder());
  if (strips_space) parts.decoder.add(strip_decoder(" ", 1, 0, true));
}

Result<bool> has_byte_tokens(const TokenTable& tokens) {
  int found = 0;
  for (int byte = 0; byte < 256; ++byte) found += tokens.find(fmt::format("<0x{:02X}>", byte)) ? 1 : 0;
  if (found != 0 && found != 256) {
    return invalid_argument("tokenizer.ggml.tokens: {} of the 256 byte tokens \"<0x00>\" to \"<0xFF>\"", found);
  }
  return found == 256;
}

// tokenizer.ggml.model "llama": SentencePiece's BPE.
Status build_sentencepiece_bpe(const Vocabulary& vocabulary, TokenizerParts& parts) {
  QUIRE_RETURN_IF_ERROR(check_scores(vocabulary));
  SentencePieceNormalizerOptions spaces;
  spaces.add_dummy_prefix = vocabulary.add_space_prefix;
  spaces.remove_extra_whitespaces = false;
  parts.normalizer.add(make_sentencepiece_step(std::move(spaces)));
  std::vector<ScoredToken> scored;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (is_text(vocabulary, id)) scored.push_back({static_cast<TokenId>(id), vocabulary.scores[id]});
  }
  BpeOptions options;
  QUIRE_ASSIGN_OR_RETURN(options.byte_fallback, has_byte_tokens(parts.tokens));
  options.unk = unknown_id(vocabulary);
  options.fuse_unk = true;
  QUIRE_ASSIGN_OR_RETURN(parts.model, BpeModel::make_by_scores(parts.tokens, scored, options));
  add_sentencepiece_decoder(vocabulary.add_space_prefix, parts);
  parts.kind = "sentencepiece bpe";
  return {};
}

// What RoBERTa and its kin put around two texts: the end of the first, and that once more.
void frame_pairs_as_roberta(TokenizerParts& parts) {
  if (parts.prefix.empty() || parts.suffix.empty()) return;
  SpecialFrame pair{.before = parts.prefix, .between = parts.suffix, .after = parts.suffix};
  pair.between.insert(pair.between.end(), parts.suffix.begin(), parts.suffix.end());
  parts.pair = std::move(pair);
}

// tokenizer.ggml.model "t5": SentencePiece's unigram model.
Status build_sentencepiece_unigram(const Vocabulary& vocabulary, TokenizerParts& parts) {
  constexpr double kUnkPenalty = 10.0;
  QUIRE_RETURN_IF_ERROR(check_scores(vocabulary));
  auto charsmap = PrecompiledCharsmap::parse(vocabulary.precompiled_charsmap);
  if (!charsmap.ok()) return charsmap.status().with_prefix("tokenizer.ggml.precompiled_charsmap: ");
  SentencePieceNormalizerOptions options;
  options.charsmap = std::move(charsmap).value();
  options.add_dummy_prefix = vocabulary.add_space_prefix;
  options.remove_extra_whitespaces = vocabulary.remove_extra_whitespaces;
  parts.normalizer.add(make_sentencepiece_step(std::move(options)));
  std::vector<UnigramPiece> pieces;
  double least = 0;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!is_text(vocabulary, id)) continue;
    const double score = static_cast<double>(vocabulary.scores[id]);
    least = pieces.empty() ? score : std::min(least, score);
    pieces.push_back({static_cast<TokenId>(id), score});
  }
  UnigramOptions model;
  model.unk = unknown_id(vocabulary);
  QUIRE_ASSIGN_OR_RETURN(model.byte_fallback, has_byte_tokens(parts.tokens));
  model.unk_score = static_cast<double>(static_cast<float>(least - kUnkPenalty));
  model.float_sums = true;
  QUIRE_ASSIGN_OR_RETURN(parts.model, UnigramModel::make(parts.tokens, pieces, model));
  add_sentencepiece_decoder(vocabulary.add_space_prefix, parts);
  parts.kind = "sentencepiece unigram";
  frame_pairs_as_roberta(parts);
  return {};
}

// tokenizer.ggml.model "bert": BERT's WordPiece.
Status build_wordpiece(const Vocabulary& vocabulary, const std::vector<bool>& hidden, TokenizerParts& parts) {
  const auto unk = unknown_id(vocabulary);
  const std::optional<TokenId> named = parts.tokens.find("[UNK]");
  if (!unk && !named) return invalid_argument("tokenizer.ggml.unknown_token_id: missing, and there is no \"[UNK]\"");
  parts.normalizer.add(make_bert_step({.strip_accents = vocabulary.lowercase, .lowercase = vocabulary.lowercase}));
  parts.pre_tokenizer.add(make_split_step(make_class_pattern(kSpace), SplitBehavior::kRemoved, false));
  parts.pre_tokenizer.add(
      make_split_step(make_class_pattern(kPunctuation | kAsciiSymbol), SplitBehavior::kIsolated, false));
  parts.model = WordPieceModel::make(parts.tokens, hidden, {.unk = unk ? *unk : *named});
  parts.spelling = TokenSpelling::kChain;
  parts.decoder.add(word_piece_decoder("##", /*cleanup=*/true));
  parts.kind = "wordpiece";
  if (!parts.prefix.empty() && !parts.suffix.empty()) {
    parts.pair = {.before = parts.prefix, .between = parts.suffix, .after = parts.suffix};
  }
  return {};
}

Status build_byte_level(const Vocabulary& vocabulary, std::string_view pre_name, const std::vector<bool>& hidden,
                        TokenizerParts& parts) {
  QUIRE_ASSIGN_OR_RETURN(const GgufPreTokenizer pre, find_gguf_pre_tokenizer(pre_name));
  QUIRE_ASSIGN_OR_RETURN(parts.pre_tokenizer, make_gguf_pre_tokenizer(pre));
  QUIRE_ASSIGN_OR_RETURN(const MergeList merges, read_merges(vocabulary));
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  options.byte_level = !pre.escapes_spaces;
  if (pre.escapes_spaces) {
    // Spaces as SentencePiece writes them, text as it is: not in the alphabet of bytes.
    SentencePieceNormalizerOptions spaces;
    spaces.add_dummy_prefix = false;
    spaces.remove_extra_whitespaces = false;
    parts.normalizer.add(make_sentencepiece_step(std::move(spaces)));
    QUIRE_ASSIGN_OR_RETURN(options.byte_fallback, has_byte_tokens(parts.tokens));
    options.unk = unknown_id(vocabulary);
    options.fuse_unk = true;
    add_sentencepiece_decoder(false, parts);
    parts.kind = "bpe";
  }
  QUIRE_ASSIGN_OR_RETURN(parts.model, BpeModel::make(parts.tokens, merges, hidden, options));
  frame_pairs_as_roberta(parts);
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_vocabulary(const Vocabulary& vocabulary) {
  const bool byte_level = vocabulary.model == "gpt2" || vocabulary.model == "gemma4";
  if (!byte_level && vocabulary.model != "llama" && vocabulary.model != "t5" && vocabulary.model != "bert") {
    return unimplemented(
        "tokenizer.ggml.model: {:?} is not supported; supported: \"gpt2\", \"llama\", \"t5\", \"bert\" and "
        "\"gemma4\"",
        vocabulary.model);
  }
  TokenizerParts parts;
  parts.kind = "bpe (byte level)";
  parts.spelling = TokenSpelling::kByteAlphabet;
  std::vector<bool> hidden;
  QUIRE_RETURN_IF_ERROR(read_tokens(vocabulary, parts, hidden));
  QUIRE_RETURN_IF_ERROR(read_special_ids(vocabulary, parts));
  Status built;
  if (vocabulary.model == "llama") {
    built = build_sentencepiece_bpe(vocabulary, parts);
  } else if (vocabulary.model == "bert") {
    built = build_wordpiece(vocabulary, hidden, parts);
  } else if (vocabulary.model == "t5") {
    built = build_sentencepiece_unigram(vocabulary, parts);
  } else {
    const bool names_itself = vocabulary.model == "gemma4";
    built = build_byte_level(vocabulary, names_itself ? vocabulary.model : vocabulary.pre, hidden, parts);
  }
  if (!built.ok()) {
    if (!built.message().starts_with("tokenizer.ggml.")) return std::move(built).with_prefix("tokenizer.ggml.");
    return built;
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts)));
}

}  // namespace quire::text
