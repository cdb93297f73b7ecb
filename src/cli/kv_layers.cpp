#include "cli/kv_layers.h"

#include <fmt/format.h>

namespace quire::cli {

std::string kv_arithmetic(const runner::KvLayout& layout) {
  // Windows change nothing about a token's bytes.
  std::vector<nn::KvLayerSpec> stored = layout.layers;
  for (nn::KvLayerSpec& layer : stored) layer.window = 0;
  std::string text;
  const auto counts = runner::count_layers(stored);
  bool any_state = false;
  for (const auto& [spec, num_layers] : counts) {
    any_state = any_state || spec.kind == nn::KvKind::kState;
    if (spec.kind == nn::KvKind::kState) continue;
    const int64_t scale_bytes = ops::kv_vector_bytes(spec.dtype, spec.key_dim) - row_bytes(spec.dtype, spec.key_dim);
    std::string vector = fmt::format("{} x {} B", spec.key_dim, info(spec.dtype).block_bytes);
    if (scale_bytes > 0) vector = fmt::format("({} + {} B of scale)", vector, scale_bytes);
    text += fmt::format("{:13}{} x {} layers x {} kv heads x {} = {} B\n", text.empty() ? "a token" : "",
                        spec.kind == nn::KvKind::kLatent ? "1 (K as V)" : "2 (K, V)", num_layers, spec.num_kv_heads,
                        vector, num_layers * spec.token_bytes());
  }
  if (counts.size() > (any_state ? 2 : 1)) text += fmt::format("{:13}{} B in all\n", "", layout.token_bytes());
  for (const auto& [spec, num_layers] : counts) {
    if (spec.kind != nn::KvKind::kState) continue;
    std::string numbers = fmt::format("{}", spec.state_size);
    if (spec.most_drafts > 0)
      numbers = fmt::format("({} + {} drafts x {})", numbers, spec.most_drafts, spec.draft_size);
    text += fmt::format("{:13}{} layers x {} numbers x 4 B = {} B, behind every {} tokens\n", "a state", num_layers,
                        numbers, num_layers * spec.state_bytes(), layout.block_size);
  }
  if (layout.unused_bytes() > 0) {
    text += fmt::format("{:13}{} of {} B unused, of a block of each of the {} groups of layers\n", "",
                        layout.unused_bytes(), layout.block_bytes * std::ssize(layout.windows), layout.windows.size());
  }
  return text;
}

boost::json::array kv_layers_json(const runner::KvLayout& layout) {
  boost::json::array out;
  for (const auto& [spec, num_layers] : runner::count_layers(layout.layers)) {
    out.push_back(boost::json::object{{"layers", num_layers},
                                      {"kind", nn::name(spec.kind)},
                                      {"kv_heads", spec.num_kv_heads},
                                      {"key_dim", spec.key_dim},
                                      {"value_dim", spec.value_dim},
                                      {"window", spec.window},
                                      {"dtype", quire::name(spec.dtype)},
                                      {"token_bytes", spec.token_bytes()},
                                      {"state_bytes", spec.state_bytes()}});
  }
  return out;
}

}  // namespace quire::cli
