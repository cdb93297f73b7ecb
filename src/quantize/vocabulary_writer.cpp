#include "quantize/vocabulary_writer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include <boost/json.hpp>

#include "base/log.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace quire::quantize {
namespace {

namespace json = boost::json;

// Names of pre-tokenizers that split texts in different ways, the usual ones first. Of names that mean the same the one
// that most files have.
constexpr auto kPreTokenizers = std::to_array<std::string_view>(
    {"llama-bpe",   "qwen2",      "smollm",     "gpt-2",    "starcoder", "deepseek-llm", "deepseek-coder",
     "deepseek-v3", "tekken",     "gpt-4o",     "falcon",   "dbrx",      "default",      "bloom",
     "viking",      "seed-coder", "qwen35",     "superbpe", "youtu",     "exaone-moe",   "jais-2",
     "kimi-k2",     "afmoe",      "bailingmoe", "minicpm5", "tiny_aya",  "chameleon"});

// Texts in composed characters, for GGUF knows no normalisation of Unicode. What pre-tokenizers differ in: runs of
// digits, contractions in either case, white space before words, digits and lines' ends, letters with marks, scripts
// without spaces, signs, code.
constexpr auto kTexts = std::to_array<std::string_view>({
    "The harbour's lights went out; we'd been told they'll RETURN by 6.",
    "HE'S said I'M late, THEY'RE not, and it'S odd'd.",
    "1234567 12 345,678.90 3x7=21 0x1F 2024-11-25T07:09",
    "   three spaces,  two,\ttab\t\ttabs\n\n\nlines   \n  indented 42  7",
    "\n\n  \r\n end of   line   ",
    "naïve façade Ünïcödé ÅNGSTRÖM t\xC3\xA9t\xC3\xA9 "
    "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8\xE0\xA5\x8D\xE0\xA4\xA6\xE0\xA5\x80",
    "\xE6\xB1\x89\xE5\xAD\x97\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xA7\xE3\x81\x99 "
    "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 \xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 "
    "\xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7 12\xE5\x8F\xB7",
    "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xA7!?... \xE2\x80\x94 \xC2\xAB quoted \xC2\xBB "
    "\xE2\x82\xAC"
    "5 \xC2\xBD",
    "for (int i=0;i<10;++i) { a[i] += f(x->y, \"s\\n\"); } // done!\n\tif not x:\n\t\tpass",
    "camelCase snake_case UPPERlower http://a.b/c?d=e&f=1#g foo@bar.org ~/dir/*.txt",
    "CO2 H2O v1.2.3 A1B2 \xC2\xB2\xE2\x85\xA7 50% $3.50 #tag \xE2\x84\xA2",
});

bool same_ids(const text::Tokenizer& one, const text::Tokenizer& other) {
  return std::ranges::all_of(kTexts, [&](std::string_view text) {
    return one.encode(text, true) == other.encode(text, true) && one.encode(text, false) == other.encode(text, false);
  });
}

struct Added {
  TokenId id;
  std::string content;
  bool special;
};

// tokenizer.json's "added_tokens", or tokenizer_config.json's "added_tokens_decoder".
std::vector<Added> added_tokens(const json::value& file) {
  std::vector<Added> out;
  const auto add = [&](const json::value& id, const json::object& token) {
    const json::value* content = token.if_contains("content");
    const json::value* special = token.if_contains("special");
    if (content == nullptr || !content->is_string()) return;
    int64_t number = -1;
    if (id.is_int64()) number = id.get_int64();
    if (id.is_string()) number = std::atoll(std::string(id.get_string()).c_str());
    if (number < 0 || number > (1 << 24)) return;
    out.push_back({static_cast<TokenId>(number), std::string(content->get_string()),
                   special != nullptr && special->is_bool() && special->get_bool()});
  };
  if (!file.is_object()) return out;
  if (const json::value* list = file.get_object().if_contains("added_tokens"); list != nullptr && list->is_array()) {
    for (const json::value& token : list->get_array()) {
      if (token.is_object() && token.get_object().contains("id")) add(token.get_object().at("id"), token.get_object());
    }
  }
  const json::value* map = file.get_object().if_contains("added_tokens_decoder");
  if (map != nullptr && map->is_object()) {
    for (const auto& [id, token] : map->get_object()) {
      if (token.is_object()) add(json::value(json::string(id)), token.get_object());
    }
  }
  return out;
}

// Gives every id up to the model's last a token: rows of the embedding that no text reaches are unused.
void fill_up(int64_t size, Vocabulary& out) {
  const auto rows = std::max(static_cast<size_t>(size), out.tokens.size());
  out.tokens.resize(rows);
  out.token_types.resize(rows, VocabularyTokenType::kUndefined);
  if (!out.scores.empty()) out.scores.resize(rows, -10000.0f);
  for (size_t id = 0; id < rows; ++id) {
    if (!out.tokens[id].empty()) continue;
    out.tokens[id] = fmt::format("[PAD{}]", id);
    out.token_types[id] = VocabularyTokenType::kUnused;
  }
}

void put_token(size_t id, std::string token, VocabularyTokenType type, Vocabulary& out) {
  if (id >= out.tokens.size()) {
    out.tokens.resize(id + 1);
    out.token_types.resize(id + 1, VocabularyTokenType::kUndefined);
    if (!out.scores.empty()) out.scores.resize(id + 1, -10000.0f);
  }
  out.tokens[id] = std::move(token);
  out.token_types[id] = type;
}

void put_added(const std::vector<Added>& added, Vocabulary& out) {
  for (const Added& token : added) {
    const auto id = static_cast<size_t>(token.id);
    const bool is_unknown = id < out.token_types.size() && out.token_types[id] == VocabularyTokenType::kUnknown;
    if (is_unknown) continue;
    put_token(id, token.content, token.special ? VocabularyTokenType::kControl : VocabularyTokenType::kUserDefined,
              out);
  }
}

std::string special_name(const json::value& config, const char* key) {
  const json::value* value = config.is_object() ? config.get_object().if_contains(key) : nullptr;
  if (value != nullptr && value->is_object()) value = value->get_object().if_contains("content");
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

// Ids of special tokens, and whether texts begin and end with them.
void put_special_ids(const TextSource& text, const ModelConfig& config, const text::Tokenizer& tokenizer,
                     Vocabulary& out) {
  const json::value settings = text.tokenizer_config.empty() ? json::value() : json::parse(text.tokenizer_config);
  const auto id_of = [&](const std::string& token) -> std::optional<TokenId> {
    return token.empty() ? std::nullopt : tokenizer.token_to_id(token);
  };
  out.bos_id = config.bos_id ? config.bos_id : id_of(text.bos_token);
  out.eos_id = id_of(text.eos_token);
  const auto ends = [&](TokenId id) { return std::ranges::find(config.eos_ids, id) != config.eos_ids.end(); };
  if (!config.eos_ids.empty() && (!out.eos_id || !ends(*out.eos_id))) out.eos_id = config.eos_ids.front();
  for (const TokenId id : config.eos_ids) {
    if (id != out.eos_id && !out.eot_id) out.eot_id = id;
  }
  out.pad_id = id_of(special_name(settings, "pad_token"));
  out.unk_id = id_of(special_name(settings, "unk_token"));
  const std::vector<TokenId> bare = tokenizer.encode("a", false);
  const std::vector<TokenId> framed = tokenizer.encode("a", true);
  // A token that texts begin with is that, whatever the configuration calls it.
  if (framed.size() > bare.size() && framed.front() != bare.front()) out.bos_id = framed.front();
  out.add_bos = out.bos_id && !framed.empty() && framed.front() == *out.bos_id && framed.size() > bare.size();
  out.add_eos = out.eos_id && !framed.empty() && framed.back() == *out.eos_id && framed.size() > bare.size();
}

// The first candidate whose tokenizer gives the checkpoint's ids.
Result<std::optional<Vocabulary>> first_that_agrees(std::vector<Vocabulary> candidates,
                                                    const text::Tokenizer& tokenizer) {
  Status last = unimplemented("no candidate");
  for (Vocabulary& candidate : candidates) {
    auto made = text::Tokenizer::from_vocabulary(candidate);
    if (!made.ok()) {
      last = made.status();
    } else if (same_ids(tokenizer, **made)) {
      return std::optional(std::move(candidate));
    } else {
      last = unimplemented("ids differ");
    }
  }
  return unimplemented(
      "tokenizer: no tokenizer that GGUF can name gives the checkpoint's ids on texts of many kinds ({}); the file "
      "would read texts otherwise than the model was trained to",
      last.message());
}

// tokenizer.json's BPE over the alphabet of bytes.
std::vector<Vocabulary> byte_bpe(const Vocabulary& base) {
  std::vector<Vocabulary> out;
  for (const std::string_view pre : kPreTokenizers) {
    out.push_back(base);
    out.back().model = "gpt2";
    out.back().pre = pre;
  }
  return out;
}

// SentencePiece's BPE: merges become scores, the sooner the higher.
std::vector<Vocabulary> scored_bpe(const Vocabulary& base) {
  Vocabulary scored = base;
  scored.model = "llama";
  scored.pre = "default";
  scored.merges.clear();
  std::unordered_map<std::string, size_t> rank_of;
  for (size_t rank = 0; rank < base.merges.size(); ++rank) {
    std::string joined = base.merges[rank];
    joined.erase(joined.find(' ', 1), 1);
    rank_of.emplace(std::move(joined), rank);
  }
  scored.scores.assign(scored.tokens.size(), -1e6f);
  for (size_t id = 0; id < scored.tokens.size(); ++id) {
    const std::string& token = scored.tokens[id];
    if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>'))
      scored.token_types[id] = VocabularyTokenType::kByte;
    if (scored.token_types[id] != VocabularyTokenType::kNormal) scored.scores[id] = 0;
    const auto rank = rank_of.find(token);
    if (rank != rank_of.end()) scored.scores[id] = -static_cast<float>(rank->second);
  }
  std::vector<Vocabulary> out;
  for (const bool space : {true, false}) {
    out.push_back(scored);
    out.back().add_space_prefix = space;
  }
  return out;
}

Result<Vocabulary> read_bpe(const json::value& file) {
  const json::value* model = file.is_object() ? file.get_object().if_contains("model") : nullptr;
  if (model == nullptr || !model->is_object()) return invalid_argument("tokenizer.json: \"model\" is missing");
  const json::object& object = model->get_object();
  const json::value* type = object.if_contains("type");
  if (type != nullptr && type->is_string() && type->get_string() != "BPE") {
    return unimplemented("tokenizer.json: a model of type {} is not written as GGUF yet; supported: BPE",
                         std::string_view(type->get_string()));
  }
  const json::value* vocab = object.if_contains("vocab");
  const json::value* merges = object.if_contains("merges");
  if (vocab == nullptr || !vocab->is_object() || merges == nullptr || !merges->is_array()) {
    return invalid_argument("tokenizer.json: \"model\" has no vocab and merges, expected those of BPE");
  }
  Vocabulary out;
  for (const auto& [token, id] : vocab->get_object()) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > (1 << 24))
      return invalid_argument("tokenizer.json: the id of {:?} is no number of a token", std::string_view(token));
    put_token(static_cast<size_t>(id.get_int64()), std::string(token), VocabularyTokenType::kNormal, out);
  }
  for (const json::value& merge : merges->get_array()) {
    if (merge.is_string()) {
      out.merges.emplace_back(merge.get_string());
    } else if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
               merge.get_array()[1].is_string()) {
      const std::string_view left = merge.get_array()[0].get_string();
      const std::string_view right = merge.get_array()[1].get_string();
      if (left.find(' ') != std::string_view::npos || right.find(' ') != std::string_view::npos)
        return unimplemented("tokenizer.json: a merge of {:?}: GGUF has no spelling for spaces in merges", left);
      out.merges.push_back(fmt::format("{} {}", left, right));
    } else {
      return invalid_argument("tokenizer.json: a merge is no pair of tokens");
    }
    if (out.merges.back().find(' ', 1) == std::string::npos)
      return invalid_argument("tokenizer.json: the merge {:?} is no pair of tokens", out.merges.back());
  }
  return out;
}

Result<Vocabulary> read_sentencepiece(const TextSource& text) {
  QUIRE_ASSIGN_OR_RETURN(const text::SentencePieceModel model,
                         text::parse_sentencepiece_model(text.sentencepiece_model));
  if (model.type != text::SentencePieceModelType::kBpe) {
    return unimplemented("tokenizer.model: SentencePiece's models other than BPE are not written as GGUF yet");
  }
  Vocabulary out;
  out.model = "llama";
  out.pre = "default";
  out.add_space_prefix = model.add_dummy_prefix;
  for (const text::SentencePiece& piece : model.pieces) {
    out.tokens.push_back(piece.text);
    out.scores.push_back(piece.score);
    out.token_types.push_back(static_cast<VocabularyTokenType>(piece.type));
  }
  return out;
}

}  // namespace

Result<std::optional<Vocabulary>> make_vocabulary(const TextSource& text, const ModelConfig& config) {
  if (text.tokenizer_json.empty() && text.sentencepiece_model.empty()) return std::optional<Vocabulary>();
  QUIRE_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::from_source(text));
  boost::system::error_code error;
  std::vector<Vocabulary> candidates;
  if (!text.sentencepiece_model.empty()) {
    QUIRE_ASSIGN_OR_RETURN(Vocabulary pieces, read_sentencepiece(text));
    const json::value settings = json::parse(text.tokenizer_config, error);
    if (!text.tokenizer_config.empty() && error) return invalid_argument("tokenizer_config.json: {}", error.message());
    put_added(added_tokens(settings), pieces);
    fill_up(config.vocab_size, pieces);
    put_special_ids(text, config, *tokenizer, pieces);
    candidates.push_back(std::move(pieces));
  }
  if (!text.tokenizer_json.empty()) {
    const json::value file = json::parse(text.tokenizer_json, error);
    if (error) return invalid_argument("tokenizer.json: {}", error.message());
    QUIRE_ASSIGN_OR_RETURN(Vocabulary base, read_bpe(file));
    put_added(added_tokens(file), base);
    fill_up(config.vocab_size, base);
    put_special_ids(text, config, *tokenizer, base);
    const bool has_bytes = std::ranges::find(base.tokens, "<0x0A>") != base.tokens.end();
    for (Vocabulary& candidate : has_bytes ? scored_bpe(base) : byte_bpe(base))
      candidates.push_back(std::move(candidate));
  }
  return first_that_agrees(std::move(candidates), *tokenizer);
}

void set_special_ids(std::optional<TokenId> bos, std::optional<TokenId> eos, std::optional<TokenId> eot,
                     const ModelConfig& config, GgufHeader& header) {
  // The names of a file's ids that end an answer, in the order in which they are given away.
  std::array<std::pair<const char*, std::optional<TokenId>>, 3> ends = {{{"eos", eos}, {"eot", eot}, {"eom", {}}}};
  for (const TokenId id : config.eos_ids) {
    if (std::ranges::any_of(ends, [id](const auto& end) { return end.second == id; })) continue;
    const auto free = std::ranges::find_if(ends, [](const auto& end) { return !end.second; });
    if (free == ends.end()) {
      log_warning("token {} ends an answer as well, for which a GGUF file has no place: its model will go on", id);
      continue;
    }
    free->second = id;
  }
  const auto set = [&](const char* name, std::optional<TokenId> id) {
    if (id) header.set(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*id));
  };
  set("bos", bos);
  for (const auto& [name, id] : ends) set(name, id);
}

void set_vocabulary(const Vocabulary& vocabulary, const ModelConfig& config, const std::string& chat_template,
                    GgufHeader& header) {
  const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
  header.set(key("model"), std::string_view(vocabulary.model));
  header.set(key("pre"), std::string_view(vocabulary.pre));
  header.set(key("tokens"), std::span<const std::string>(vocabulary.tokens));
  std::vector<int32_t> types;
  for (const VocabularyTokenType type : vocabulary.token_types) types.push_back(static_cast<int32_t>(type));
  header.set(key("token_type"), std::span<const int32_t>(types));
  if (!vocabulary.scores.empty()) header.set(key("scores"), std::span<const float>(vocabulary.scores));
  if (!vocabulary.merges.empty()) header.set(key("merges"), std::span<const std::string>(vocabulary.merges));
  const auto set_id = [&](const char* name, std::optional<TokenId> id) {
    if (id) header.set(key(name), static_cast<uint32_t>(*id));
  };
  set_special_ids(vocabulary.bos_id, vocabulary.eos_id, vocabulary.eot_id, config, header);
  set_id("unknown_token_id", vocabulary.unk_id);
  set_id("padding_token_id", vocabulary.pad_id);
  header.set(key("add_bos_token"), vocabulary.add_bos);
  header.set(key("add_eos_token"), vocabulary.add_eos);
  header.set(key("add_space_prefix"), vocabulary.add_space_prefix);
  if (!chat_template.empty()) header.set("tokenizer.chat_template", std::string_view(chat_template));
}

}  // namespace quire::quantize
