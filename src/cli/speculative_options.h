// Options of speculation: vLLM's --speculative-config, and the flags of older versions.
#pragma once

#include <CLI/CLI.hpp>

#include "types/engine_config.h"

namespace quire::cli {

// `config` must outlive the parsing.
void add_speculative_options(CLI::App& app, EngineConfig& config);

}  // namespace quire::cli
