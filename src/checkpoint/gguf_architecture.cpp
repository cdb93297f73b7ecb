#include "checkpoint/gguf_architecture.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

namespace quire::checkpoint {
namespace {

constexpr auto kLlamaFields = std::to_array<GgufFieldRule>({
    {"block_count", "num_hidden_layers", GgufFieldKind::kInteger, true},
    {"embedding_length", "hidden_size", GgufFieldKind::kInteger, true},
    {"feed_forward_length", "intermediate_size", GgufFieldKind::kInteger, true},
    {"attention.head_count", "num_attention_heads", GgufFieldKind::kInteger, true},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", GgufFieldKind::kNumber, true},
    {"context_length", "max_position_embeddings", GgufFieldKind::kInteger, true},
    {"expert_count", "num_local_experts"},
    {"expert_used_count", "num_experts_per_tok"},
});

constexpr auto kGenericFields = std::to_array<GgufFieldRule>({
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"context_length", "max_position_embeddings"},
});

constexpr auto kLlamaModelNames = std::to_array<GgufNameRule>({
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    // Divisors of the rotary frequencies: GGUF's form of the llama3 scaling.
    {"rope_freqs", "model.rope_freqs"},
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
});

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {.name = "llama",
     .model_class = "LlamaForCausalLM",
     .model_type = "llama",
     .hidden_act = "silu",
     .rope_interleaved = true,
     .expert_model_class = "MixtralForCausalLM",
     .expert_model_type = "mixtral",
     .fields = kLlamaFields,
     .model_names = kLlamaModelNames,
     .layer_names = kLlamaLayerNames,
     .layer_prefix = "model.layers."},
});

const GgufNameRule* find_rule(std::span<const GgufNameRule> rules, std::string_view stored) {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GgufNameRule& r) { return r.stored == stored; });
  return rule == rules.end() ? nullptr : &*rule;
}

// "0", "17": a number as a writer of layers spells it, without leading zeros, so that two spellings never meet.
bool is_layer_index(std::string_view text) {
  if (text.empty() || text.size() > 9 || (text.size() > 1 && text.front() == '0')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  const auto found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                  [&](const GgufArchitecture& architecture) { return architecture.name == name; });
  return found == kArchitectures.end() ? nullptr : &*found;
}

std::span<const GgufFieldRule> generic_gguf_fields() {
  return kGenericFields;
}

std::string hugging_face_name(const GgufArchitecture& architecture, std::string_view stored) {
  const size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return std::string(stored);
  const std::string_view suffix = stored.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::string(stored);
  std::string_view stem = stored.substr(0, dot);

  constexpr std::string_view kLayer = "blk.";
  if (!stem.starts_with(kLayer)) {
    const GgufNameRule* rule = find_rule(architecture.model_names, stem);
    return rule == nullptr ? std::string(stored) : fmt::format("{}{}", rule->name, suffix);
  }
  stem.remove_prefix(kLayer.size());
  const size_t end_of_index = stem.find('.');
  if (end_of_index == std::string_view::npos) return std::string(stored);
  const std::string_view index = stem.substr(0, end_of_index);
  const GgufNameRule* rule = find_rule(architecture.layer_names, stem.substr(end_of_index + 1));
  if (rule == nullptr || !is_layer_index(index)) return std::string(stored);
  return fmt::format("{}{}.{}{}", architecture.layer_prefix, index, rule->name, suffix);
}

}  // namespace quire::checkpoint
