// The one list of families.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace quire::models {

// By Hugging Face's "architectures" entry. Errors: unimplemented naming the architecture and those
// that exist.
Result<Family> find_family(const boost::json::object& config);

std::vector<std::string> supported_architectures();

}  // namespace quire::models
