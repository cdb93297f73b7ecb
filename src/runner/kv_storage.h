// The memory of the paged KV cache: one buffer a layer for keys, one for values, laid out as ops/kv_cache.h says. Pages
// of the pool that no block has used yet are not resident.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "ops/kv_cache.h"
#include "tensor/tensor.h"
#include "types/model_config.h"

namespace quire::runner {

class KvStorage {
 public:
  // Errors: resource_exhausted. The allocator must outlive the storage.
  static Result<KvStorage> create(const ModelConfig& model, DType dtype, int64_t num_blocks, int32_t block_size,
                                  Allocator& allocator);

  std::span<const ops::KvCacheView> layers() const { return layers_; }

 private:
  std::vector<Buffer> buffers_;
  std::vector<ops::KvCacheView> layers_;
};

}  // namespace quire::runner
