// The one list of families.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace quire::models {

// By config.json's "architectures", or by what a GGUF file's architecture is called there. Errors: unimplemented naming
// the architecture and those that exist.
Result<Family> find_family(const checkpoint::Checkpoint& checkpoint);
Result<Family> find_family(const boost::json::object& config);

// The model's configuration, from config.json or from GGUF metadata.
Result<ModelConfig> read_model_config(const Family& family, const checkpoint::Checkpoint& checkpoint);

std::vector<std::string> supported_architectures();

}  // namespace quire::models
