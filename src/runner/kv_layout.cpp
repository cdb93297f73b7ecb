#include "runner/kv_layout.h"

#include <algorithm>
#include <limits>

namespace quire::runner {

KvLayout make_kv_layout(const ModelConfig& model) {
  struct Kind {
    int32_t window;
    std::vector<int32_t> layers;
  };
  std::vector<Kind> kinds;
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    const int32_t window = model.layer_windows.empty() ? 0 : model.layer_windows[static_cast<size_t>(layer)];
    auto kind = std::ranges::find(kinds, window, &Kind::window);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {window, {}});
    kind->layers.push_back(layer);
  }
  size_t size = std::numeric_limits<size_t>::max();
  for (const Kind& kind : kinds) size = std::min(size, kind.layers.size());

  KvLayout layout;
  layout.num_buffers = static_cast<int32_t>(size);
  layout.group_of_layer.resize(static_cast<size_t>(model.num_layers));
  layout.buffer_of_layer.resize(static_cast<size_t>(model.num_layers));
  for (const Kind& kind : kinds) {
    for (size_t i = 0; i < kind.layers.size(); ++i) {
      if (i % size == 0) layout.windows.push_back(kind.window);
      const auto layer = static_cast<size_t>(kind.layers[i]);
      layout.group_of_layer[layer] = static_cast<int32_t>(layout.windows.size()) - 1;
      layout.buffer_of_layer[layer] = static_cast<int32_t>(i % size);
    }
  }
  return layout;
}

}  // namespace quire::runner
