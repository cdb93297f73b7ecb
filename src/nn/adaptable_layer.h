// What requests' adapters may add to: a product of the model or an embedding, and the modules of the checkpoint whose
// outputs lie side by side in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/shard.h"

namespace quire::nn {

// What this rank has of a module's inputs, or of its outputs.
struct HeldPart {
  int64_t whole = 0;              // of the module, in all ranks
  std::vector<Range> taken = {};  // those here, in this order; none: all
  bool is_cut() const { return !taken.empty(); }
};

// Sizes and columns are those of this rank's product (nn/shard.h); modules are whole, as files have them.
struct AdaptableLayer {
  // kHeads: latent attention's projection of latents to keys and values, which is computed as two products of each
  // head: with the keys' matrix turned, that of queries, and the values'. A head's outputs in the module are its keys'
  // [key_dim], then its values' [value_dim].
  enum class Kind : uint8_t { kProduct, kHead, kEmbedding, kExperts, kHeads };
  // Outputs [first, first + size) are those of `module`, or what this rank has of them: a name as Hugging Face has it
  // without ".weight" ("model.layers.0.self_attn.q_proj"); of kExperts those of one expert.
  struct Part {
    std::string module;
    int64_t first = 0;
    int64_t size = 0;
    int32_t expert = 0;
    // Where its weight lies in the checkpoint, "<stored>.weight", and its bias beside it; empty: nowhere by itself.
    std::string stored = {};
    bool transposed = false;  // [in_features, size]; an embedding is that
    bool bias = false;
    HeldPart rows = {};  // which of the module's outputs they are
    int64_t module_rows() const { return rows.is_cut() ? rows.whole : size; }
  };

  int32_t index = 0;  // among all of the model's
  int32_t entry = 0;  // of its first product (of one expert, or one head) among the products of all of the model's
  Kind kind = Kind::kProduct;
  int64_t in_features = 0;  // of an embedding: ids
  int64_t out_features = 0;
  int32_t num_experts = 1;  // of kHeads: twice the heads, all keys' before all values'
  Range experts = {};       // of kExperts: those whose products are here
  int64_t key_dim = 0;      // of kHeads
  int64_t value_dim = 0;
  // Of kExperts: the parameter that has the matrices of all in Hugging Face's classes
  // ("model.layers.0.mlp.experts.gate_up_proj"), whatever the checkpoint has, and whether an expert's rows there are
  // gate's and up's in turns. Parts are of experts that have modules of their own, and there may be none.
  std::string stack = {};
  bool interleaved = false;
  std::vector<Part> parts;

  HeldPart inputs = {};      // which of the modules' inputs x has; an embedding has all
  HeldPart stack_rows = {};  // of kExperts, as Part::rows, of a stack that has gate's outputs before up's
  // Whether this rank adds what is added once: of products that ranks add up the first one does.
  bool adds_bias = true;
  bool is_held = true;  // false: another stage of a pipeline has it
  bool has_expert(int32_t expert) const {
    return kind != Kind::kExperts || (expert >= experts.first && expert < experts.end());
  }
  int64_t module_inputs() const { return inputs.is_cut() ? inputs.whole : in_features; }
  int64_t stack_outputs() const { return stack_rows.is_cut() ? stack_rows.whole : out_features; }
};

// Of a model, by their index.
using AdaptableLayers = std::vector<std::shared_ptr<const AdaptableLayer>>;

}  // namespace quire::nn
