// A checkpoint of 16 or 32 bits rounded and written as a GGUF file.
#pragma once

#include <filesystem>

#include "base/thread_pool.h"
#include "quantize/collect_importance.h"
#include "quantize/gguf_source.h"

namespace quire::quantize {

struct GgufOptions {
  GgufMix mix;
  std::filesystem::path out;      // does not exist yet
  uint64_t source_hash = 0;       // of the checkpoint, to go on with what was begun (hash_checkpoint())
  bool allow_requantize = false;  // of weights that are blocks already, whose errors add up
};

struct WrittenFile {
  int64_t bytes = 0;
  int64_t tensors = 0;
  int64_t tensors_found_done = 0;  // by an earlier call that was cut
  std::map<std::string, int64_t> bytes_by_type;
};

// A number that two checkpoints share whose tensors have the same names, types, shapes and first bytes.
uint64_t hash_checkpoint(const checkpoint::Checkpoint& checkpoint);

// Tensor by tensor, of each some rows at a time. importance: may be empty.
// Errors: invalid_argument for a checkpoint that is quantised already and for a number that a format has no room for,
// naming the tensor; those of PartialFile.
Result<WrittenFile> write_gguf(GgufSource source, const ImportanceMatrix& importance, const GgufOptions& options,
                               ThreadPool& threads, const Progress& progress);

}  // namespace quire::quantize
