#include "checkpoint/sentence_files.h"

#include "base/parse_json.h"
#include "checkpoint/directory_files.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/text_quote.h"
#include "checkpoint/whole_file.h"
#include "tensor/stored_values.h"
#include "types/sentence_file_names.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr size_t kMostModulesBytes = size_t{1} << 20;

std::string_view string_at(const json::object& from, std::string_view key) {
  const json::value* value = from.if_contains(key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}
std::string_view string_at(const json::value& from, std::string_view key) {
  const json::object* object = from.if_object();
  return object == nullptr ? std::string_view() : string_at(*object, key);
}

Result<json::object> read_object(const ModelDirectory& directory, std::string_view name) {
  if (!directory.has(name)) return json::object();
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(name));
  return read_json_object(path, {});
}

Result<json::array> read_modules(const ModelDirectory& directory) {
  if (!directory.has(kModulesFile)) return json::array();
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, directory.resolve(kModulesFile));
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMostModulesBytes));
  boost::system::error_code error;
  const json::value value = parse_json(text, error);
  if (error) return data_loss("{}: {}", path.string(), error.message());
  if (!value.is_array()) return data_loss("{}: is {}, expected a list of modules", path.string(), described(value));
  return value.get_array();
}

Result<ModelDirectory> folder_of(const ModelDirectory& directory, const json::value& module) {
  const std::string_view folder = string_at(module, "path");
  if (!folder.empty() && directory.has(folder)) return directory.folder(folder);
  return data_loss("{}: modules.json names a module {} in {}, which is not there", directory.path().string(),
                   in_quotes(module_kind(module)), in_quotes(folder));
}

Result<int64_t> size_at(const json::object& config, std::string_view key) {
  constexpr int64_t kMost = 1 << 16;
  const json::value* value = config.if_contains(key);
  if (value != nullptr && value->is_int64() && value->get_int64() > 0 && value->get_int64() <= kMost) {
    return value->get_int64();
  }
  return data_loss("{} is {}, expected a number from 1 to {}", key, value == nullptr ? "missing" : described(*value),
                   kMost);
}

Result<std::vector<float>> floats_of(const SafetensorsFile& file, std::string_view name, const Shape& shape) {
  for (const SafetensorsTensor& tensor : file.tensors) {
    if (tensor.name != name) continue;
    if (!(tensor.view.shape == shape) || !is_weight_format(tensor.view.dtype)) {
      return data_loss("{} is {} of {}, expected {} numbers", in_quotes(name), tensor.view.shape.to_string(),
                       quire::name(tensor.view.dtype), shape.to_string());
    }
    std::vector<float> values(static_cast<size_t>(shape.num_elements()));
    read_stored_row(tensor.view.dtype, tensor.view.data, shape.num_elements(), values.data());
    return values;
  }
  return data_loss("{} is missing", in_quotes(name));
}

Result<DenseModule> read_dense(const ModelDirectory& folder) {
  constexpr size_t kMostBytes = size_t{1} << 30;
  DenseModule dense;
  QUIRE_ASSIGN_OR_RETURN(const json::object config, read_object(folder, "config.json"));
  QUIRE_ASSIGN_OR_RETURN(dense.in_features, size_at(config, "in_features"));
  QUIRE_ASSIGN_OR_RETURN(dense.out_features, size_at(config, "out_features"));
  dense.activation = string_at(config, "activation_function");
  const std::string_view input = string_at(config, "module_input_name");
  if (!input.empty() && input != "sentence_embedding") {
    return unimplemented("a Dense module of {} is not built yet; built: of sentence_embedding", in_quotes(input));
  }
  const json::value* residual = config.if_contains("use_residual");
  dense.adds_input = residual != nullptr && residual->is_bool() && residual->get_bool();
  if (!folder.has("model.safetensors")) {
    return unimplemented(
        "a Dense module's weights are read from model.safetensors, which is not there: save the model "
        "with safe_serialization");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path path, folder.resolve("model.safetensors"));
  QUIRE_ASSIGN_OR_RETURN(const auto bytes, WholeFile::read(path, kMostBytes));
  QUIRE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::parse(bytes->bytes()));
  QUIRE_ASSIGN_OR_RETURN(dense.weight, floats_of(file, "linear.weight", {dense.out_features, dense.in_features}));
  if (dense.adds_input && dense.in_features != dense.out_features) {
    QUIRE_ASSIGN_OR_RETURN(dense.residual, floats_of(file, "residual.weight", {dense.out_features, dense.in_features}));
  }
  const json::value* bias = config.if_contains("bias");
  if (bias != nullptr && bias->is_bool() && !bias->get_bool()) return dense;
  QUIRE_ASSIGN_OR_RETURN(dense.bias, floats_of(file, "linear.bias", {dense.out_features}));
  return dense;
}

}  // namespace

std::string_view module_kind(const json::value& module) {
  const std::string_view type = string_at(module, "type");
  return type.substr(type.rfind('.') + 1);
}

Result<SentenceFiles> read_sentence_files(const ModelDirectory& directory) {
  SentenceFiles files;
  QUIRE_ASSIGN_OR_RETURN(files.modules, read_modules(directory));
  for (const std::string_view name : kSentenceTransformerFiles) {
    if (!directory.has(name)) continue;
    QUIRE_ASSIGN_OR_RETURN(files.transformer, read_object(directory, name));
    break;
  }
  QUIRE_ASSIGN_OR_RETURN(files.model, read_object(directory, kSentenceModelFile));
  if (files.present()) {
    QUIRE_ASSIGN_OR_RETURN(files.tokenizer, read_object(directory, "tokenizer_config.json"));
  }
  for (const json::value& module : files.modules) {
    const std::string_view kind = module_kind(module);
    if (kind != "Pooling" && kind != "Dense" && kind != "LogitScore") continue;
    QUIRE_ASSIGN_OR_RETURN(const ModelDirectory folder, folder_of(directory, module));
    if (kind == "Pooling") {
      QUIRE_ASSIGN_OR_RETURN(files.pooling, read_object(folder, "config.json"));
      continue;
    }
    if (kind == "LogitScore") {
      QUIRE_ASSIGN_OR_RETURN(files.score, read_object(folder, "config.json"));
      continue;
    }
    auto dense = read_dense(folder);
    if (!dense.ok()) return dense.status().with_prefix(folder.path().string() + ": ");
    files.dense.push_back(std::move(*dense));
  }
  return files;
}

}  // namespace quire::checkpoint
