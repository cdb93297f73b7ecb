#include "cli/adapters.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "checkpoint/adapter_file.h"

namespace quire::cli {
namespace {

Status wrong_module(const std::string& text) {
  return invalid_argument(
      "--lora-modules: {} is neither NAME=PATH nor a JSON object of \"name\", \"path\" and perhaps "
      "\"base_model_name\".",
      text);
}

Result<LoraModule> read_object(const boost::json::value& entry, const std::string& text) {
  if (!entry.is_object()) return wrong_module(text);
  LoraModule module;
  for (const auto& [key, field] : entry.get_object()) {
    std::string* place = key == "name"              ? &module.name
                         : key == "path"            ? &module.path
                         : key == "base_model_name" ? &module.base
                                                    : nullptr;
    const bool is_left_out = field.is_null() && place == &module.base;
    if (place == nullptr || !(field.is_string() || is_left_out)) return wrong_module(text);
    if (field.is_string()) *place = field.get_string();
  }
  if (module.name.empty() || module.path.empty()) return wrong_module(text);
  return module;
}

}  // namespace

Result<std::vector<LoraModule>> read_lora_modules(const std::vector<std::string>& given, const EngineConfig& config) {
  std::vector<LoraModule> modules;
  for (const std::string& text : given) {
    if (!text.starts_with('{') && !text.starts_with('[')) {
      const size_t equals = text.find('=');
      if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) return wrong_module(text);
      modules.push_back({.name = text.substr(0, equals), .path = text.substr(equals + 1), .base = ""});
      continue;
    }
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(text, error);
    if (error) return wrong_module(text);
    const boost::json::array list = value.is_array() ? value.get_array() : boost::json::array{value};
    for (const boost::json::value& entry : list) {
      QUIRE_ASSIGN_OR_RETURN(LoraModule module, read_object(entry, text));
      modules.push_back(std::move(module));
    }
  }
  if (!modules.empty() && !config.enable_lora && !config.enable_prompt_adapter) {
    return invalid_argument("--lora-modules needs --enable-lora, or --enable-prompt-adapter.");
  }
  return modules;
}

Status no_such_base(const LoraModule& adapter) {
  return invalid_argument("--lora-modules: adapter {} is of \"{}\", and no model is called that.", adapter.name,
                          adapter.base);
}

Status load_adapters(engine::Engine& engine, const std::vector<LoraModule>& adapters) {
  for (const LoraModule& adapter : adapters) {
    Status loaded = engine.load_adapter(adapter.name, adapter.path);
    if (!loaded.ok()) return std::move(loaded).with_prefix(fmt::format("adapter {}: ", adapter.name));
  }
  return {};
}

CLI::Option* add_lora_modules_option(CLI::App& command, std::vector<std::string>& given) {
  return command
      .add_option("--lora-modules", given,
                  "Adapters by the names of requests' `model`: NAME=PATH, or {\"name\": N, \"path\": P, "
                  "\"base_model_name\": M}; several may follow")
      ->group("Adapters")
      ->type_name("NAME=PATH");
}

void add_lora_option(CLI::App& command, std::string& path) {
  command
      .add_option("--lora", path, "An adapter to answer with: PEFT's folder (LoRA, prompt tuning) or llama.cpp's file")
      ->group("Adapters")
      ->type_name("PATH");
}

Status make_place_for(const std::string& path, EngineConfig& config) {
  if (path.empty()) return {};
  const auto opened = checkpoint::AdapterFile::open(path);
  if (!opened.ok()) return Status(opened.status()).with_prefix("--lora: ");
  const checkpoint::AdapterFile& file = **opened;
  const auto at_least = [](int32_t& limit, int64_t wanted) {
    limit = static_cast<int32_t>(std::clamp<int64_t>(wanted, limit, std::numeric_limits<int32_t>::max()));
  };
  if (file.kind == checkpoint::AdapterKind::kLowRank) {
    config.enable_lora = true;
    config.max_loras = 1;
    for (const auto& factors : file.low_rank) {
      at_least(config.max_lora_rank, factors.up.shape[1] / std::max<int64_t>(1, factors.num_stacked));
    }
  } else {
    config.enable_prompt_adapter = true;
    at_least(config.max_prompt_adapter_token, file.prompt.shape[0]);
  }
  return {};
}

Result<std::string> load_only_adapter(engine::Engine& engine, const std::string& path) {
  if (path.empty()) return std::string();
  QUIRE_RETURN_IF_ERROR(load_adapters(engine, {{.name = path, .path = path, .base = ""}}));
  return path;
}

}  // namespace quire::cli
