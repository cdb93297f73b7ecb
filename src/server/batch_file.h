// A file of batches' lines answered by an engine, without a server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "server/server.h"

namespace quire::server {

struct BatchFileOptions {
  std::string input;
  std::string output;       // lines that are in it already are not asked again
  int64_t concurrency = 8;  // requests at once
};

struct BatchFileResult {
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;   // answered with an error
  int64_t skipped = 0;  // found in the output
};

// Errors: not_found; invalid_argument, saying which lines cannot be asked, or that answers cannot be written there.
Status check_batch_files(const std::string& input, const std::string& output);

// progress: called now and then, on this thread.
// Errors: those of check_batch_files(); unavailable when the output cannot be written or the engine fails.
Result<BatchFileResult> run_batch_file(const ServerConfig& config, engine::Engine& engine,
                                       const BatchFileOptions& options,
                                       const std::function<void(const BatchFileResult&)>& progress);

}  // namespace quire::server
