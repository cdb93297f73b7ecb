// What a request says its answer must be: response_format (OpenAI), structured_outputs (vLLM), and the guided_* fields
// that vLLM had before.
#pragma once

#include <optional>
#include <string>

#include "server/json_fields.h"
#include "types/structured_output.h"

namespace quire::server {

// Leaves `output` unset where the answer is free. `field`: the one that said it. What fails stays in `fields`; whether
// the output itself can be compiled is grammar/'s to say.
void read_structured_output(JsonFields& fields, std::optional<StructuredOutput>& output, std::string& field);

}  // namespace quire::server
