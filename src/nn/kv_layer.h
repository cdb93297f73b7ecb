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
  // Numbers of a fixed size that recurrent layers have read the text into (ops/state_cache.h): a block of a sequence's
  // table holds the state behind the last of the block's tokens that was computed.
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
  // kState, which has nothing of the above but the dtype, F32, and the window: numbers of a state, and beside it of the
  // inputs of each draft token, of which there is room for so many.
  int64_t state_size = 0;
  int64_t draft_size = 0;
  int32_t most_drafts = 0;

  // The state is that of a single position: a query reads the one before it.
  static constexpr int32_t kStateWindow = 2;
  static constexpr KvLayerSpec of_state(int64_t size, int64_t draft_size) {
    return {.kind = KvKind::kState, .window = kStateWindow, .state_size = size, .draft_size = draft_size};
  }

  // Bytes of a token's keys, and of its values where those are stored; scales included. Of a state 0: it does not grow
  // by the token. REQUIRES: ops::is_kv_format(dtype).
  constexpr int64_t key_bytes() const {
    return kind == KvKind::kState ? 0 : num_kv_heads * ops::kv_vector_bytes(dtype, key_dim);
  }
  constexpr int64_t value_bytes() const {
    return kind == KvKind::kKeysAndValues ? num_kv_heads * ops::kv_vector_bytes(dtype, value_dim) : 0;
  }
  constexpr int64_t token_bytes() const { return key_bytes() + value_bytes(); }
  constexpr int64_t state_floats() const { return state_size + most_drafts * draft_size; }
  constexpr int64_t state_bytes() const { return state_floats() * static_cast<int64_t>(sizeof(float)); }
  // Of a block of so many tokens.
  constexpr int64_t block_bytes(int64_t block_size) const { return token_bytes() * block_size + state_bytes(); }

  // Whether both take the same memory in the same way, whatever they see of it.
  bool is_stored_as(const KvLayerSpec& other) const;
  bool operator==(const KvLayerSpec&) const = default;
};

}  // namespace quire::nn
