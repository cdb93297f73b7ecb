#include "runner/text_files.h"

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "runner/open_checkpoint.h"

namespace quire::runner {
namespace {

constexpr size_t kMostBytes = 256u << 20;

// tokenizer_config.json names special tokens as strings or as {"content": ...}.
std::string special_token(const boost::json::object& config, std::string_view key) {
  const boost::json::value* value = config.if_contains(key);
  if (value == nullptr) return {};
  if (const boost::json::object* object = value->if_object()) value = object->if_contains("content");
  if (value == nullptr || !value->is_string()) return {};
  return std::string(value->get_string());
}

std::string token_spelling(const Vocabulary& vocabulary, std::optional<TokenId> id) {
  if (!id || *id < 0 || static_cast<size_t>(*id) >= vocabulary.tokens.size()) return {};
  return vocabulary.tokens[static_cast<size_t>(*id)];
}

// config_sentence_transformers.json: {"prompts": {"query": "..."}, "default_prompt_name": null}.
Status read_prompts(const boost::json::object& model, TextSource& text) {
  const boost::json::value* prompts = model.if_contains("prompts");
  if (prompts != nullptr && prompts->is_object()) {
    for (const auto& [name, prompt] : prompts->get_object()) {
      if (!prompt.is_string()) {
        return data_loss("config_sentence_transformers.json: the prompt \"{}\" is no string", std::string_view(name));
      }
      text.prompts.emplace_back(name, prompt.get_string());
    }
  }
  const boost::json::value* usual = model.if_contains("default_prompt_name");
  if (usual != nullptr && usual->is_string()) text.default_prompt = usual->get_string();
  return {};
}

}  // namespace

Status read_tokenizer_files(const std::filesystem::path& path, TextSource& text) {
  const bool directory = std::filesystem::is_directory(path);
  const std::filesystem::path folder = directory ? path : path.parent_path();
  std::filesystem::path file = path;
  if (directory) {
    file = path / "tokenizer.json";
    if (!std::filesystem::exists(file) && std::filesystem::exists(path / "tokenizer.model")) {
      file = path / "tokenizer.model";
    }
  }
  text.tokenizer_json.clear();
  text.sentencepiece_model.clear();
  const bool sentencepiece = file.extension() == ".model";
  std::string& target = sentencepiece ? text.sentencepiece_model : text.tokenizer_json;
  QUIRE_ASSIGN_OR_RETURN(target, checkpoint::read_text_file(file, kMostBytes));
  const std::filesystem::path beside = folder / "tokenizer_config.json";
  if (sentencepiece && std::filesystem::exists(beside)) {
    QUIRE_ASSIGN_OR_RETURN(text.tokenizer_config, checkpoint::read_text_file(beside, kMostBytes));
  }
  return {};
}

Result<TextSource> read_text_source(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint) {
  TextSource text;
  text.vocabulary = checkpoint.vocabulary();
  text.tokenizer_json = checkpoint.tokenizer_json();
  text.sentencepiece_model = checkpoint.sentencepiece_model();
  text.tokenizer_config = boost::json::serialize(checkpoint.tokenizer_config());
  text.chat_template = checkpoint.chat_template();
  if (text.vocabulary) {
    text.bos_token = token_spelling(*text.vocabulary, text.vocabulary->bos_id);
    text.eos_token = token_spelling(*text.vocabulary, text.vocabulary->eos_id);
  } else {
    text.bos_token = special_token(checkpoint.tokenizer_config(), "bos_token");
    text.eos_token = special_token(checkpoint.tokenizer_config(), "eos_token");
  }
  QUIRE_RETURN_IF_ERROR(read_prompts(checkpoint.sentence_files().model, text));
  const boost::json::value* side = checkpoint.tokenizer_config().if_contains("truncation_side");
  text.truncates_left = side != nullptr && *side == "left";
  if (!config.tokenizer.empty()) {
    text.vocabulary.reset();
    QUIRE_RETURN_IF_ERROR(read_tokenizer_files(config.tokenizer, text));
  }
  if (!config.chat_template.empty()) {
    const bool inline_template =
        config.chat_template.find("{%") != std::string::npos || config.chat_template.find("{{") != std::string::npos;
    if (inline_template) {
      text.chat_template = config.chat_template;
    } else {
      QUIRE_ASSIGN_OR_RETURN(text.chat_template, checkpoint::read_text_file(config.chat_template, kMostBytes));
    }
  }
  return text;
}

Result<TextSource> open_text_source(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const checkpoint::Checkpoint> checkpoint, open_checkpoint(config));
  TextSource text;
  if (!config.skip_tokenizer_init) {
    QUIRE_ASSIGN_OR_RETURN(text, read_text_source(config, *checkpoint));
  }
  if (!checkpoint->generation_config().empty()) {
    text.generation_config = boost::json::serialize(checkpoint->generation_config());
  }
  return text;
}

}  // namespace quire::runner
