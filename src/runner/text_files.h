// Where a model's tokenizer and chat template come from.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "types/engine_config.h"
#include "types/text_source.h"

namespace quire::checkpoint {
class Checkpoint;
}

namespace quire::runner {

// Puts a tokenizer.json, a SentencePiece .model (with the tokenizer_config.json beside it) or what a directory holds of
// them in place of what `text` has. Errors: not_found.
Status read_tokenizer_files(const std::filesystem::path& path, TextSource& text);

// The checkpoint's own, with config.tokenizer (a tokenizer.json, a .model, or a directory that holds one) and
// config.chat_template (a file, or the template itself) in their place where they are set. Errors: not_found for files
// that do not exist.
Result<TextSource> read_text_source(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint);

// What an engine wants to know of the model that config names: the above, of skip_tokenizer_init only the
// generation_config. Opens the checkpoint and reads no weight. Errors: those above and Checkpoint::open's.
Result<TextSource> open_text_source(const EngineConfig& config);

}  // namespace quire::runner
