#include "nn/kv_layer.h"

namespace quire::nn {

std::string_view name(KvKind kind) {
  switch (kind) {
    case KvKind::kKeysAndValues:
      return "keys and values";
    case KvKind::kLatent:
      return "latent";
    case KvKind::kState:
      return "state";
  }
  return "?";
}

bool KvLayerSpec::is_stored_as(const KvLayerSpec& other) const {
  KvLayerSpec same_window = other;
  same_window.window = window;
  return *this == same_window;
}

}  // namespace quire::nn
