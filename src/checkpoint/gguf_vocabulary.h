// GGUF's tokenizer metadata as a Vocabulary.
#pragma once

#include <optional>

#include "base/status.h"
#include "checkpoint/gguf_metadata.h"
#include "types/vocabulary.h"

namespace quire::checkpoint {

// nullopt when the file has no tokenizer. Flags that the file leaves out have llama.cpp's defaults for its tokenizer
// model and pre-tokenizer. A special id outside the vocabulary is dropped with a warning, as llama.cpp does: -1 for
// "none" is common. Errors: data_loss naming the key, for lists that do not belong together and values that mean
// nothing.
Result<std::optional<Vocabulary>> read_gguf_vocabulary(const GgufMetadata& metadata);

}  // namespace quire::checkpoint
