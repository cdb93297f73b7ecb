// The numbers that define a model, read by models/<family>.cpp from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

// Rotary position embedding (Su et al., 2021) and how it is stretched beyond the trained context.
struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // leading dimensions of a head that rotate; even, <= head_dim
  // Pairs that rotate together: (i, i + rotary_dim/2) as Hugging Face stores heads, or (2i, 2i+1)
  // as GGUF does for llama.
  bool interleaved = false;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;       // llama3, yarn
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn (Peng et al., 2023)
  double beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor;  // yarn: scales cos and sin; default 0.1 ln(factor) + 1
  double mscale = 0.0;                     // yarn; 0 = not given
  double mscale_all_dim = 0.0;             // yarn; 0 = not given
  bool truncate = true;                    // yarn: round the correction range to whole dimensions
};

struct ModelConfig {
  std::string architecture;  // registry key: "LlamaForCausalLM"
  std::string name;          // for people
  std::string dtype;         // of the stored weights, for people: "bfloat16", "Q4_1", ...
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t max_position = 0;  // tokens the model was trained for
  double rms_norm_eps = 1e-5;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::vector<int32_t> layer_windows;  // [num_layers]: positions a layer sees, its own included; 0: all. Empty: all 0
  RopeConfig rope;
  std::optional<TokenId> bos_id;
  std::vector<TokenId> eos_ids;  // any of them ends an answer
};

}  // namespace quire
