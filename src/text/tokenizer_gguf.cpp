// From the vocabulary of a GGUF file. It names the pre-tokenizer instead of spelling it; what the names stand for is a
// fact of llama.cpp's converter and vocabulary code.
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_pipeline.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";

// The expressions are applied one after the other, each to the pieces of the one before.
using Regexes = std::array<std::string_view, 5>;
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr Regexes kGpt2Pieces = {kGpt2};
constexpr Regexes kDigitsThenGpt2 = {kDigit, kGpt2};
constexpr Regexes kLlama3Pieces = {kLlama3Regex};
constexpr Regexes kQwen2Pieces = {kQwen2Regex};
constexpr Regexes kQwen35Pieces = {kQwen35Regex};
constexpr Regexes kGpt4oPieces = {kGpt4oRegex};
constexpr Regexes kTekkenPieces = {kTekkenRegex};
constexpr Regexes kDefaultPieces = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", R"([0-9][0-9][0-9])"};
constexpr Regexes kFalconPieces = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, R"([0-9][0-9][0-9])"};
constexpr Regexes kDeepseekCoderPieces = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                          "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", kDigit};
constexpr Regexes kDeepseekV3Pieces = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Regexes kBailingPieces = {
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Regexes kSeedCoderPieces = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"};

struct PreEntry {
  std::string_view name;
  const Regexes* regexes;
  bool ignore_merges = false;
};

constexpr std::array kPreTokenizers = {
    PreEntry{"", &kDefaultPieces},  // no key: llama.cpp takes its default, too
    PreEntry{"default", &kDefaultPieces},
    PreEntry{"gpt-2", &kGpt2Pieces},
    PreEntry{"gpt2", &kGpt2Pieces},
    PreEntry{"phi-2", &kGpt2Pieces},
    PreEntry{"jina-es", &kGpt2Pieces},
    PreEntry{"jina-de", &kGpt2Pieces},
    PreEntry{"jina-v2-es", &kGpt2Pieces},
    PreEntry{"jina-v2-de", &kGpt2Pieces},
    PreEntry{"gigachat", &kGpt2Pieces},
    PreEntry{"a.x-4.0", &kGpt2Pieces},
    PreEntry{"mellum", &kGpt2Pieces},
    PreEntry{"modern-bert", &kGpt2Pieces},
    PreEntry{"exaone4", &kGpt2Pieces},
    PreEntry{"mpt", &kGpt2Pieces},
    PreEntry{"olmo", &kGpt2Pieces},
    PreEntry{"jais", &kGpt2Pieces},
    PreEntry{"trillion", &kGpt2Pieces},
    PreEntry{"granite-docling", &kGpt2Pieces},
    PreEntry{"starcoder", &kDigitsThenGpt2},
    PreEntry{"refact", &kDigitsThenGpt2},
    PreEntry{"command-r", &kDigitsThenGpt2},
    // llama.cpp isolates digits first; Hugging Face's reading of these files does not, and theirs are the reference
    // ids. The two differ where white space of more than one character precedes a digit.
    PreEntry{"smollm", &kGpt2Pieces},
    PreEntry{"codeshell", &kDigitsThenGpt2},
    PreEntry{"exaone", &kDigitsThenGpt2},
    PreEntry{"minerva-7b", &kDigitsThenGpt2},
    PreEntry{"llama3", &kLlama3Pieces, true},
    PreEntry{"llama-v3", &kLlama3Pieces, true},
    PreEntry{"llama-bpe", &kLlama3Pieces, true},
    PreEntry{"falcon3", &kLlama3Pieces, true},
    PreEntry{"falcon-h1", &kLlama3Pieces, true},
    PreEntry{"pixtral", &kLlama3Pieces, true},
    PreEntry{"midm-2.0", &kLlama3Pieces, true},
    PreEntry{"lfm2", &kLlama3Pieces, true},
    PreEntry{"dbrx", &kLlama3Pieces},
    PreEntry{"smaug-bpe", &kLlama3Pieces},
    PreEntry{"glm4", &kLlama3Pieces},
    PreEntry{"chatglm-bpe", &kLlama3Pieces},
    PreEntry{"qwen2", &kQwen2Pieces},
    PreEntry{"deepseek-r1-qwen", &kQwen2Pieces},
    PreEntry{"kormo", &kQwen2Pieces},
    PreEntry{"megrez", &kQwen2Pieces},
    PreEntry{"stablelm2", &kQwen2Pieces},
    PreEntry{"hunyuan", &kQwen2Pieces},
    PreEntry{"grok-2", &kQwen2Pieces},
    PreEntry{"solar-open", &kQwen2Pieces},
    PreEntry{"qwen35", &kQwen35Pieces},
    PreEntry{"gpt-4o", &kGpt4oPieces},
    PreEntry{"llama4", &kGpt4oPieces},
    PreEntry{"minimax-m2", &kGpt4oPieces},
    PreEntry{"tekken", &kTekkenPieces, true},
    PreEntry{"falcon", &kFalconPieces},
    PreEntry{"deepseek-coder", &kDeepseekCoderPieces},
    PreEntry{"deepseek-v3", &kDeepseekV3Pieces},
    PreEntry{"hunyuan-dense", &kDeepseekV3Pieces},
    PreEntry{"bailingmoe", &kBailingPieces},
    PreEntry{"bailingmoe2", &kBailingPieces},
    PreEntry{"llada-moe", &kBailingPieces},
    PreEntry{"seed-coder", &kSeedCoderPieces},
};

Result<const PreEntry*> find_pre_tokenizer(std::string_view name) {
  for (const PreEntry& entry : kPreTokenizers) {
    if (entry.name == name) return &entry;
  }
  return unimplemented(
      "tokenizer.ggml.pre: the pre-tokenizer {:?} is not known; give the model's tokenizer.json instead (--tokenizer)",
      name);
}

Result<PreTokenizer> make_pre_tokenizer(const PreEntry& entry) {
  PreTokenizer pre_tokenizer;
  for (const std::string_view regex : *entry.regexes) {
    if (regex.empty()) break;
    // One digit a piece needs no expression.
    if (regex == kDigit) {
      pre_tokenizer.add(make_split_step(make_class_pattern(kNumber), SplitBehavior::kIsolated, false));
      continue;
    }
    auto pattern = make_regex_pattern(regex);
    if (!pattern.ok()) return pattern.status();
    pre_tokenizer.add(make_split_step(std::move(pattern).value(), SplitBehavior::kIsolated, false));
  }
  return pre_tokenizer;
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
    const std::string& token = vocabulary.tokens[id];
    if (!is_valid_utf8(token)) return invalid_argument("tokenizer.ggml.tokens[{}]: not valid UTF-8", id);
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

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_vocabulary(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") {
    return unimplemented("tokenizer.ggml.model: {:?} is not supported yet; supported: \"gpt2\"", vocabulary.model);
  }
  QUIRE_ASSIGN_OR_RETURN(const PreEntry* pre, find_pre_tokenizer(vocabulary.pre));
  TokenizerParts parts;
  parts.kind = "bpe (byte level)";
  parts.spelling = TokenSpelling::kByteAlphabet;
  std::vector<bool> hidden;
  QUIRE_RETURN_IF_ERROR(read_tokens(vocabulary, parts, hidden));
  QUIRE_RETURN_IF_ERROR(read_special_ids(vocabulary, parts));
  QUIRE_ASSIGN_OR_RETURN(parts.pre_tokenizer, make_pre_tokenizer(*pre));
  QUIRE_ASSIGN_OR_RETURN(const MergeList merges, read_merges(vocabulary));
  BpeOptions options;
  options.byte_level = true;
  options.ignore_merges = pre->ignore_merges;
  auto model = BpeModel::make(parts.tokens, merges, hidden, options);
  if (!model.ok()) return model.status().with_prefix("tokenizer.ggml.");
  parts.model = std::move(model).value();
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts)));
}

}  // namespace quire::text
