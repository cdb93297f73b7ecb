#include "checkpoint/gguf_architecture.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

namespace quire::checkpoint {
namespace {

constexpr auto kLlamaModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    // Divisors of the rotary frequencies: GGUF's form of the llama3 scaling.
    {"rope_freqs", "model.rope_freqs"},
    // Phi-3's divisors of the frequencies, which become part of the configuration.
    {"rope_factors_long", "model.rope_factors_long"},
    {"rope_factors_short", "model.rope_factors_short"},
});
constexpr auto kGemma4ModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"rope_freqs", "model.rope_freqs"},
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
});
constexpr auto kLfm2ModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "model.embed_tokens"},
    // llama.cpp's name of the norm behind the last layer, and that of other converters.
    {"token_embd_norm", "model.embedding_norm"},
    {"output_norm", "model.embedding_norm"},
    {"output", "lm_head"},
});
constexpr auto kGpt2ModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
});

constexpr auto kBertModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"cls", "pooler.dense"},
    {"cls.output", "classifier"},
});
constexpr auto kNomicBertModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "embeddings.word_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "emb_ln"},
    {"cls", "pooler.dense"},
    {"cls.output", "classifier"},
});
constexpr auto kBertLayerNames = std::to_array<GgufNameRule>({
    {"attn_q", "attention.self.query"},
    {"attn_k", "attention.self.key"},
    {"attn_v", "attention.self.value"},
    {"attn_output", "attention.output.dense"},
    {"attn_output_norm", "attention.output.LayerNorm"},
    {"ffn_up", "intermediate.dense"},
    {"ffn_down", "output.dense"},
    {"layer_output_norm", "output.LayerNorm"},
});
constexpr auto kNomicBertLayerNames = std::to_array<GgufNameRule>({
    {"attn_qkv", "attn.Wqkv"},
    {"attn_output", "attn.out_proj"},
    {"attn_output_norm", "norm1"},
    {"ffn_up", "mlp.fc11"},
    {"ffn_gate", "mlp.fc12"},
    {"ffn_down", "mlp.fc2"},
    {"layer_output_norm", "norm2"},
});

constexpr auto kLlamaLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
});

constexpr auto kLlamaExpertNames = std::to_array<GgufNameRule>({
    {"ffn_gate", "mlp.experts.{}.gate_proj"},
    {"ffn_up", "mlp.experts.{}.up_proj"},
    {"ffn_down", "mlp.experts.{}.down_proj"},
});

// Names of layers beside those of llama, or in their place.
constexpr auto kQwen3LayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
});
constexpr auto kOlmo2LayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
});
constexpr auto kPhi3LayerNames = std::to_array<GgufNameRule>({
    {"attn_qkv", "self_attn.qkv_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
});
constexpr auto kGlm4LayerNames = std::to_array<GgufNameRule>({
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"post_ffw_norm", "post_mlp_layernorm"},
});
constexpr auto kGemmaLayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
});
constexpr auto kGemma4LayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"ffn_gate_inp", "router.proj"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_gate_up_exps", "experts.gate_up_proj"},
    {"ffn_gate_exps", "experts.gate_proj"},
    {"ffn_up_exps", "experts.up_proj"},
    {"ffn_down_exps", "experts.down_proj"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"layer_output_scale.weight", "layer_scalar"},
});
constexpr auto kStableLmLayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_layernorm"},
    {"attn_k_norm", "self_attn.k_layernorm"},
});
constexpr auto kHunyuanLayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.query_layernorm"},
    {"attn_k_norm", "self_attn.key_layernorm"},
    {"ffn_gate_inp", "mlp.gate.wg"},
    {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
    {"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
});
constexpr auto kApertusLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "attention_layernorm"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "feedforward_layernorm"},
});
constexpr auto kLlama4LayerNames = std::to_array<GgufNameRule>({
    {"ffn_gate", "feed_forward.gate_proj"},
    {"ffn_up", "feed_forward.up_proj"},
    {"ffn_down", "feed_forward.down_proj"},
    {"ffn_gate_inp", "feed_forward.router"},
    {"ffn_gate_exps", "feed_forward.experts.gate_proj"},
    {"ffn_up_exps", "feed_forward.experts.up_proj"},
    {"ffn_down_exps", "feed_forward.experts.down_proj"},
    {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
    {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
    {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"},
});
constexpr auto kMistral4LayerNames = std::to_array<GgufNameRule>({
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
});
constexpr auto kAfmoeLayerNames = std::to_array<GgufNameRule>({
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_gate", "self_attn.gate_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_mlp_layernorm"},
    {"post_ffw_norm", "post_mlp_layernorm"},
    {"ffn_gate_inp", "mlp.router.gate"},
    {"exp_probs_b", "mlp.expert_bias"},
});
constexpr auto kGptNeoxModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "gpt_neox.embed_in"},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out"},
});
constexpr auto kGptNeoxLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "attention.query_key_value"},
    {"attn_output", "attention.dense"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
});
constexpr auto kFalconModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "transformer.word_embeddings"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
});
// Where there are two norms the first name is the feed-forward block's.
constexpr auto kFalconLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_norm_2", "ln_attn"},
    {"attn_qkv", "self_attention.query_key_value"},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
});
constexpr auto kStarcoder2LayerNames = std::to_array<GgufNameRule>({
    {"ffn_up", "mlp.c_fc"},
    {"ffn_down", "mlp.c_proj"},
});
constexpr auto kPhi2LayerNames = std::to_array<GgufNameRule>({
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
});
constexpr auto kSeedOssLayerNames = std::to_array<GgufNameRule>({
    {"post_attention_norm", "post_attention_layernorm"},
});
// Grouped-query attention beside DeepSeek's names of experts.
constexpr auto kGlm4MoeLayerNames = std::to_array<GgufNameRule>({
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
});
constexpr auto kGpt2LayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "ln_1"},
    {"attn_qkv", "attn.c_attn"},
    {"attn_output", "attn.c_proj"},
    {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc"},
    {"ffn_down", "mlp.c_proj"},
});

constexpr auto kQwenMoeLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
});

// Gated delta nets, and norms behind attention as GGUF calls them.
constexpr auto kDeltaNetLayerNames = std::to_array<GgufNameRule>({
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"attn_qkv", "linear_attn.in_proj_qkv"},
    {"attn_gate", "linear_attn.in_proj_z"},
    {"ssm_in", "linear_attn.in_proj_qkvz"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_beta", "linear_attn.in_proj_b"},
    {"ssm_alpha", "linear_attn.in_proj_a"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_a", "linear_attn.A"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
});

constexpr auto kDeepseekLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b", "mlp.gate.e_score_correction"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
});

constexpr auto kGptOssLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_sinks", "self_attn.sinks"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
});

// Layers of Mamba, and the block that stands beside experts.
constexpr auto kMambaLayerNames = std::to_array<GgufNameRule>({
    {"ssm_in", "mamba.in_proj"},
    {"ssm_conv1d", "mamba.conv1d"},
    {"ssm_a", "mamba.A"},
    {"ssm_d", "mamba.D"},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_norm", "mamba.norm"},
    {"ssm_out", "mamba.out_proj"},
    {"ffn_gate_shexp", "shared_mlp.gate_proj"},
    {"ffn_up_shexp", "shared_mlp.up_proj"},
    {"ffn_down_shexp", "shared_mlp.down_proj"},
});

constexpr auto kFalconH1ModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.final_layernorm"},
    {"output", "lm_head"},
});
// The converter leaves the suffix of ffn_norm out.
constexpr auto kFalconH1LayerNames = std::to_array<GgufNameRule>({
    {"ssm_in", "mamba.in_proj"},
    {"ssm_conv1d", "mamba.conv1d"},
    {"ssm_a", "mamba.A"},
    {"ssm_d", "mamba.D"},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_norm", "mamba.norm"},
    {"ssm_out", "mamba.out_proj"},
    {"ffn_norm", "pre_ff_layernorm.weight"},
    {"ffn_norm.weight", "pre_ff_layernorm.weight"},
    {"ffn_gate", "feed_forward.gate_proj"},
    {"ffn_up", "feed_forward.up_proj"},
    {"ffn_down", "feed_forward.down_proj"},
});

constexpr auto kNemotronHModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "backbone.embeddings"},
    {"output_norm", "backbone.norm_f"},
    {"output", "lm_head"},
});
constexpr auto kNemotronHLayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "norm"},
    {"ssm_in", "mixer.in_proj"},
    {"ssm_conv1d", "mixer.conv1d"},
    {"ssm_a", "mixer.A"},
    {"ssm_d", "mixer.D"},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_norm", "mixer.norm"},
    {"ssm_out", "mixer.out_proj"},
    {"attn_q", "mixer.q_proj"},
    {"attn_k", "mixer.k_proj"},
    {"attn_v", "mixer.v_proj"},
    {"attn_output", "mixer.o_proj"},
    {"ffn_up", "mixer.up_proj"},
    {"ffn_down", "mixer.down_proj"},
    {"ffn_gate_inp", "mixer.gate"},
    {"exp_probs_b", "mixer.gate.e_score_correction"},
    {"ffn_latent_down", "mixer.fc1_latent_proj"},
    {"ffn_latent_up", "mixer.fc2_latent_proj"},
    {"ffn_up_exps", "mixer.experts.up_proj"},
    {"ffn_down_exps", "mixer.experts.down_proj"},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj"},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj"},
});

constexpr auto kLfm2LayerNames = std::to_array<GgufNameRule>({
    {"attn_norm", "operator_norm"},
    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv"},
    {"shortconv.out_proj", "conv.out_proj"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_layernorm"},
    {"attn_k_norm", "self_attn.k_layernorm"},
    {"attn_output", "self_attn.out_proj"},
    {"ffn_norm", "ffn_norm"},
    {"ffn_gate", "feed_forward.w1"},
    {"ffn_up", "feed_forward.w3"},
    {"ffn_down", "feed_forward.w2"},
    {"ffn_gate_inp", "feed_forward.gate"},
    {"exp_probs_b", "feed_forward.expert_bias"},
    {"ffn_gate_exps", "feed_forward.experts.gate_proj"},
    {"ffn_up_exps", "feed_forward.experts.up_proj"},
    {"ffn_down_exps", "feed_forward.experts.down_proj"},
});

// Experts with DeepSeek's names behind grouped-query attention.
constexpr GgufArchitecture mixture(std::string_view name, std::string_view model_class) {
  return {.name = name,
          .model_class = model_class,
          .model_names = kLlamaModelNames,
          .own_layer_names = kGlm4MoeLayerNames,
          .layer_names = kDeepseekLayerNames,
          .layer_prefix = "model.layers."};
}

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {.name = "llama",
     .model_class = "LlamaForCausalLM",
     .expert_model_class = "MixtralForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kLlamaLayerNames,
     .expert_names = kLlamaExpertNames,
     .layer_prefix = "model.layers."},
    {.name = "bert",
     .model_class = "BertModel",
     .model_names = kBertModelNames,
     .layer_names = kBertLayerNames,
     .layer_prefix = "encoder.layer."},
    {.name = "nomic-bert",
     .model_class = "NomicBertModel",
     .model_names = kNomicBertModelNames,
     .layer_names = kNomicBertLayerNames,
     .layer_prefix = "encoder.layers."},
    {.name = "deepseek2",
     .model_class = "DeepseekV2ForCausalLM",
     .sigmoid_model_class = "DeepseekV3ForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kDeepseekLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "gemma4",
     .model_class = "Gemma4ForCausalLM",
     .model_names = kGemma4ModelNames,
     .own_layer_names = kGemma4LayerNames,
     .layer_names = kLlamaLayerNames,
     .layer_prefix = "model.layers."},
    mixture("glm4moe", "Glm4MoeForCausalLM"),
    mixture("dots1", "Dots1ForCausalLM"),
    mixture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM"),
    mixture("minimax-m2", "MiniMaxM2ForCausalLM"),
    mixture("exaone-moe", "ExaoneMoeForCausalLM"),
    {.name = "afmoe",
     .model_class = "AfmoeForCausalLM",
     .model_names = kLlamaModelNames,
     .own_layer_names = kAfmoeLayerNames,
     .layer_names = kDeepseekLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "mistral4",
     .model_class = "Mistral4ForCausalLM",
     .model_names = kLlamaModelNames,
     .own_layer_names = kMistral4LayerNames,
     .layer_names = kDeepseekLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "olmoe",
     .model_class = "OlmoeForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kQwenMoeLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "gpt-oss",
     .model_class = "GptOssForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kGptOssLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "lfm2",
     .model_class = "Lfm2ForCausalLM",
     .model_names = kLfm2ModelNames,
     .layer_names = kLfm2LayerNames,
     .layer_prefix = "model.layers."},
    {.name = "lfm2moe",
     .model_class = "Lfm2MoeForCausalLM",
     .model_names = kLfm2ModelNames,
     .layer_names = kLfm2LayerNames,
     .layer_prefix = "model.layers."},
    {.name = "qwen2moe",
     .model_class = "Qwen2MoeForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kQwenMoeLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "qwen3moe",
     .model_class = "Qwen3MoeForCausalLM",
     .model_names = kLlamaModelNames,
     .layer_names = kQwenMoeLayerNames,
     .layer_prefix = "model.layers."},
});

constexpr GgufArchitecture with_delta_nets(std::string_view name, std::string_view model_class,
                                           std::span<const GgufNameRule> layer_names) {
  return {.name = name,
          .model_class = model_class,
          .model_names = kLlamaModelNames,
          .own_layer_names = kDeltaNetLayerNames,
          .layer_names = layer_names,
          .layer_prefix = "model.layers."};
}

constexpr GgufArchitecture nemotron_h(std::string_view name) {
  return {.name = name,
          .model_class = "NemotronHForCausalLM",
          .model_names = kNemotronHModelNames,
          .own_layer_names = kNemotronHLayerNames,
          .layer_prefix = "backbone.layers."};
}

constexpr auto kHybrids = std::to_array<GgufArchitecture>({
    {.name = "granitehybrid",
     .model_class = "GraniteMoeHybridForCausalLM",
     .model_names = kLlamaModelNames,
     .own_layer_names = kMambaLayerNames,
     .layer_names = kLlamaLayerNames,
     .layer_prefix = "model.layers."},
    {.name = "falcon-h1",
     .model_class = "FalconH1ForCausalLM",
     .model_names = kFalconH1ModelNames,
     .own_layer_names = kFalconH1LayerNames,
     .layer_names = kLlamaLayerNames,
     .layer_prefix = "model.layers."},
    nemotron_h("nemotron_h"),
    nemotron_h("nemotron_h_moe"),
    with_delta_nets("qwen3next", "Qwen3NextForCausalLM", kQwenMoeLayerNames),
    with_delta_nets("qwen35", "Qwen3_5ForCausalLM", kLlamaLayerNames),
    with_delta_nets("qwen35moe", "Qwen3_5MoeForCausalLM", kQwenMoeLayerNames),
});

// A dense decoder whose layers are llama's but for some names.
constexpr GgufArchitecture decoder(std::string_view name, std::string_view model_class,
                                   std::span<const GgufNameRule> own_names = {}) {
  return {.name = name,
          .model_class = model_class,
          .model_names = kLlamaModelNames,
          .own_layer_names = own_names,
          .layer_names = kLlamaLayerNames,
          .layer_prefix = "model.layers."};
}

constexpr auto kDecoders = std::to_array<GgufArchitecture>({
    decoder("qwen2", "Qwen2ForCausalLM"),
    decoder("qwen3", "Qwen3ForCausalLM", kQwen3LayerNames),
    decoder("olmo2", "Olmo2ForCausalLM", kOlmo2LayerNames),
    decoder("granite", "GraniteForCausalLM"),
    decoder("phi3", "Phi3ForCausalLM", kPhi3LayerNames),
    decoder("glm4", "Glm4ForCausalLM", kGlm4LayerNames),
    decoder("granitemoe", "GraniteMoeForCausalLM"),
    decoder("smollm3", "SmolLM3ForCausalLM"),
    decoder("starcoder2", "Starcoder2ForCausalLM", kStarcoder2LayerNames),
    decoder("stablelm", "StableLmForCausalLM", kStableLmLayerNames),
    decoder("phi2", "PhiForCausalLM", kPhi2LayerNames),
    decoder("command-r", "CohereForCausalLM", kQwen3LayerNames),
    decoder("cohere2", "Cohere2ForCausalLM"),
    decoder("hunyuan-dense", "HunYuanDenseV1ForCausalLM", kHunyuanLayerNames),
    decoder("hunyuan-moe", "HunYuanMoEV1ForCausalLM", kHunyuanLayerNames),
    decoder("mistral3", "Ministral3ForCausalLM"),
    decoder("apertus", "ApertusForCausalLM", kApertusLayerNames),
    decoder("llama4", "Llama4ForCausalLM", kLlama4LayerNames),
    decoder("arcee", "ArceeForCausalLM"),
    decoder("nemotron", "NemotronForCausalLM"),
    decoder("olmo", "OlmoForCausalLM"),
    decoder("seed_oss", "SeedOssForCausalLM", kSeedOssLayerNames),
    decoder("ernie4_5", "Ernie4_5ForCausalLM"),
    decoder("exaone4", "Exaone4ForCausalLM", kOlmo2LayerNames),
    decoder("gemma", "GemmaForCausalLM"),
    decoder("gemma2", "Gemma2ForCausalLM", kGemmaLayerNames),
    decoder("gemma3", "Gemma3ForCausalLM", kGemmaLayerNames),
});

constexpr auto kOlder = std::to_array<GgufArchitecture>({
    {.name = "gpt2",
     .model_class = "GPT2LMHeadModel",
     .model_names = kGpt2ModelNames,
     .layer_names = kGpt2LayerNames,
     .layer_prefix = "transformer.h."},
    {.name = "starcoder",
     .model_class = "GPTBigCodeForCausalLM",
     .model_names = kGpt2ModelNames,
     .layer_names = kGpt2LayerNames,
     .layer_prefix = "transformer.h."},
    {.name = "gptneox",
     .model_class = "GPTNeoXForCausalLM",
     .model_names = kGptNeoxModelNames,
     .layer_names = kGptNeoxLayerNames,
     .layer_prefix = "gpt_neox.layers."},
    {.name = "falcon",
     .model_class = "FalconForCausalLM",
     .model_names = kFalconModelNames,
     .layer_names = kFalconLayerNames,
     .layer_prefix = "transformer.h."},
});

const GgufNameRule* find_rule(std::span<const GgufNameRule> rules, std::string_view stored) {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GgufNameRule& r) { return r.stored == stored; });
  return rule == rules.end() ? nullptr : &*rule;
}

// "0", "17": a number as a writer of layers spells it, without leading zeros, so that two spellings never meet.
bool is_index(std::string_view text) {
  if (text.empty() || text.size() > 9 || (text.size() > 1 && text.front() == '0')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "ffn_gate.3": the name of an expert's own tensor; empty where it is none.
std::string expert_name(const GgufArchitecture& architecture, std::string_view layer_stem) {
  const size_t dot = layer_stem.rfind('.');
  if (dot == std::string_view::npos || !is_index(layer_stem.substr(dot + 1))) return {};
  const GgufNameRule* rule = find_rule(architecture.expert_names, layer_stem.substr(0, dot));
  return rule == nullptr ? std::string() : fmt::format(fmt::runtime(rule->name), layer_stem.substr(dot + 1));
}

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  const auto has_name = [&](const GgufArchitecture& architecture) { return architecture.name == name; };
  for (const std::span<const GgufArchitecture> table :
       {std::span<const GgufArchitecture>(kArchitectures), std::span<const GgufArchitecture>(kHybrids),
        std::span<const GgufArchitecture>(kDecoders), std::span<const GgufArchitecture>(kOlder)}) {
    const auto found = std::find_if(table.begin(), table.end(), has_name);
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

std::string hugging_face_name(const GgufArchitecture& architecture, std::string_view stored) {
  const size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return std::string(stored);
  const std::string_view suffix = stored.substr(dot);
  const bool is_usual = suffix == ".weight" || suffix == ".bias";
  const std::string_view stem = stored.substr(0, dot);

  constexpr std::string_view kLayer = "blk.";
  if (!stem.starts_with(kLayer)) {
    const GgufNameRule* rule = is_usual ? find_rule(architecture.model_names, stem) : nullptr;
    return rule == nullptr ? std::string(stored) : fmt::format("{}{}", rule->name, suffix);
  }
  const size_t end_of_index = stored.find('.', kLayer.size());
  if (end_of_index == std::string_view::npos) return std::string(stored);
  const std::string_view index = stored.substr(kLayer.size(), end_of_index - kLayer.size());
  // What is called by its whole name.
  const std::string_view whole = stored.substr(end_of_index + 1);
  if (const GgufNameRule* own = find_rule(architecture.own_layer_names, whole); own != nullptr && is_index(index)) {
    return fmt::format("{}{}.{}", architecture.layer_prefix, index, own->name);
  }
  if (!is_usual || dot == end_of_index) return std::string(stored);
  const std::string_view layer_stem = stem.substr(end_of_index + 1);
  const GgufNameRule* rule = find_rule(architecture.own_layer_names, layer_stem);
  if (rule == nullptr) rule = find_rule(architecture.layer_names, layer_stem);
  const std::string name = rule != nullptr ? std::string(rule->name) : expert_name(architecture, layer_stem);
  if (name.empty() || !is_index(index)) return std::string(stored);
  return fmt::format("{}{}.{}{}", architecture.layer_prefix, index, name, suffix);
}

}  // namespace quire::checkpoint
