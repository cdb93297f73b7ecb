#include "runner/kv_layout.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace quire::runner {
namespace {

constexpr size_t index_of(int32_t index) {
  return static_cast<size_t>(index);
}

Status check_layer(const nn::KvLayerSpec& layer, size_t index) {
  if (layer.kind == nn::KvKind::kState) {
    if (layer.state_size > 0) return {};
    return invalid_argument("layer {} keeps a state of {} numbers", index, layer.state_size);
  }
  if (layer.num_kv_heads < 1 || layer.key_dim < 2 || layer.key_dim % 2 != 0 || layer.value_dim < 1 ||
      layer.window < 0) {
    return invalid_argument(
        "layer {} has {} kv heads, keys of {} numbers, values of {} and a window of {}: expected at least one head, "
        "keys "
        "of an even size, values of at least one number, and a window of at least 0 (0: it sees all positions)",
        index, layer.num_kv_heads, layer.key_dim, layer.value_dim, layer.window);
  }
  if (layer.kind == nn::KvKind::kLatent && layer.value_dim > layer.key_dim) {
    return invalid_argument("layer {} reads values of {} numbers out of rows of {}", index, layer.value_dim,
                            layer.key_dim);
  }
  if (layer.kind == nn::KvKind::kKeysAndValues && layer.value_dim != layer.key_dim) {
    return unimplemented(
        "layer {} has keys of {} numbers and values of {}; attention reads keys and values of one size", index,
        layer.key_dim, layer.value_dim);
  }
  if (!ops::is_kv_format(layer.dtype)) {
    return invalid_argument("layer {} would be cached as {}, which is no format of the cache", index,
                            name(layer.dtype));
  }
  return {};
}

// A group's layers, by their indices.
using LayerGroup = std::vector<int32_t>;

bool is_state(const nn::KvLayerSpec& layer) {
  return layer.kind == nn::KvKind::kState;
}

int64_t block_bytes_of(const std::vector<nn::KvLayerSpec>& layers, int32_t block_size, const LayerGroup& group) {
  int64_t sum = 0;
  for (const int32_t layer : group) sum += layers[index_of(layer)].block_bytes(block_size);
  return sum;
}

// The layers of each window, windows in the order in which they come first; those of states by themselves.
std::vector<LayerGroup> group_by_window(const std::vector<nn::KvLayerSpec>& layers) {
  std::vector<LayerGroup> kinds;
  for (int32_t i = 0; i < std::ssize(layers); ++i) {
    auto kind = std::ranges::find_if(kinds, [&](const LayerGroup& one) {
      const nn::KvLayerSpec& first = layers[index_of(one.front())];
      const nn::KvLayerSpec& layer = layers[index_of(i)];
      return first.window == layer.window && is_state(first) == is_state(layer);
    });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), LayerGroup());
    kind->push_back(i);
  }
  return kinds;
}

std::vector<LayerGroup> make_groups(const std::vector<nn::KvLayerSpec>& layers, int32_t block_size) {
  const std::vector<LayerGroup> kinds = group_by_window(layers);
  // Blocks are as large as keys and values want them, where there are any: states of few numbers leave less unused.
  const bool all_states = std::ranges::all_of(layers, is_state);
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const LayerGroup& kind : kinds) {
    if (is_state(layers[index_of(kind.front())]) && !all_states) continue;
    most = std::min(most, block_bytes_of(layers, block_size, kind));
  }
  for (const nn::KvLayerSpec& layer : layers) most = std::max(most, layer.block_bytes(block_size));
  std::vector<LayerGroup> groups;
  for (const LayerGroup& kind : kinds) {
    const auto first = std::ssize(groups);  // of this kind
    for (const int32_t layer : kind) {
      const int64_t bytes = layers[index_of(layer)].block_bytes(block_size);
      auto group = std::find_if(groups.begin() + first, groups.end(), [&](const LayerGroup& one) {
        return block_bytes_of(layers, block_size, one) + bytes <= most;
      });
      if (group == groups.end()) group = groups.insert(groups.end(), LayerGroup());
      group->push_back(layer);
    }
  }
  return groups;
}

// The i-th layers of all groups are stored alike.
bool are_alike(const std::vector<nn::KvLayerSpec>& layers, const std::vector<LayerGroup>& groups,
               const LayerGroup& longest) {
  return std::ranges::all_of(groups, [&](const LayerGroup& group) {
    return std::equal(group.begin(), group.end(), longest.begin(),
                      [&](int32_t a, int32_t b) { return layers[index_of(a)].is_stored_as(layers[index_of(b)]); });
  });
}

void give_each_a_piece(const std::vector<LayerGroup>& groups, const LayerGroup& longest, KvLayout& layout) {
  for (const int32_t layer : longest) {
    const nn::KvLayerSpec& spec = layout.layers[index_of(layer)];
    layout.pieces.push_back({.bytes = spec.key_bytes() * layout.block_size + spec.state_bytes(),
                             .num_memories = spec.kind == nn::KvKind::kKeysAndValues ? 2 : 1});
  }
  for (const LayerGroup& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) layout.places[index_of(group[i])].piece = static_cast<int32_t>(i);
  }
}

void share_one_piece(const std::vector<LayerGroup>& groups, KvLayout& layout) {
  KvLayout::Piece& piece = layout.pieces.emplace_back();
  for (const LayerGroup& group : groups) {
    int64_t end = 0;
    const auto take = [&](int64_t bytes) {
      const int64_t begin = end;
      end += (bytes + kKvAlignment - 1) / kKvAlignment * kKvAlignment;
      return begin;
    };
    for (const int32_t layer : group) {
      const nn::KvLayerSpec& spec = layout.layers[index_of(layer)];
      layout.places[index_of(layer)].keys = take(spec.key_bytes() * layout.block_size + spec.state_bytes());
      layout.places[index_of(layer)].values = take(spec.value_bytes() * layout.block_size);
    }
    piece.bytes = std::max(piece.bytes, end);
  }
}

}  // namespace

int64_t KvLayout::token_bytes() const {
  int64_t sum = 0;
  for (size_t i = 0; i < layers.size(); ++i) sum += places[i].piece < 0 ? 0 : layers[i].token_bytes();
  return sum;
}

int64_t KvLayout::unused_bytes() const {
  int64_t used = token_bytes() * block_size;
  for (size_t i = 0; i < layers.size(); ++i) used += places[i].piece < 0 ? 0 : layers[i].state_bytes();
  return static_cast<int64_t>(windows.size()) * block_bytes - used;
}

int32_t block_size_for(const std::vector<nn::KvLayerSpec>& layers, int32_t wanted) {
  int64_t state = 0;
  int64_t token = std::numeric_limits<int64_t>::max();
  for (const nn::KvLayerSpec& layer : layers) {
    state = std::max(state, layer.state_size * static_cast<int64_t>(sizeof(float)));
    if (!is_state(layer)) token = std::min(token, layer.token_bytes());
  }
  if (state == 0 || token == std::numeric_limits<int64_t>::max()) return wanted;
  const int64_t tokens = (state + token - 1) / token;
  const int64_t rounded = (tokens + kStateBlockTokens - 1) / kStateBlockTokens * kStateBlockTokens;
  return static_cast<int32_t>(std::clamp<int64_t>(rounded, wanted, std::numeric_limits<int32_t>::max() / 2));
}

Result<KvLayout> make_kv_layout(std::vector<nn::KvLayerSpec> layers, int32_t block_size, std::optional<nn::Range> held,
                                const std::vector<nn::KvLayerSpec>& uncut) {
  QUIRE_CHECK(uncut.empty() || uncut.size() == layers.size());
  if (layers.empty()) return invalid_argument("a cache of no layers");
  if (block_size < 1) return invalid_argument("blocks of {} tokens", block_size);
  for (size_t i = 0; i < layers.size(); ++i) QUIRE_RETURN_IF_ERROR(check_layer(layers[i], i));
  KvLayout layout;
  layout.block_size = block_size;
  layout.layers = std::move(layers);
  layout.places.resize(layout.layers.size());
  layout.keeps_states = std::ranges::any_of(layout.layers, is_state);
  std::vector<LayerGroup> groups = make_groups(uncut.empty() ? layout.layers : uncut, block_size);
  for (size_t group = 0; group < groups.size(); ++group) {
    layout.windows.push_back(layout.layers[index_of(groups[group].front())].window);
    layout.layers_of_group.push_back(static_cast<int32_t>(groups[group].size()));
    for (const int32_t layer : groups[group]) layout.places[index_of(layer)].group = static_cast<int32_t>(group);
  }
  if (held) {
    for (LayerGroup& group : groups) {
      std::erase_if(group, [&](int32_t layer) {
        const bool is_held = layer >= held->first && layer < held->end();
        if (!is_held) layout.places[index_of(layer)].piece = -1;
        return !is_held;
      });
    }
  }
  const LayerGroup& longest = *std::ranges::max_element(groups, {}, &LayerGroup::size);
  if (are_alike(layout.layers, groups, longest)) {
    give_each_a_piece(groups, longest, layout);
  } else {
    share_one_piece(groups, layout);
  }
  for (const KvLayout::Piece& piece : layout.pieces) layout.block_bytes += piece.block_bytes();
  return layout;
}

std::vector<KvLayerCount> count_layers(const std::vector<nn::KvLayerSpec>& layers) {
  std::vector<KvLayerCount> counts;
  for (const nn::KvLayerSpec& layer : layers) {
    auto count = std::ranges::find(counts, layer, &KvLayerCount::spec);
    if (count == counts.end()) count = counts.insert(counts.end(), {layer, 0});
    ++count->num_layers;
  }
  return counts;
}

}  // namespace quire::runner
