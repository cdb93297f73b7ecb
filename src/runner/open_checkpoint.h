// The checkpoint that a configuration names.
#pragma once

#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "types/engine_config.h"

namespace quire::runner {

// Errors: those of Checkpoint::open; invalid_argument for an unknown load_format.
inline Result<std::shared_ptr<const checkpoint::Checkpoint>> open_checkpoint(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const checkpoint::LoadFormat format, checkpoint::parse_load_format(config.load_format));
  return checkpoint::Checkpoint::open(config.model, format);
}

}  // namespace quire::runner
