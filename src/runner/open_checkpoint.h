// The checkpoint that a configuration names.
#pragma once

#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "types/engine_config.h"

namespace quire::runner {

// Errors: those of Checkpoint::open.
inline Result<std::shared_ptr<const checkpoint::Checkpoint>> open_checkpoint(const EngineConfig& config) {
  return checkpoint::Checkpoint::open(config.model, config.load_format);
}

}  // namespace quire::runner
