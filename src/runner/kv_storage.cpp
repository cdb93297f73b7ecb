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
  storage.buffer_of_layer_ = layout.buffer_of_layer;
  for (size_t layer = 0; layer < layout.group_of_layer.size(); ++layer) {
    storage.layers_.push_back({.view = storage.pool_[static_cast<size_t>(layout.buffer_of_layer[layer])],
                               .group = layout.group_of_layer[layer]});
  }
  return storage;
}

namespace {

void copy_blocks(ops::Backend& backend, const ops::KvCacheView& from, const ops::KvCacheView& to,
                 const std::vector<ops::BlockCopy>& copies) {
  backend(ops::CopyBlocksArgs{
      .source = from, .destination = to, .copies = copies.data(), .num_copies = static_cast<int64_t>(copies.size())});
}

}  // namespace

void KvStorage::swap(ops::Backend& backend, std::span<const SwapCopy> out, std::span<const SwapCopy> in) {
  swaps_ = !out.empty() || !in.empty();
  for (size_t layer = 0; layer < layers_.size(); ++layer) layers_[layer].moved = swaps_ ? buffer_of_layer_[layer] : -1;
  if (!swaps_) return;
  std::vector<ops::BlockCopy> moved_out;
  std::vector<ops::BlockCopy> moved_in;
  for (const SwapCopy& copy : out) moved_out.push_back({copy.block, copy.slot});
  for (const SwapCopy& copy : in) moved_in.push_back({copy.slot, copy.block});
  for (size_t i = 0; i < pool_.size(); ++i) {
    backend.beside(static_cast<int>(i), [&] {
      copy_blocks(backend, pool_[i], swap_[i], moved_out);
      copy_blocks(backend, swap_[i], pool_[i], moved_in);
    });
  }
}

void KvStorage::copy(ops::Backend& backend, std::span<const BlockCopy> copies) {
  if (copies.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const BlockCopy& copy : copies) moved.push_back({copy.source, copy.destination});
  for (size_t i = 0; i < pool_.size(); ++i) {
    const auto copy_layer = [&] { copy_blocks(backend, pool_[i], pool_[i], moved); };
    if (swaps_) {
      backend.beside(static_cast<int>(i), copy_layer);  // behind what the layer swaps
    } else {
      copy_layer();
    }
  }
}

double KvStorage::measure_swap(ops::Backend& backend) {
  constexpr int kRounds = 5;
  const SwapCopy copies[] = {{.block = 0, .slot = 0}};
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    swap(backend, copies, {});
    for (const nn::CacheLayer& layer : layers_) layer.wait(backend);
    backend.synchronise();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // The first round makes the pages resident.
    if (round == 1 || (round > 1 && seconds < best)) best = seconds;
  }
  swap(backend, {}, {});
  return best;
}

}  // namespace quire::runner
