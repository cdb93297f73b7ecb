#include "checkpoint/folder_checkpoint.h"

#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr size_t kMostTextBytes = size_t{256} << 20;

std::string_view text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}

// Whether all groups of compressed-tensors have weights of 8-bit floats.
bool are_eight_bit_floats(const json::object& quantization) {
  const json::value* groups = quantization.if_contains("config_groups");
  if (groups == nullptr || !groups->is_object()) return false;
  for (const auto& [name, group] : groups->get_object()) {
    const json::value* weights = group.is_object() ? group.get_object().if_contains("weights") : nullptr;
    if (weights == nullptr || !weights->is_object()) return false;
    const json::value* bits = weights->get_object().if_contains("num_bits");
    if (bits == nullptr || !bits->is_int64() || bits->get_int64() != 8) return false;
    if (text_of(weights->get_object(), "type") != "float") return false;
  }
  return true;
}

// Weights of 8-bit floats with scales beside them, as nn/scaled_weights.h reads them.
bool is_supported(const json::object& quantization) {
  const std::string_view method = text_of(quantization, "quant_method");
  if (method == "fp8") return !text_of(quantization, "fmt").starts_with("e5");
  if (method == "modelopt") return text_of(quantization, "quant_algo") == "FP8";
  return method == "fbgemm_fp8" || (method == "compressed-tensors" && are_eight_bit_floats(quantization));
}

Result<json::object> read_config(const ModelDirectory& directory) {
  if (!directory.has("config.json")) {
    return not_found("{}: there is no config.json, which says what model it is", directory.path().string());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve("config.json"));
  QUIRE_ASSIGN_OR_RETURN(json::object config, read_json_object(path, {}));
  const json::value* quantization = config.if_contains("quantization_config");
  if (quantization == nullptr || quantization->is_null()) return config;
  const json::object* object = quantization->if_object();
  if (object != nullptr && is_supported(*object)) return config;
  const json::value* method = object == nullptr ? nullptr : object->if_contains("quant_method");
  return unimplemented(
      "{}: quantization_config with quant_method {} is not supported yet; supported: weights of 8-bit floats (fp8, "
      "fbgemm_fp8, modelopt, compressed-tensors), a checkpoint in F32, F16 or BF16, or a GGUF file",
      path.string(), method != nullptr && method->is_string() ? in_quotes(method->get_string()) : "(not named)");
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
  QUIRE_ASSIGN_OR_RETURN(files.config, read_config(directory));
  QUIRE_ASSIGN_OR_RETURN(files.generation_config, read_optional_object(directory, "generation_config.json"));
  QUIRE_ASSIGN_OR_RETURN(files.tokenizer_json, read_optional_text(directory, "tokenizer.json"));
  QUIRE_ASSIGN_OR_RETURN(files.sentencepiece_model, read_optional_text(directory, "tokenizer.model"));
  QUIRE_ASSIGN_OR_RETURN(files.tokenizer_config, read_optional_object(directory, "tokenizer_config.json"));
  QUIRE_ASSIGN_OR_RETURN(files.chat_template, read_optional_text(directory, "chat_template.jinja"));
  if (files.chat_template.empty()) {
    QUIRE_ASSIGN_OR_RETURN(files.chat_template, template_of(files.tokenizer_config));
  }
  return files;
}

}  // namespace quire::checkpoint
