#include "checkpoint/folder_checkpoint.h"

#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr size_t kMostTextBytes = size_t{256} << 20;

// Older files of GPTQ, AWQ and ModelOpt have it beside config.json.
Status add_quantization(const ModelDirectory& directory, json::object& config) {
  constexpr std::pair<const char*, const char*> kFiles[] = {{"quantize_config.json", "gptq"},
                                                            {"quant_config.json", "awq"}};
  for (const auto& [name, method] : kFiles) {
    if (config.contains("quantization_config") || !directory.has(name)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(name));
    QUIRE_ASSIGN_OR_RETURN(json::object found, read_json_object(path, {}));
    if (!found.contains("quant_method")) found["quant_method"] = method;
    config["quantization_config"] = std::move(found);
  }
  constexpr const char* kModelopt = "hf_quant_config.json";
  if (config.contains("quantization_config") || !directory.has(kModelopt)) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(kModelopt));
  QUIRE_ASSIGN_OR_RETURN(const json::object found, read_json_object(path, {}));
  const json::value* said = found.if_contains("quantization");
  const json::value* algorithm =
      said == nullptr || !said->is_object() ? nullptr : said->get_object().if_contains("quant_algo");
  if (algorithm == nullptr || algorithm->is_null()) return {};  // of the cache alone
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", *algorithm}};
  return {};
}

Status read_config(const ModelDirectory& directory, FolderFiles& files) {
  if (!directory.has("config.json")) {
    return not_found("{}: there is no config.json, which says what model it is", directory.path().string());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve("config.json"));
  QUIRE_ASSIGN_OR_RETURN(json::object config, read_json_object(path, {}));
  QUIRE_RETURN_IF_ERROR(add_quantization(directory, config));
  auto quantization = QuantizationConfig::parse(config);
  if (!quantization.ok()) return quantization.status().with_prefix(path.string() + ": ");
  files.quantization = *std::move(quantization);
  files.config = std::move(config);
  return {};
}

// An empty object when there is no such file.
Result<json::object> read_optional_object(const ModelDirectory& directory, std::string_view name) {
  if (!directory.has(name)) return json::object();
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(name));
  return read_json_object(path, {});
}

Result<std::string> read_optional_text(const ModelDirectory& directory, std::string_view name) {
  if (!directory.has(name)) return std::string();
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(name));
  return read_text_file(path, kMostTextBytes);
}

// tokenizer_config.json's template: a string, or the entry "default" of a list.
Result<std::string> template_of(const json::object& tokenizer_config) {
  const json::value* value = tokenizer_config.if_contains("chat_template");
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string()) return std::string(value->get_string());
  const json::array* list = value->if_array();
  if (list == nullptr) {
    return data_loss("tokenizer_config.json: chat_template is {}, expected a string or a list", described(*value));
  }
  for (const json::value& entry : *list) {
    const json::object* object = entry.if_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
    const json::value* text = object == nullptr ? nullptr : object->if_contains("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      return data_loss("tokenizer_config.json: chat_template has an entry without a name and a template");
    }
    if (name->get_string() == "default") return std::string(text->get_string());
  }
  return std::string();
}

}  // namespace

Result<FolderFiles> read_folder_files(const ModelDirectory& directory) {
  FolderFiles files;
  QUIRE_RETURN_IF_ERROR(read_config(directory, files));
  QUIRE_ASSIGN_OR_RETURN(files.generation_config, read_optional_object(directory, "generation_config.json"));
  QUIRE_ASSIGN_OR_RETURN(files.tokenizer_json, read_optional_text(directory, "tokenizer.json"));
  QUIRE_ASSIGN_OR_RETURN(files.sentencepiece_model, read_optional_text(directory, "tokenizer.model"));
  QUIRE_ASSIGN_OR_RETURN(files.tokenizer_config, read_optional_object(directory, "tokenizer_config.json"));
  QUIRE_ASSIGN_OR_RETURN(files.chat_template, read_optional_text(directory, "chat_template.jinja"));
  if (files.chat_template.empty()) {
    QUIRE_ASSIGN_OR_RETURN(files.chat_template, template_of(files.tokenizer_config));
  }
  QUIRE_ASSIGN_OR_RETURN(files.sentence, read_sentence_files(directory));
  return files;
}

}  // namespace quire::checkpoint
