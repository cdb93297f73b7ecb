// Adapters that commands name: --lora-modules of those that answer many requests, --lora of those that answer one user.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "types/engine_config.h"

namespace quire::cli {

// An adapter that is there from the start.
struct LoraModule {
  std::string name;
  std::string path;
  std::string base;  // the model's name; empty: the first's
};

// --lora-modules, of commands whose requests name a model.
CLI::Option* add_lora_modules_option(CLI::App& command, std::vector<std::string>& given);
// Of each: NAME=PATH, or {"name": ..., "path": ..., "base_model_name": ...}, or a list of such objects. Errors:
// invalid_argument, also of adapters for which `config` has no place.
Result<std::vector<LoraModule>> read_lora_modules(const std::vector<std::string>& given, const EngineConfig& config);

// The error of one whose `base` no model is called.
Status no_such_base(const LoraModule& adapter);

// Errors: those of Engine::load_adapter(), beginning with which adapter it is.
Status load_adapters(engine::Engine& engine, const std::vector<LoraModule>& adapters);

// --lora PATH, as llama.cpp has it: one adapter, for all that the command asks the model.
void add_lora_option(CLI::App& command, std::string& path);
// Makes place for that adapter, whatever it is and takes. Nothing, where `path` is empty. Errors: those of
// AdapterFile::open().
Status make_place_for(const std::string& path, EngineConfig& config);
// Its name for requests; empty where `path` is. Errors: those of load_adapters().
Result<std::string> load_only_adapter(engine::Engine& engine, const std::string& path);

}  // namespace quire::cli
