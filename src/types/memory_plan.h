// Where the memory goes, computed from a model's headers and the configuration before any of it is
// taken. `quire plan` prints it, the start of an engine prints it, and the KV pool is made of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

struct MemoryPlan {
  int64_t weight_bytes = 0;       // packed weights, norms, embedding rows read from the mapped file
  std::string quantization;       // what became of the weights at load, for people; empty: as stored
  std::string converted_weights;  // for people: what --dtype came to; empty: nothing was asked for
  std::string widened_weights;    // for people: of which formats memory holds a wider form; empty: of none
  int64_t workspace_bytes = 0;    // activations of the largest step, logits, kernels' scratch
  int64_t activation_bytes = 0;   // of these, the model's own
  int64_t adapter_bytes = 0;      // of all adapters that may be in memory at once
  int32_t num_adapters = 0;       // how many those are
  int64_t kv_token_bytes = 0;     // of all layers, each as it is (nn/kv_layer.h)
  // Layers that see the same positions share block tables (runner/kv_layout.h): a group each, 0 = all positions.
  std::vector<int32_t> windows = {0};
  bool keeps_states = false;     // of some of these groups: of recurrent layers
  int32_t layers_per_block = 0;  // of the group that has most
  int64_t block_bytes = 0;       // block_size tokens of the group whose layers take most
  int32_t block_size = 0;        // tokens; where states are kept it may be more than was asked for
  int64_t num_blocks = 0;
  int64_t kv_bytes = 0;       // num_blocks * block_bytes
  int64_t free_bytes = 0;     // memory that was free when the plan was made; 0 when the pool's size was given
  int64_t max_model_len = 0;  // tokens
  int64_t max_num_batched_tokens = 0;
  double memory_utilization = 0;
  int64_t num_swap_blocks = 0;           // of the second pool, in host memory or a file
  double seconds_per_swapped_block = 0;  // one way, measured at start; 0: not measured
  int32_t most_draft_tokens = 0;         // of a head that drafts, where it has a number of its own; 0: it has none
  int32_t most_state_drafts = 0;  // where states are kept: draft tokens whose inputs there is room for beside one
  int64_t swap_bytes() const { return num_swap_blocks * block_bytes; }
  int64_t num_offload_slots = 0;  // blocks of the prefix cache in host memory, beyond the pool
  bool offload_to_disk = false;   // and on disk
  bool offload_writes = false;    // which this process writes to; false: another does
  std::string kv_fingerprint;     // what keys and values depend on, where they are sent to others; else empty
  int64_t offload_bytes() const { return num_offload_slots * block_bytes; }

  // Tokens that fit when every group holds them.
  int64_t kv_tokens() const { return num_blocks / static_cast<int64_t>(windows.size()) * block_size; }
  // Blocks that a sequence of `tokens` tokens holds at most: whole ones, and in groups with a window those that a step
  // of max_num_batched_tokens sees.
  int64_t blocks_of(int64_t tokens) const;
  // How many sequences of `tokens` tokens fit at once.
  int64_t sequences_of(int64_t tokens) const {
    const int64_t blocks = blocks_of(tokens);
    return blocks == 0 ? 0 : num_blocks / blocks;
  }
  // Several lines, with the arithmetic.
  std::string to_string() const;
};

// "1.50 GiB", "96.1 MiB"
std::string format_bytes(int64_t bytes);

}  // namespace quire
