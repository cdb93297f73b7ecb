// A Hugging Face checkpoint of 16 or 32 bits rounded to 4-bit codes in groups and written as compressed-tensors keeps
// them ("pack-quantized", W4A16), by GPTQ's algorithm, layer by layer.
#pragma once

#include <filesystem>

#include "quantize/gptq.h"
#include "quantize/write_gguf.h"

namespace quire::quantize {

struct CompressedOptions {
  std::filesystem::path source;  // the checkpoint's folder, whose tokenizer and other files are copied
  std::filesystem::path out;     // a folder that does not exist yet
  uint64_t source_hash = 0;      // hash_checkpoint()
  int64_t group_size = 0;        // 0: the largest of 128, 64 and 32 that all matrices' columns are multiples of
  double damping = 0.01;
};

// Matrices of the layers' products become codes, those of experts with tensors of their own as well; embeddings, head,
// routers, norms and biases stay as they are stored. `walk`:
// the text to calibrate with, through the same checkpoint, not begun; nullptr: each weight is rounded by itself. A
// layer is calibrated with what the rounded layers before it give. While it is written the folder is called
// OUT.partial; a call that was cut is gone on with at its first layer that was not done. Errors: invalid_argument for a
// GGUF file, a checkpoint that is quantised already, a group size that does not divide the columns; unimplemented for
// experts and matrices that are stored transposed; those of files.
Result<WrittenFile> write_compressed(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, LayerWalk* walk,
                                     ops::Backend& backend, const CompressedOptions& options, const Progress& progress);

}  // namespace quire::quantize
