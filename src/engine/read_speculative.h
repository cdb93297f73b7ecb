// vLLM's "speculative_config" as it comes from a command line or a JSON object.
#pragma once

#include <boost/json.hpp>

#include "base/status.h"
#include "types/speculative_config.h"

namespace quire::engine {

// Members and words are vLLM's; "always" is ours. Without a method the name of the model says it ("ngram", "[ngram]",
// "suffix"), or lookup lengths do. Members that ask for nothing (null, false) are taken in silence.
// Errors: invalid_argument naming the member: unknown, of another type, out of range, or of what is not built.
Result<SpeculativeConfig> read_speculative_config(const boost::json::object& object);

}  // namespace quire::engine
