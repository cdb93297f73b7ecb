// A checkpoint as a GGUF file will have it: metadata, tensors under GGUF's names, rows in GGUF's order.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "quantize/gguf_header.h"
#include "quantize/tensor_types.h"
#include "types/text_source.h"

namespace quire::quantize {

struct GgufSourceTensor {
  std::string name;    // GGUF's
  std::string module;  // Hugging Face's name without ".weight", as calibration knows it
  TensorView view;     // as it is stored in the source
  // Rows, of a bias numbers, of so many heads each, whose pairs that rotate together are halves of a head in the source
  // and neighbours in GGUF; 0: rows stay where they are.
  int32_t heads = 0;
  std::vector<float> made = {};  // numbers that the source does not have, in the place of `view`
  // Of a stack [experts, rows, columns] that the source keeps apart: each expert's matrix and module, in the place of
  // `view`'s data and `module`.
  std::vector<TensorView> experts = {};
  std::vector<std::string> expert_modules = {};
};

struct GgufSource {
  GgufHeader header;  // metadata; of tensors none
  std::vector<GgufSourceTensor> tensors;
  MixModel model;
};

// Of a GGUF file all of its metadata but what belongs to a split one; of a Hugging Face checkpoint what its
// config.json, tokenizer and chat template say (Llama, Mistral, Mixtral, Qwen2, Qwen3 and their mixtures of experts).
// The checkpoint must outlive it. Errors: unimplemented for other families, for fields that GGUF has no place for, for
// a tokenizer that no name of GGUF's stands for and for tensors without a name there.
Result<GgufSource> describe_source(const checkpoint::Checkpoint& checkpoint, const TextSource& text);

// Which row of the source is row `index` of a tensor of so many rows and heads, as above.
int64_t source_row(const GgufSourceTensor& tensor, int64_t num_rows, int64_t index);

}  // namespace quire::quantize
