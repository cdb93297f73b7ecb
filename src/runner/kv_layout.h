// How a model's layers share the blocks of one pool.
//
// Layers that see the same positions form a kind; only whole kinds can give blocks back behind a window. So that blocks
// of all kinds are of one size and come from one pool, every kind is cut into groups of as many layers as the smallest
// kind has. A block then holds block_size tokens of one group's layers, and layer i of whatever group lives in buffer
// i.
//   Gemma 3 270M: 15 layers of window 512 and 3 that see all -> 5 groups with a window, 1 without; 3 buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "types/model_config.h"

namespace quire::runner {

struct KvLayout {
  std::vector<int32_t> windows;          // a group each; 0: sees all positions
  std::vector<int32_t> group_of_layer;   // [num_layers]
  std::vector<int32_t> buffer_of_layer;  // [num_layers]
  int32_t num_buffers = 0;               // layers a block holds
};

KvLayout make_kv_layout(const ModelConfig& model);

}  // namespace quire::runner
