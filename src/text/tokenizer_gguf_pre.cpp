// What the names stand for: a fact of the models' own files and of llama.cpp's vocabulary code.
#include "text/tokenizer_gguf.h"

#include "text/pretokenizer.h"
#include "text/unicode.h"

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
using Regexes = std::array<std::string_view, 6>;
constexpr Regexes kGpt2Pieces = {kGpt2Regex};
constexpr Regexes kDigitsThenGpt2 = {kDigit, kGpt2Regex};
constexpr Regexes kLlama3Pieces = {kLlama3Regex};
constexpr Regexes kQwen2Pieces = {kQwen2Regex};
constexpr Regexes kQwen35Pieces = {kQwen35Regex};
constexpr Regexes kGpt4oPieces = {kGpt4oRegex};
constexpr Regexes kTekkenPieces = {kTekkenRegex};
constexpr Regexes kDefaultPieces = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Regex, R"(\p{N}+)", R"([0-9][0-9][0-9])"};
constexpr Regexes kFalconPieces = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Regex, R"([0-9][0-9][0-9])"};
constexpr Regexes kDeepseekCoderPieces = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                          "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", kDigit};
constexpr Regexes kDeepseekV3Pieces = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Regexes kBailingPieces = {
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Regexes kSeedCoderPieces = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr Regexes kDeepseekLlmPieces = {
    R"([\r\n])",
    // The cased letters of the scripts that have case, as the model's own file lists them.
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", R"(\s+$)",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", R"(\p{N}+)"};
constexpr Regexes kSparkPieces = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
    kDigit};
constexpr Regexes kYoutuPieces = {
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Regexes kJais2Pieces = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})"};
constexpr Regexes kBloomPieces = {" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"};
constexpr Regexes kVikingPieces = {" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", kDigit};
constexpr Regexes kChameleonPieces = {R"(<sentinel:[0-9]+>)",    R"((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)",
                                      R"(([\t\n]|    |  ))",     kDigit,
                                      R"([\p{P}!-/:-@\[-`{-~])", kGpt2Regex};
constexpr Regexes kGraniteMultiPieces = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Regexes kTinyAyaPieces = {R"(\d{1,3}(?=(?:\d{3})*\b))", kGpt4oRegex};
// Kimi's expression with an intersection of classes, said by looking ahead: letters, but no Han.
constexpr Regexes kKimiPieces = {
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Regexes kSuperBpePieces = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};
constexpr Regexes kUfakZekaPieces = {
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// Digits in threes from the right of their run: the first piece has what is left over.
constexpr Regexes kAfmoePieces = {
    R"(\p{Nd}{1,2}(?=(?:\p{Nd}{3})+(?!\p{Nd}))|\p{Nd}{3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))|\p{Nd}+)",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-"
    "\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kLinesRegex = R"([^\n]+|[\n]+)";
constexpr Regexes kLines = {kLinesRegex};
constexpr Regexes kLagunaPieces = {kLinesRegex, kQwen2Regex};
constexpr Regexes kExaoneMoePieces = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Regexes kMiniCpm5Pieces = {
    R"(\p{N}{1,3})",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::array kPreTokenizers = {
    GgufPreTokenizer{"", &kDefaultPieces},  // no key: llama.cpp takes its default, too
    GgufPreTokenizer{"default", &kDefaultPieces},
    GgufPreTokenizer{"gpt-2", &kGpt2Pieces},
    GgufPreTokenizer{"gpt2", &kGpt2Pieces},
    GgufPreTokenizer{"phi-2", &kGpt2Pieces},
    GgufPreTokenizer{"jina-es", &kGpt2Pieces},
    GgufPreTokenizer{"jina-de", &kGpt2Pieces},
    GgufPreTokenizer{"jina-v2-es", &kGpt2Pieces},
    GgufPreTokenizer{"jina-v2-de", &kGpt2Pieces},
    GgufPreTokenizer{"gigachat", &kGpt2Pieces},
    GgufPreTokenizer{"a.x-4.0", &kGpt2Pieces},
    GgufPreTokenizer{"mellum", &kGpt2Pieces},
    GgufPreTokenizer{"modern-bert", &kGpt2Pieces},
    GgufPreTokenizer{"exaone4", &kGpt2Pieces},
    GgufPreTokenizer{"mpt", &kGpt2Pieces},
    GgufPreTokenizer{"olmo", &kGpt2Pieces},
    GgufPreTokenizer{"jais", &kGpt2Pieces},
    GgufPreTokenizer{"trillion", &kGpt2Pieces},
    GgufPreTokenizer{"granite-docling", &kGpt2Pieces},
    GgufPreTokenizer{"starcoder", &kDigitsThenGpt2},
    GgufPreTokenizer{"refact", &kDigitsThenGpt2},
    GgufPreTokenizer{"command-r", &kDigitsThenGpt2},
    // llama.cpp isolates digits first; Hugging Face's reading of these files does not, and theirs are the reference
    // ids. The two differ where white space of more than one character precedes a digit.
    GgufPreTokenizer{"smollm", &kGpt2Pieces},
    GgufPreTokenizer{"codeshell", &kDigitsThenGpt2},
    GgufPreTokenizer{"exaone", &kDigitsThenGpt2},
    GgufPreTokenizer{"minerva-7b", &kDigitsThenGpt2},
    GgufPreTokenizer{"llama3", &kLlama3Pieces, true},
    GgufPreTokenizer{"llama-v3", &kLlama3Pieces, true},
    GgufPreTokenizer{"llama-bpe", &kLlama3Pieces, true},
    GgufPreTokenizer{"falcon3", &kLlama3Pieces, true},
    GgufPreTokenizer{"falcon-h1", &kLlama3Pieces, true},
    GgufPreTokenizer{"pixtral", &kLlama3Pieces, true},
    GgufPreTokenizer{"midm-2.0", &kLlama3Pieces, true},
    GgufPreTokenizer{"lfm2", &kLlama3Pieces, true},
    GgufPreTokenizer{"dbrx", &kLlama3Pieces},
    GgufPreTokenizer{"smaug-bpe", &kLlama3Pieces},
    GgufPreTokenizer{"glm4", &kLlama3Pieces, true},
    GgufPreTokenizer{"chatglm-bpe", &kLlama3Pieces},
    GgufPreTokenizer{"qwen2", &kQwen2Pieces},
    GgufPreTokenizer{"deepseek-r1-qwen", &kQwen2Pieces},
    GgufPreTokenizer{"kormo", &kQwen2Pieces},
    GgufPreTokenizer{"megrez", &kQwen2Pieces},
    GgufPreTokenizer{"stablelm2", &kQwen2Pieces},
    GgufPreTokenizer{"hunyuan", &kQwen2Pieces},
    GgufPreTokenizer{"grok-2", &kQwen2Pieces},
    GgufPreTokenizer{"solar-open", &kQwen2Pieces},
    GgufPreTokenizer{"qwen35", &kQwen35Pieces},
    GgufPreTokenizer{"gpt-4o", &kGpt4oPieces},
    GgufPreTokenizer{"llama4", &kGpt4oPieces},
    GgufPreTokenizer{"minimax-m2", &kGpt4oPieces},
    GgufPreTokenizer{"tekken", &kTekkenPieces, true},
    GgufPreTokenizer{"falcon", &kFalconPieces},
    GgufPreTokenizer{"deepseek-coder", &kDeepseekCoderPieces},
    GgufPreTokenizer{"deepseek-v3", &kDeepseekV3Pieces},
    GgufPreTokenizer{"hunyuan-dense", &kDeepseekV3Pieces},
    GgufPreTokenizer{"bailingmoe", &kBailingPieces},
    GgufPreTokenizer{"bailingmoe2", &kBailingPieces},
    GgufPreTokenizer{"llada-moe", &kBailingPieces},
    GgufPreTokenizer{"seed-coder", &kSeedCoderPieces},
    GgufPreTokenizer{"deepseek-llm", &kDeepseekLlmPieces},
    GgufPreTokenizer{"joyai-llm", &kDeepseekV3Pieces},
    GgufPreTokenizer{"hy_v4", &kDeepseekV3Pieces},
    GgufPreTokenizer{"spark2_5", &kSparkPieces},
    GgufPreTokenizer{"youtu", &kYoutuPieces, true},
    GgufPreTokenizer{"jina-v5-nano", &kLlama3Pieces, true},
    GgufPreTokenizer{"jina-v1-en", &kGpt2Pieces},
    GgufPreTokenizer{"jina-v2-code", &kGpt2Pieces},
    GgufPreTokenizer{"roberta-bpe", &kGpt2Pieces},
    GgufPreTokenizer{"jais-2", &kJais2Pieces},
    GgufPreTokenizer{"gemma4", &kLines, false, true},
    GgufPreTokenizer{"granite-embed-multi-311m", &kLines, false, true},
    GgufPreTokenizer{"sarvam-moe", &kLines, false, true},
    GgufPreTokenizer{"f2llmv2", &kQwen2Pieces},
    GgufPreTokenizer{"glm5", &kLlama3Pieces, true},
    GgufPreTokenizer{"poro-chat", &kBloomPieces},
    GgufPreTokenizer{"bloom", &kBloomPieces},
    GgufPreTokenizer{"gpt3-finnish", &kBloomPieces},
    GgufPreTokenizer{"viking", &kVikingPieces},
    GgufPreTokenizer{"mellum2", &kDigitsThenGpt2},
    GgufPreTokenizer{"exaone-moe", &kExaoneMoePieces},
    GgufPreTokenizer{"chameleon", &kChameleonPieces},
    GgufPreTokenizer{"kanana2", &kGpt4oPieces},
    GgufPreTokenizer{"talkie", &kGpt4oPieces},
    GgufPreTokenizer{"granite-embed-multi-97m", &kGraniteMultiPieces, true},
    GgufPreTokenizer{"tiny_aya", &kTinyAyaPieces},
    GgufPreTokenizer{"cohere2moe", &kTinyAyaPieces},
    GgufPreTokenizer{"superbpe", &kSuperBpePieces},
    GgufPreTokenizer{"kimi-k2", &kKimiPieces},
    GgufPreTokenizer{"ufakzeka", &kUfakZekaPieces},
    GgufPreTokenizer{"afmoe", &kAfmoePieces},
    GgufPreTokenizer{"laguna", &kLagunaPieces},
    GgufPreTokenizer{"minicpm5", &kMiniCpm5Pieces, true},
};

}  // namespace

Result<GgufPreTokenizer> find_gguf_pre_tokenizer(std::string_view name) {
  for (const GgufPreTokenizer& entry : kPreTokenizers) {
    if (entry.name == name) return entry;
  }
  return unimplemented(
      "tokenizer.ggml.pre: the pre-tokenizer {:?} is not known; give the model's tokenizer.json instead (--tokenizer)",
      name);
}

Result<PreTokenizer> make_gguf_pre_tokenizer(const GgufPreTokenizer& entry) {
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

}  // namespace quire::text
