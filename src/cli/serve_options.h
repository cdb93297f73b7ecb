// The flags of `quire serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/adapters.h"
#include "cli/hub_options.h"
#include "cli/ranks.h"
#include "server/kv_events.h"
#include "server/kv_transfer.h"
#include "server/server.h"
#include "types/engine_config.h"

namespace quire::cli {

struct NamedModel {
  std::string name;           // empty: --served-model-name, or its file's name
  std::string path;           // empty: the default model
  std::string hub_name = {};  // "ORG/NAME", where `path` was one until it was resolved
};

struct ServeOptions {
  EngineConfig engine;  // of every model
  NodeOptions nodes;
  HubFlags hub;                    // of every one that is named
  std::vector<NamedModel> models;  // none: the default model
  server::ServerConfig server;
  std::vector<std::string> lora_modules;  // each NAME=PATH, or a JSON object
  std::vector<LoraModule> adapters;       // these, read
  std::string kv_events_config;           // a JSON object
  server::KvEventsConfig kv_events;       // that, read
  std::string kv_transfer_config;         // a JSON object
  server::KvTransferConfig kv_transfer;   // that, read, where engine.kv_transfer
  std::string otlp_traces_endpoint;       // empty: the environment's, or none
  std::string generation_config = "auto";
  std::string api_key_file;
  std::string uds_mode = "0600";
  std::string admin_uds_mode = "0600";
  // Each a JSON list, or names separated by commas.
  std::vector<std::string> allowed_hosts, allowed_origins, allowed_methods, allowed_headers;
  double preparation_timeout_seconds = 10;
  double health_timeout_seconds = 60;
  double sleep_idle_seconds = -1;
  int64_t shutdown_timeout_seconds = 30;
  std::string log_format = "text";
  std::string log_level = "info";
  std::string uvicorn_log_level;  // empty: not given
  std::string config_file;        // for --help: it is read before the flags are parsed
  bool log_stats = true;
  std::vector<std::string> notes;  // about arguments that are taken and change nothing
};

// All that `quire serve` takes, vLLM's arguments included. `options` must outlive the parsing.
void add_serve_options(CLI::App& command, ServeOptions& options);

// Reads what flags name, and puts their texts where the server looks for them.
// Errors: invalid_argument, not_found; each says which flag.
Status complete_serve_options(ServeOptions& options);

}  // namespace quire::cli
