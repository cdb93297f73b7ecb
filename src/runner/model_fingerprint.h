// What keys and values depend on, as a name: two engines of the same fingerprint compute the same bits for the same
// tokens. All bytes of the model's files go into it, so that a model that was changed in place is another.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "runner/memory_planner.h"
#include "types/engine_config.h"

namespace quire::runner {

// 32 hexadecimal digits. kernels: what computes, without how many threads do. Errors: not_found, data_loss, where a
// file cannot be read.
Result<std::string> model_fingerprint(const EngineConfig& config, const PlannedModel& planned,
                                      std::string_view kernels);

// Which model lies there, told by its files' names and sizes and a sample of their bytes: their ends and a page in
// every 64th part. 32 hexadecimal digits. It takes no longer for large files; what was changed in single bytes between
// is not seen. Errors: those of model_fingerprint().
Result<std::string> sampled_model_fingerprint(const std::string& model);

}  // namespace quire::runner
