#include "runner/kv_storage.h"

#include "types/memory_plan.h"

namespace quire::runner {

Result<KvStorage> KvStorage::create(const ModelConfig& model, DType dtype, int64_t num_blocks, int32_t block_size,
                                    Allocator& allocator) {
  KvStorage storage;
  ops::KvCacheView view{.dtype = dtype,
                        .num_blocks = num_blocks,
                        .num_kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim,
                        .block_size = block_size};
  const int64_t bytes = num_blocks * ops::block_bytes(view);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (void** part : {&view.keys, &view.values}) {
      Buffer buffer(allocator, static_cast<size_t>(bytes));
      if (buffer.data() == nullptr) {
        return resource_exhausted(
            "no memory for the KV cache: {} of {} for layer {} of {}. Set --kv-cache-memory-bytes lower.",
            format_bytes(bytes), format_bytes(bytes * 2 * model.num_layers), layer + 1, model.num_layers);
      }
      *part = buffer.data();
      storage.buffers_.push_back(std::move(buffer));
    }
    storage.layers_.push_back(view);
  }
  return storage;
}

}  // namespace quire::runner
