// What one layer keeps in the cache. A model says it of each of its layers (models/model.h). Memory plan, storage and
// `quire plan` read nothing else, so the layers of a model, or of two models that share a cache, may differ in all of
// it.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/kv_cache.h"

namespace quire::nn {

enum class KvKind {
  kKeysAndValues,
  // One row a token that is read as key and, its first value_dim numbers, as value (multi-head latent attention;
  // DeepSeek-AI, 2024).
  kLatent,
  // Of one size whatever the tokens, as recurrent layers have it. runner/kv_layout.h has no place for it yet.
  kState,
};

// "keys and values", "latent", "state"
std::string_view name(KvKind kind);

struct KvLayerSpec {
  KvKind kind = KvKind::kKeysAndValues;
  int32_t num_kv_heads = 0;
  int32_t key_dim = 0;    // numbers of a kv head's key
  int32_t value_dim = 0;  // of its value
  int32_t window = 0;     // positions it sees, its own included; 0: all
  DType dtype = DType::kF32;

  // Bytes of a token's keys, and of its values where those are stored; scales included. REQUIRES:
  // ops::is_kv_format(dtype).
  constexpr int64_t key_bytes() const { return num_kv_heads * ops::kv_vector_bytes(dtype, key_dim); }
  constexpr int64_t value_bytes() const {
    return kind == KvKind::kKeysAndValues ? num_kv_heads * ops::kv_vector_bytes(dtype, value_dim) : 0;
  }
  constexpr int64_t token_bytes() const { return key_bytes() + value_bytes(); }

  // Whether both take the same memory in the same way, whatever they see of it.
  bool is_stored_as(const KvLayerSpec& other) const;
  bool operator==(const KvLayerSpec&) const = default;
};

}  // namespace quire::nn
