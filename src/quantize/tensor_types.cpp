#include "quantize/tensor_types.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace quire::quantize {
namespace {

// File types are numbered by llama.cpp's enumeration.
constexpr auto kMixes = std::to_array<GgufMix>({
    {"q4_0", DType::kQ4_0, 2},
    {"q4_1", DType::kQ4_1, 3},
    {"q5_0", DType::kQ5_0, 8},
    {"q5_1", DType::kQ5_1, 9},
    {"q8_0", DType::kQ8_0, 7},
    {"q4_k_s", DType::kQ4_K, 14},
    {"q4_k_m", DType::kQ4_K, 15},
    {"q5_k_s", DType::kQ5_K, 16},
    {"q5_k_m", DType::kQ5_K, 17},
    {"q6_k", DType::kQ6_K, 18},
    {"f32", DType::kF32, 0, false},
    {"f16", DType::kF16, 1, false},
    {"bf16", DType::kBF16, 32, false},
});

bool is_medium(const GgufMix& mix) {
  return mix.name.ends_with("_m");
}

// "blk.17.attn_v.weight" -> 17; -1: of no layer.
int32_t layer_of(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return -1;
  int32_t layer = -1;
  std::from_chars(name.data() + kLayer.size(), name.data() + name.size(), layer);
  return layer;
}

// The first and the last eighth of the layers, and every third between.
bool wants_more_bits(int32_t layer, int32_t num_layers) {
  const int32_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

bool is_matrix_of(std::string_view name, std::string_view stem) {
  return name.ends_with(std::string(".") + std::string(stem) + ".weight");
}

DType with_more_bits(DType base) {
  return base == DType::kQ4_K || base == DType::kQ5_K ? DType::kQ6_K : base;
}

DType type_of_value_rows(const GgufMix& mix, const MixModel& model, int32_t layer) {
  if (model.num_experts == 8) return DType::kQ8_0;
  DType type = mix.base;
  if (is_medium(mix) && wants_more_bits(layer, model.num_layers)) type = with_more_bits(mix.base);
  if (mix.name == "q4_k_s" && layer < 4) type = DType::kQ5_K;
  // Llama 2 and 3 of 70 billion: eight heads share each of these rows.
  const bool is_70b = model.architecture == "llama" && model.num_layers == 80 && model.num_heads != model.num_kv_heads;
  if (is_70b && type == DType::kQ4_K) type = DType::kQ5_K;
  return type;
}

DType type_of_down(const GgufMix& mix, const MixModel& model, int32_t layer) {
  const int32_t eighth = model.num_layers / 8;
  if (is_medium(mix) && wants_more_bits(layer, model.num_layers)) return with_more_bits(mix.base);
  if (mix.name == "q4_k_s" && layer < eighth) return DType::kQ5_K;
  // With an importance matrix, and for the first layers alone, a minimum beside the scale.
  if (model.has_importance && layer < eighth && mix.base == DType::kQ4_0) return DType::kQ4_1;
  if (model.has_importance && layer < eighth && mix.base == DType::kQ5_0) return DType::kQ5_1;
  return mix.base;
}

DType type_before_fallback(const GgufMix& mix, const MixModel& model, std::string_view name, int64_t columns) {
  const bool is_embedding = name == "token_embd.weight";
  if (name == "output.weight" || (is_embedding && !model.has_output)) {
    if (mix.base == DType::kQ8_0 || columns % info(mix.base).block_values != 0) return DType::kQ8_0;
    return DType::kQ6_K;
  }
  const int32_t layer = layer_of(name);
  if (is_matrix_of(name, "attn_v")) return type_of_value_rows(mix, model, layer);
  if (is_matrix_of(name, "attn_k") && model.num_experts == 8) return DType::kQ8_0;
  if (is_matrix_of(name, "ffn_down") || is_matrix_of(name, "ffn_down_exps") || is_matrix_of(name, "ffn_down_shexp"))
    return type_of_down(mix, model, layer);
  const bool is_q4_or_k4 = mix.base == DType::kQ4_K || mix.base == DType::kQ4_0;
  if (is_matrix_of(name, "attn_output") && model.num_experts == 8 && is_q4_or_k4) return DType::kQ5_K;
  if (is_matrix_of(name, "attn_qkv") && is_medium(mix))
    return mix.base == DType::kQ4_K ? DType::kQ5_K : with_more_bits(mix.base);
  return mix.base;
}

DType with_whole_blocks(DType type, int64_t columns) {
  if (columns % info(type).block_values == 0) return type;
  if (type == DType::kQ4_K) type = DType::kQ5_0;
  if (type == DType::kQ5_K) type = DType::kQ5_1;
  if (type == DType::kQ6_K) type = DType::kQ8_0;
  return columns % info(type).block_values == 0 ? type : DType::kF16;
}

// Small, and decides much; or looked up by position.
bool stays(std::string_view name) {
  constexpr auto kStems =
      std::to_array<std::string_view>({"ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd", "token_types"});
  return !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         std::ranges::any_of(kStems, [&](std::string_view stem) {
           return name.find(std::string(stem) + ".weight") != std::string_view::npos;
         });
}

}  // namespace

Result<GgufMix> find_gguf_mix(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "q4_k" || lower == "q5_k") lower += "_m";
  const auto mix = std::ranges::find_if(kMixes, [&](const GgufMix& m) { return m.name == lower; });
  if (mix != kMixes.end()) return *mix;
  return invalid_argument("--type {}: expected one of {}, or w4a16", name, gguf_mix_names());
}

std::string gguf_mix_names() {
  std::string names;
  for (const GgufMix& mix : kMixes) names += (names.empty() ? "" : ", ") + std::string(mix.name);
  return names;
}

DType choose_type(const GgufMix& mix, const MixModel& model, std::string_view name, DType stored, const Shape& shape) {
  if (shape.rank() < 2) return DType::kF32;
  if (stays(name)) return stored;
  if (!mix.rounds) return mix.base;
  const int64_t columns = shape[shape.rank() - 1];
  return with_whole_blocks(type_before_fallback(mix, model, name, columns), columns);
}

}  // namespace quire::quantize
