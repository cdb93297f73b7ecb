#include "runner/kv_storage.h"

#include <chrono>

#include "tensor/file_allocator.h"
#include "types/memory_plan.h"

namespace quire::runner {

Status KvStorage::make_views(const ModelConfig& model, const Config& config, int64_t num_blocks, int32_t num_buffers,
                             const char* flag, bool keys_by_token, Allocator& allocator, std::vector<Buffer>& buffers,
                             std::vector<ops::KvCacheView>& views) {
  ops::KvCacheView view{.dtype = config.dtype,
                        .num_blocks = num_blocks,
                        .num_kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim,
                        .block_size = config.block_size,
                        .values_are_keys = model.values_are_keys,
                        .keys_by_token = keys_by_token};
  const int64_t bytes = num_blocks * ops::block_bytes(view);
  for (int32_t i = 0; i < num_buffers; ++i) {
    for (void** part : {&view.keys, &view.values}) {
      if (part == &view.values && model.values_are_keys) continue;
      Buffer buffer(allocator, static_cast<size_t>(bytes));
      if (buffer.data() == nullptr) {
        return resource_exhausted("no memory for {} of KV blocks. Set {} lower.",
                                  format_bytes(bytes * (model.values_are_keys ? 1 : 2) * num_buffers), flag);
      }
      *part = buffer.data();
      buffers.push_back(std::move(buffer));
    }
    views.push_back(view);
  }
  return {};
}

Result<KvStorage> KvStorage::create(const ModelConfig& model, const Config& config, ops::Backend& backend) {
  KvStorage storage;
  const KvLayout layout = make_kv_layout(model);
  QUIRE_RETURN_IF_ERROR(make_views(model, config, config.num_blocks, layout.num_buffers, "--kv-cache-memory-bytes",
                                   backend.keys_by_token(), backend.allocator(), storage.buffers_, storage.pool_));
  if (config.num_swap_blocks > 0) {
    Allocator* second = &backend.host_allocator();
    if (!config.swap_folder.empty()) {
      auto file = FileAllocator::create(config.swap_folder);
      if (!file.ok()) return file.status().with_prefix("swap_file: ");
      storage.swap_file_ = std::move(*file);
      second = storage.swap_file_.get();
    }
    QUIRE_RETURN_IF_ERROR(make_views(model, config, config.num_swap_blocks, layout.num_buffers, "--swap-space",
                                     backend.keys_by_token(), *second, storage.buffers_, storage.swap_));
  }
  for (size_t layer = 0; layer < layout.group_of_layer.size(); ++layer) {
    storage.layers_.push_back({.view = storage.pool_[static_cast<size_t>(layout.buffer_of_layer[layer])],
                               .group = layout.group_of_layer[layer]});
  }
  return storage;
}

namespace {

void copy_blocks(ops::Backend& backend, const std::vector<ops::KvCacheView>& from,
                 const std::vector<ops::KvCacheView>& to, const std::vector<ops::BlockCopy>& copies) {
  for (size_t i = 0; i < from.size(); ++i) {
    backend(ops::CopyBlocksArgs{.source = from[i],
                                .destination = to[i],
                                .copies = copies.data(),
                                .num_copies = static_cast<int64_t>(copies.size())});
  }
}

}  // namespace

void KvStorage::swap_out(ops::Backend& backend, std::span<const SwapCopy> copies) const {
  if (copies.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const SwapCopy& copy : copies) moved.push_back({copy.block, copy.slot});
  copy_blocks(backend, pool_, swap_, moved);
}

void KvStorage::swap_in(ops::Backend& backend, std::span<const SwapCopy> copies) const {
  if (copies.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const SwapCopy& copy : copies) moved.push_back({copy.slot, copy.block});
  copy_blocks(backend, swap_, pool_, moved);
}

void KvStorage::copy(ops::Backend& backend, std::span<const BlockCopy> copies) const {
  if (copies.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const BlockCopy& copy : copies) moved.push_back({copy.source, copy.destination});
  copy_blocks(backend, pool_, pool_, moved);
}

double KvStorage::measure_swap(ops::Backend& backend) const {
  constexpr int kRounds = 5;
  const SwapCopy copies[] = {{.block = 0, .slot = 0}};
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    swap_out(backend, copies);
    backend.synchronise();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // The first round makes the pages resident.
    if (round == 1 || (round > 1 && seconds < best)) best = seconds;
  }
  return best;
}

}  // namespace quire::runner
