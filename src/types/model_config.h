// The numbers that define a model, read by models/<family>.cpp from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "types/activation.h"
#include "types/ids.h"
#include "types/moe_config.h"
#include "types/pooling.h"

namespace quire {

// kDynamic is kNone within the trained length. Beyond it the base, and with it every cached key, would change with each
// token, so that is not served.
enum class RopeScaling { kNone, kDynamic, kLinear, kLlama3, kYarn, kLongRope, kProportional };

// Rotary position embedding (Su et al., 2021) and how it is stretched beyond the trained context.
struct RopeConfig {
  double theta = 10000.0;
  int32_t rotary_dim = 0;  // leading dimensions of a head that rotate; even, <= head_dim
  // Pairs that rotate together: (i, i + rotary_dim/2) as Hugging Face stores heads, or (2i, 2i+1)
  // as GGUF does for llama.
  bool interleaved = false;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;       // llama3, yarn, longrope
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn (Peng et al., 2023)
  double beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor;  // yarn, longrope: scales cos and sin
  double mscale = 0.0;                     // yarn; 0 = not given
  double mscale_all_dim = 0.0;             // yarn; 0 = not given
  bool truncate = true;                    // yarn: round the correction range to whole dimensions
  // longrope (Ding et al., 2024): divisors of the frequencies, [rotary_dim / 2], of sequences that end within
  // original_max_position and of those that go beyond it.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  double turning_share = 1;  // proportional: of the pairs, the first; the others stand still
};

// Queries of far positions are multiplied by 1 + strength * ln(1 + floor((position + shift) / period)), so that
// attention over many tokens is as sharp as over few (Nakanishi, 2025).
struct QueryGrowth {
  double strength = 0;  // 0: they are not
  double period = 1;
  int64_t shift = 0;
  bool of_unrotated = false;  // of the layers alone that do not rotate
};

// What OPT alone says of itself.
struct OptConfig {
  int64_t embedding_size = 0;  // of a token's row, projected to hidden_size where that is another
  bool norm_before = true;     // norms stand before the blocks; false: after what they add to
  bool final_norm = true;
  bool norm_parameters = true;  // layer norms have weights and biases
};

// What GPT-2 alone says of itself.
struct Gpt2Config {
  bool scale_by_inverse_layer = false;  // scores are divided by the layer's number, from 1
  bool transposed_weights = false;      // matrices are stored as [in, out]
};

// What a head of EAGLE-3 says beside a layer's sizes.
struct Eagle3Config {
  int64_t draft_vocab_size = 0;    // tokens that it can guess
  int64_t target_hidden_size = 0;  // of the model that it guesses for
  std::vector<int32_t> layers;     // whose states it reads: before these of that model. Empty: the usual ones
  bool norm_before_residual = false;
};

// What a layer that predicts further tokens says beside a layer's sizes.
struct NextLayerConfig {
  int32_t index = 0;            // among the layers of the larger model's checkpoint, the first behind its own
  int32_t num_next_layers = 0;  // of which it is the first
};

// What a head of DFlash says beside its layers' sizes.
struct DflashConfig {
  std::vector<int32_t> layers;  // of the larger model, behind which its states are taken; rising
  int32_t block_size = 0;       // tokens of a block: the text's last, and those that are guessed
  TokenId mask_token = kNoToken;
  int32_t num_target_layers = 0;  // of the larger model; 0: it does not say
  std::optional<bool> causal;     // of all layers; nullopt: those with a window are, the others see all of a block
};

// What ModernBERT alone says of itself.
struct ModernBertConfig {
  bool norm_bias = false;
  bool head_bias = false;  // of the layer in front of a classifier
  Activation head_activation = Activation::kGelu;
};

// What Gemma 4 alone says of itself. Layers without a window have heads of their own.
struct Gemma4Config {
  int32_t full_head_dim = 0;
  int32_t full_kv_heads = 0;
  bool keys_are_values = false;    // of layers without a window: one projection gives both
  int32_t num_sharing_layers = 0;  // the last so many read the cache of the last layer before them of their kind
  bool wide_sharing_mlp = false;   // whose feed-forward blocks are twice as wide
  int64_t layer_input_size = 0;    // of each token and layer, from a table of their own; 0: none
};

// What families say of layers that have a gated delta net in the place of attention (Yang et al., 2024).
struct DeltaNetConfig {
  int32_t num_key_heads = 0;
  int32_t num_value_heads = 0;  // a multiple of it
  int32_t key_head_dim = 0;
  int32_t value_head_dim = 0;
  int32_t conv_kernel = 0;  // tokens that the convolution before it sees
  double most_update = 1;   // 2: states may turn around (Grazzi et al., 2025)
  // Value heads of one key head are num_key_heads apart, as GGUF files have them; else neighbours.
  bool heads_in_turns = false;
};

// Where the norm of what a layer of Mamba 2 has read stands.
enum class MambaNorm : uint8_t { kBehindGate, kBeforeGate, kNone };

// What families say of layers of Mamba 2 in the place of attention (Dao and Gu, 2024).
struct Mamba2Config {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t state_size = 0;   // numbers that a token is written to and read by
  int32_t num_groups = 1;   // of heads that share those
  int32_t conv_kernel = 0;  // tokens that the convolution before it sees
  bool conv_bias = false;
  bool projection_bias = false;
  bool output_bias = false;
  MambaNorm norm = MambaNorm::kBehindGate;
  // Of what the projection gives: gates, values, what they are written by, what they are read by, steps. Empty: all 1.
  std::vector<double> multipliers;
  double least_step = 0;
  double most_step = 0;                  // 0: no bound
  int64_t shared_intermediate_size = 0;  // of Granite's dense block, beside its experts or alone
};

// What Falcon-H1 alone says of itself: layers of Mamba 2 and attention side by side, and what their inputs and outputs
// are multiplied by.
struct FalconH1Config {
  Mamba2Config mamba;
  double mamba_input = 1;
  double mamba_output = 1;
  double attention_input = 1;
  double attention_output = 1;
  double mlp_gate = 1;
  double mlp_output = 1;
};

// The block that a layer of Nemotron-H is.
enum class NemotronBlock : uint8_t { kMamba, kAttention, kMlp, kExperts };

// What Nemotron-H alone says of itself.
struct NemotronHConfig {
  Mamba2Config mamba;
  std::vector<NemotronBlock> blocks;  // [num_layers]
  int64_t expert_input_size = 0;      // that inputs of experts are projected to, and outputs back from; 0: they are not
};

// What Apertus says of its activation, before the softplus of what it learns.
struct ApertusConfig {
  struct Numbers {
    double alpha_p = 0;
    double alpha_n = 0;
    double beta = 0;
    double eps = 0;
  };
  bool is_xielu = true;          // false: an activation without numbers
  std::vector<Numbers> numbers;  // [num_layers], of files that do not have them beside the weights
};

// What LFM2 says of layers that have a gated short convolution in the place of attention.
struct ShortConvConfig {
  int32_t kernel = 0;  // tokens that it sees
  bool bias = false;   // of it and of the projections around it
};

// What several families have in common; what one has to itself is its own struct.
struct ModelConfig {
  std::string architecture;  // registry key: "LlamaForCausalLM"
  std::string name;          // for people
  std::string dtype;         // of the stored weights, for people: "bfloat16", "Q4_1", ...
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_next_layers = 0;  // that a checkpoint may have behind them, to predict further tokens: not its own
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t max_position = 0;  // tokens of context, with what the rope's scaling adds
  double norm_eps = 1e-5;
  bool norms_heads = false;            // of queries and keys, in families where that is a choice
  bool parallel_blocks = false;        // of a layer, in families where that is a choice
  bool own_mlp_norm = false;           // of parallel blocks, in families where that is a choice
  double norm_weight_offset = 0;       // added to the stored weights of RMS norms: 1 where they are stored around 0
  bool attention_bias = false;         // of the q, k and v projections
  bool attention_output_bias = false;  // of the projection after them
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;
  double attention_scale = 1;     // of the scores
  double attention_soft_cap = 0;  // of the scores; 0: none
  double qkv_limit = 0;           // that queries, keys and values are cut off at; 0: none
  double embedding_scale = 1;
  double residual_scale = 1;   // of what a block adds to the stream
  double logits_scale = 1;     // multiplies
  double logits_soft_cap = 0;  // 0: none
  bool tie_word_embeddings = false;
  std::vector<int32_t> layer_windows;  // [num_layers]: positions a layer sees, its own included; 0: all. Empty: all 0
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of the layers with a window, where it is another one
  std::vector<bool> unrotated_layers;     // [num_layers]: whose queries and keys have no positions. Empty: none
  QueryGrowth query_growth;
  // Of a projection of queries, keys and values in one: nn::AttentionConfig::grouped_rows.
  bool grouped_qkv = false;
  std::vector<bool> recurrent_layers;  // [num_layers]: that have a state. Empty: none
  // [num_layers]: that have attention. Empty: those that have no state. All else: what has neither is feed-forward
  // alone.
  std::vector<bool> attention_layers;
  MoeConfig moe;
  LatentAttentionConfig latent;
  std::variant<std::monostate, OptConfig, Gpt2Config, Eagle3Config, NextLayerConfig, DflashConfig, ModernBertConfig,
               Gemma4Config, DeltaNetConfig, Mamba2Config, FalconH1Config, NemotronHConfig, ApertusConfig,
               ShortConvConfig>
      family;
  std::optional<TokenId> bos_id;
  std::vector<TokenId> eos_ids;  // any of them ends an answer
  ModelTask task = ModelTask::kGenerate;
  PoolingConfig pooling;        // of the other tasks
  int64_t default_context = 0;  // tokens of context unless more is asked for, up to max_position; 0: that
  // Encoders: every token of a text sees all of it, so that a text is computed whole, in one step.
  bool attends_both_ways = false;
  int64_t position_offset = 0;  // encoders with a table of positions: the row of a text's first
  int64_t num_text_types = 0;   // BERT's segments: rows of a table that tells the first text of a pair from the second
};

}  // namespace quire
