// What C and Python say as JSON objects: an engine's configuration and how tokens are chosen.
#pragma once

#include <string_view>

#include "base/status.h"
#include "types/engine_config.h"
#include "types/sampling_params.h"

namespace quire::c_api {

// {"max_model_len": 2048, ...} over what `config` has: names of EngineConfig, and vLLM's for those that have another
// one here. Errors: invalid_argument with param(): no JSON object, an unknown name, a value of another type.
Status read_config(std::string_view text, EngineConfig& config);

// {"temperature": 0, ...} over what `params` has: vLLM's names, "structured_outputs" included. "max_tokens": null is no
// bound. Errors: invalid_argument with param(), as above. Ranges are validate()'s.
Status read_sampling(std::string_view text, SamplingParams& params);

}  // namespace quire::c_api
