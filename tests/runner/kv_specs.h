// Layers for tests of the cache's layout.
#pragma once

#include <random>
#include <vector>

#include "nn/kv_layer.h"

namespace quire::runner {

inline nn::KvLayerSpec plain_layer(int32_t num_kv_heads, int32_t head_dim, int32_t window = 0,
                                   DType dtype = DType::kF16) {
  return {.num_kv_heads = num_kv_heads, .key_dim = head_dim, .value_dim = head_dim, .window = window, .dtype = dtype};
}

inline nn::KvLayerSpec latent_layer(int32_t rank, int32_t rope_dim, DType dtype = DType::kF16) {
  return {
      .kind = nn::KvKind::kLatent, .num_kv_heads = 1, .key_dim = rank + rope_dim, .value_dim = rank, .dtype = dtype};
}

// 1 to 12 layers of up to three windows, of few or of many shapes.
inline std::vector<nn::KvLayerSpec> random_layers(std::mt19937_64& engine) {
  const auto below = [&](uint64_t limit) { return static_cast<int32_t>(engine() % limit); };
  constexpr DType kFormats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
  std::vector<nn::KvLayerSpec> shapes;
  for (int32_t i = below(4); i >= 0; --i) {
    const DType dtype = kFormats[below(6)];
    shapes.push_back(below(4) == 0 ? latent_layer(2 + 2 * below(20), 2 + 2 * below(8), dtype)
                                   : plain_layer(1 + below(8), 2 + 2 * below(32), 0, dtype));
  }
  std::vector<nn::KvLayerSpec> layers;
  const auto num_windows = static_cast<uint64_t>(1 + below(3));
  for (int32_t i = below(12); i >= 0; --i) {
    layers.push_back(shapes[engine() % shapes.size()]);
    layers.back().window = 30 * below(num_windows);
  }
  return layers;
}

}  // namespace quire::runner
