#include "runner/kv_layout.h"

#include <algorithm>
#include <limits>

namespace quire::runner {
namespace {

constexpr size_t index_of(int32_t index) {
  return static_cast<size_t>(index);
}

Status check_layer(const nn::KvLayerSpec& layer, size_t index) {
  if (layer.kind == nn::KvKind::kState) {
    return unimplemented(
        "layer {} keeps a state of fixed size; the cache has room for keys and values and for latent rows, which grow "
        "by the token",
        index);
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

int64_t token_bytes_of(const std::vector<nn::KvLayerSpec>& layers, const LayerGroup& group) {
  int64_t sum = 0;
  for (const int32_t layer : group) sum += layers[index_of(layer)].token_bytes();
  return sum;
}

// The layers of each window, windows in the order in which they come first.
std::vector<LayerGroup> group_by_window(const std::vector<nn::KvLayerSpec>& layers) {
  std::vector<LayerGroup> kinds;
  for (int32_t i = 0; i < std::ssize(layers); ++i) {
    auto kind = std::ranges::find_if(kinds, [&](const LayerGroup& one) {
      return layers[index_of(one.front())].window == layers[index_of(i)].window;
    });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), LayerGroup());
    kind->push_back(i);
  }
  return kinds;
}

std::vector<LayerGroup> make_groups(const std::vector<nn::KvLayerSpec>& layers) {
  const std::vector<LayerGroup> kinds = group_by_window(layers);
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const LayerGroup& kind : kinds) most = std::min(most, token_bytes_of(layers, kind));
  for (const nn::KvLayerSpec& layer : layers) most = std::max(most, layer.token_bytes());
  std::vector<LayerGroup> groups;
  for (const LayerGroup& kind : kinds) {
    const auto first = std::ssize(groups);  // of this kind
    for (const int32_t layer : kind) {
      const int64_t bytes = layers[index_of(layer)].token_bytes();
      auto group = std::find_if(groups.begin() + first, groups.end(),
                                [&](const LayerGroup& one) { return token_bytes_of(layers, one) + bytes <= most; });
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
    layout.pieces.push_back({.bytes = spec.key_bytes() * layout.block_size,
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
    const auto take = [&](int64_t token_bytes) {
      const int64_t begin = end;
      end += (token_bytes * layout.block_size + kKvAlignment - 1) / kKvAlignment * kKvAlignment;
      return begin;
    };
    for (const int32_t layer : group) {
      layout.places[index_of(layer)].keys = take(layout.layers[index_of(layer)].key_bytes());
      layout.places[index_of(layer)].values = take(layout.layers[index_of(layer)].value_bytes());
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
  return static_cast<int64_t>(windows.size()) * block_bytes - token_bytes() * block_size;
}

Result<KvLayout> make_kv_layout(std::vector<nn::KvLayerSpec> layers, int32_t block_size,
                                std::optional<nn::Range> held) {
  if (layers.empty()) return invalid_argument("a cache of no layers");
  if (block_size < 1) return invalid_argument("blocks of {} tokens", block_size);
  for (size_t i = 0; i < layers.size(); ++i) QUIRE_RETURN_IF_ERROR(check_layer(layers[i], i));
  KvLayout layout;
  layout.block_size = block_size;
  layout.layers = std::move(layers);
  layout.places.resize(layout.layers.size());
  std::vector<LayerGroup> groups = make_groups(layout.layers);
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
