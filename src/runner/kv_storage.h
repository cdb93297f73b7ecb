// The memory of the paged KV cache: for each layer of a block one buffer for keys and one for values, laid out as
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
#include "types/model_config.h"
#include "types/step_plan.h"

namespace quire::runner {

class KvStorage {
 public:
  struct Config {
    DType dtype = DType::kF32;
    int64_t num_blocks = 0;
    int32_t block_size = 0;
    int64_t num_swap_blocks = 0;
    std::string swap_folder;  // empty: the second pool lies in host memory
  };
  // Errors: resource_exhausted; invalid_argument for a swap folder that cannot be used. The backend must outlive the
  // storage.
  static Result<KvStorage> create(const ModelConfig& model, const Config& config, ops::Backend& backend);

  std::span<const nn::CacheLayer> layers() const { return layers_; }

  // What a plan moves between the two pools, then within the first one: layer by layer beside what is called later,
  // where the backend does things beside each other. Until the next call each layer says in layers() what it has to
  // wait for.
  void swap(ops::Backend& backend, std::span<const SwapCopy> out, std::span<const SwapCopy> in);
  void copy(ops::Backend& backend, std::span<const BlockCopy> copies);
  bool swaps() const { return swaps_; }  // the last call of swap() had something to move
  // Seconds that a block takes from one pool to the other, memory that was touched before. REQUIRES: a second pool, and
  // that nobody uses either.
  double measure_swap(ops::Backend& backend);

 private:
  static Status make_views(const ModelConfig& model, const Config& config, int64_t num_blocks, int32_t num_buffers,
                           const char* flag, bool keys_by_token, Allocator& allocator, std::vector<Buffer>& buffers,
                           std::vector<ops::KvCacheView>& views);

  std::unique_ptr<Allocator> swap_file_;  // outlives the buffers
  std::vector<Buffer> buffers_;
  std::vector<ops::KvCacheView> pool_;  // [layers of a block]
  std::vector<ops::KvCacheView> swap_;  // the same; empty: no second pool
  std::vector<nn::CacheLayer> layers_;  // [layers of the model]
  std::vector<int32_t> buffer_of_layer_;
  bool swaps_ = false;
};

}  // namespace quire::runner
