// Factors of a module that is computed as several products, taken apart into those of each.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/adapter_file.h"
#include "nn/adaptable_layer.h"

namespace quire::runner {

struct SplitFactors {
  struct One {
    checkpoint::AdapterFile::LowRank pair;
    nn::AdaptableLayer::Part part;
  };
  std::vector<One> all;
  std::vector<std::unique_ptr<uint8_t[]>> memory;  // of factors that are not the file's own
};

// What this rank has of a product's: the columns of `down` that its inputs are, and the rows of `up` that are its
// outputs. REQUIRES: the factors are of the module's sizes, in F32, F16 or BF16; an embedding is not cut.
SplitFactors own_factors(const checkpoint::AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer,
                         const nn::AdaptableLayer::Part& part);

// Of latent attention's kv_b_proj, W + scale * B A of latents c. A head's keys (W_k + scale * B_k A) c meet its query q
// as W_k^T q + scale * A^T (B_k^T q) meets c, and what it reads of c is projected by W_v + scale * B_v A: two products
// with factors of the same rank, of which all heads' keys share A^T and all values A. Shared ones are the same tensor.
// Of this rank's heads alone.
// REQUIRES: the layer is kHeads, and the factors are of its sizes, in F32, F16 or BF16.
SplitFactors split_heads(const checkpoint::AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer);

// Of a stack of experts: what this rank has of each expert's, with gate's outputs before up's. REQUIRES: the layer is
// kExperts with a stack, and the factors are of its sizes, the one way or the other, in F32, F16 or BF16.
SplitFactors split_experts(const checkpoint::AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer);

}  // namespace quire::runner
