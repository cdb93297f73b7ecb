// Which type each tensor of a GGUF file is given: llama-quantize's mixes, under its names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace quire::quantize {

struct GgufMix {
  std::string_view name;   // "q4_k_m"
  DType base;              // of most matrices
  uint32_t file_type = 0;  // general.file_type
  bool rounds = true;      // false: matrices are converted alone (f32, f16, bf16)
};

// By its name, in either case; "q4_k" and "q5_k" are the mixes of that name with "_m", as llama-quantize has it.
// Errors: invalid_argument with the names that there are.
Result<GgufMix> find_gguf_mix(std::string_view name);
std::string gguf_mix_names();  // "q4_0, q4_1, ..."

// What the choice depends on beside a tensor's own name.
struct MixModel {
  std::string architecture;  // "llama"
  int32_t num_layers = 0;
  int32_t num_experts = 0;  // 0: dense
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  bool has_output = false;      // a matrix of its own for the logits: else the embedding is that as well
  bool has_importance = false;  // an importance matrix is there
};

// The type of a tensor that is stored as `stored` in the source. `name`: GGUF's ("blk.0.attn_q.weight"). Vectors become
// F32; routers and tables of positions stay as they are stored; rows that are no whole blocks of the mix's type take
// one of blocks of 32 (Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0), and where they are no multiple of 32 either F16.
DType choose_type(const GgufMix& mix, const MixModel& model, std::string_view name, DType stored, const Shape& shape);

}  // namespace quire::quantize
