// How the layers of a model, or of several that run together, share the blocks of one pool.
//
// Layers that see the same positions could share a block table; only whole groups of them can give blocks back behind a
// window. So that blocks of all groups are of one size and come from one pool, the layers of each window are cut into
// groups of at most as many bytes a token as the layers of that window take which has fewest, or as the largest layer
// takes if that is more: each layer in turn joins the first of its window's groups that has room. A block then holds
// block_size tokens of one group's layers.
//   Gemma 3 270M: 15 layers of window 512 and 3 that see all -> 5 groups with a window, 1 without, of 3 layers each.
//
// Layers that keep a state are a kind of their own, whose bytes do not depend on block_size. So that a state does not
// leave most of the other groups' blocks unused, blocks of such models have at least as many tokens as fill a state's
// place with keys and values (block_size_for()).
//   Qwen3.5 0.8B: 18 layers of a state of 1,121 KB and 6 of 2 KB a token -> blocks of 560 tokens, 3 groups of states of
//   6 layers each, 1 of keys and values.
//
// In memory a block is a row of pieces, each piece of all blocks a memory of its own:
//   - where the i-th layers of all groups are stored alike (as in every model of one kind of layer, and whenever there
//     is one group) piece i is that layer, its keys and its values in a memory each;
//   - else there is one piece, in which a group's layers follow each other, keys, then values, each at a multiple of
//     kKvAlignment bytes. Groups that take less than the largest leave the rest of their blocks unused.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "nn/kv_layer.h"
#include "nn/shard.h"

namespace quire::runner {

inline constexpr int64_t kKvAlignment = 64;

struct KvLayout {
  // Where a layer's keys and values lie in a block.
  struct Place {
    int32_t group = 0;
    int32_t piece = 0;   // -1: another stage has it
    int64_t keys = 0;    // bytes from the beginning of the piece
    int64_t values = 0;  // the same, of the piece's second memory where it has two; unused where values are keys
  };
  struct Piece {
    int64_t bytes = 0;  // of a block, in each memory
    int32_t num_memories = 1;
    int64_t block_bytes() const { return bytes * num_memories; }
  };

  int32_t block_size = 0;  // tokens
  std::vector<nn::KvLayerSpec> layers;
  std::vector<Place> places;             // [layers]
  std::vector<Piece> pieces;             // of a block
  std::vector<int32_t> windows;          // a group each; 0: sees all positions
  bool keeps_states = false;             // of any group
  std::vector<int32_t> layers_of_group;  // a group each: how many
  int64_t block_bytes = 0;               // of all pieces

  // Of all layers that are held. A token takes so many as long as all windows reach it.
  int64_t token_bytes() const;
  // What no layer uses of a block of each group together.
  int64_t unused_bytes() const;
};

// Layers of models that run together follow each other: a draft model's come behind those of the model that it drafts
// for, and share the block tables of the layers that see the same positions.
// Errors: invalid_argument for no layers, sizes that are none, an element type that is none of the cache's;
// unimplemented for values of another size than their keys.
// held: of a stage of a pipeline these layers alone have memory; which group a layer belongs to does not depend on it.
// uncut: of a rank that has a part of each layer, all of them whole; which group a layer belongs to follows from these,
// so that ranks of unlike parts agree. Empty: layers.
Result<KvLayout> make_kv_layout(std::vector<nn::KvLayerSpec> layers, int32_t block_size,
                                std::optional<nn::Range> held = std::nullopt,
                                const std::vector<nn::KvLayerSpec>& uncut = {});

// Tokens of a block: `wanted`, or where layers keep states as many, a multiple of kStateBlockTokens, as take at least
// the memory of the largest state in the smallest layer that has keys. What drafts leave beside a state does not count:
// attention sums over blocks, so their size must not depend on whether anybody drafts.
inline constexpr int32_t kStateBlockTokens = 16;
int32_t block_size_for(const std::vector<nn::KvLayerSpec>& layers, int32_t wanted);

// Layers of one spec, as many as there are of it.
struct KvLayerCount {
  nn::KvLayerSpec spec;
  int32_t num_layers = 0;
};
// In the order in which each spec comes first.
std::vector<KvLayerCount> count_layers(const std::vector<nn::KvLayerSpec>& layers);

}  // namespace quire::runner
