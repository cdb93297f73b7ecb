// The memory of the paged KV cache: the pieces of its blocks (runner/kv_layout.h), in which layers lie as
// ops/kv_cache.h says; and of the second pool that blocks are swapped to. Pages that no block has used yet are not
// resident.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "nn/batch.h"
#include "ops/backend.h"
#include "runner/kv_layout.h"
#include "tensor/tensor.h"
#include "types/step_plan.h"

namespace quire::runner {

class KvStorage {
 public:
  struct Config {
    int64_t num_blocks = 0;
    int64_t num_swap_blocks = 0;
    std::string swap_folder;  // empty: the second pool lies in host memory
    int64_t num_offload_slots = 0;
  };
  // Errors: resource_exhausted; invalid_argument for a swap folder that cannot be used. The backend must outlive the
  // storage.
  static Result<KvStorage> create(const KvLayout& layout, const Config& config, ops::Backend& backend);

  std::span<const nn::CacheLayer> layers() const { return layers_; }

  // What a plan moves between the two pools, then within the first one: piece by piece beside what is called later,
  // where the backend does things beside each other. Until the next call each layer says in layers() what it has to
  // wait for.
  void swap(ops::Backend& backend, std::span<const SwapCopy> out, std::span<const SwapCopy> in);
  void copy(ops::Backend& backend, std::span<const BlockCopy> copies);
  // Between pool and the prefix cache's slots in host memory, in their turn with what is called.
  void load(ops::Backend& backend, std::span<const OffloadCopy> loads);
  void store(ops::Backend& backend, std::span<const OffloadCopy> stores);
  // Where a slot's bytes lie, one piece after the other.
  std::vector<std::span<uint8_t>> slot_parts(OffloadSlot slot) const;
  bool swaps() const { return swaps_; }  // the last call of swap() had something to move
  // Seconds that a block takes from one pool to the other, memory that was touched before. REQUIRES: a second pool, and
  // that nobody uses either.
  double measure_swap(ops::Backend& backend);

 private:
  // The pieces' memories, of num_blocks blocks.
  static Status take(const KvLayout& layout, int64_t num_blocks, const char* flag, Allocator& allocator,
                     std::vector<Buffer>& buffers, std::vector<ops::BlockMemory>& pieces);

  std::unique_ptr<Allocator> swap_file_;  // outlives the buffers
  std::vector<Buffer> buffers_;
  std::vector<ops::BlockMemory> pool_;     // [pieces]
  std::vector<ops::BlockMemory> swap_;     // the same; empty: no second pool
  std::vector<ops::BlockMemory> offload_;  // the same
  std::vector<nn::CacheLayer> layers_;     // [layers]
  std::vector<int32_t> piece_of_layer_;
  bool swaps_ = false;
};

}  // namespace quire::runner
