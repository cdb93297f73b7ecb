// What AMD's Quark writes as quantization_config: of all modules, of those that match a pattern, and of none of those
// that are left out.
#pragma once

#include "base/status.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/quantization_config.h"

namespace quire::checkpoint {

// Errors: unimplemented and data_loss, naming the field.
Status read_quark(const ConfigFields& fields, QuantizationConfig& out);

}  // namespace quire::checkpoint
