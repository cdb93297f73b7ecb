// A model by its name on the Hub: its flags, what the environment says of the Hub, and the one way from MODEL to files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "hub/options.h"
#include "hub/selection.h"
#include "types/engine_config.h"

namespace quire::cli {

struct HubFlags {
  std::string revision = hub::kDefaultRevision;
  std::string download_dir;  // empty: the environment's
  std::string token;         // empty: the environment's
};

void add_hub_options(CLI::App& app, HubFlags& flags);

// The flags, and where they say nothing: HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, the token's file,
// HF_HUB_OFFLINE, SSL_CERT_FILE, SSL_CERT_DIR, as huggingface_hub reads them.
hub::HubOptions hub_options(const HubFlags& flags);

// Puts a path that exists in the place of config.model: the default model for an empty one, a path as it is, and for a
// name on the Hub what is cached or downloaded (`need` of it); the name goes into config.served_model_name.
// Errors: not_found, saying how to get it, and those of hub::pull.
Status resolve_model(EngineConfig& config, const HubFlags& flags, hub::Need need = hub::Need::kAll);

// For people: the name on the Hub where it has one, else the path.
const std::string& shown_model(const EngineConfig& config);

}  // namespace quire::cli
