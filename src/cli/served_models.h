// The models that `quire serve` is told of: MODEL, or --model NAME=MODEL several times.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"
#include "cli/serve_options.h"
#include "comm/network_group.h"
#include "server/server.h"

namespace quire::cli {

// "NAME=PATH", or "PATH": anything that exists, or whose part before "=" could be no name.
NamedModel named_model(std::string_view text);

void add_models_argument(CLI::App& command, ServeOptions& options);

// Puts paths in the place of models' names, downloading what is not there. Errors: those of resolve_model().
Status resolve_models(ServeOptions& options);

// Where there are several, each is planned here, so that all are known to be good and how much memory each takes:
//   KV cache of one = (memory of all - its weights and workspace) * memory utilization / models loaded at once
// ranks: where one model is computed by several processes without memory in common. Sets in options.server what that
// takes. REQUIRES: resolve_models(). The metrics must outlive what is loaded. Errors: invalid_argument (flags that are
// of one model), and those of planning.
Result<std::vector<server::ModelSource>> model_sources(ServeOptions& options, Metrics& metrics,
                                                       comm::NetworkGroup* ranks = nullptr);

}  // namespace quire::cli
