#include "runner/kv_storage.h"

#include <chrono>

#include "tensor/file_allocator.h"
#include "types/memory_plan.h"

namespace quire::runner {

Status KvStorage::take(const KvLayout& layout, int64_t num_blocks, const char* flag, Allocator& allocator,
                       std::vector<Buffer>& buffers, std::vector<ops::BlockMemory>& pieces) {
  for (const KvLayout::Piece& piece : layout.pieces) {
    ops::BlockMemory memory{.num_blocks = num_blocks, .bytes = piece.bytes};
    for (size_t part = 0; part < static_cast<size_t>(piece.num_memories); ++part) {
      Buffer buffer(allocator, static_cast<size_t>(num_blocks * piece.bytes));
      if (buffer.data() == nullptr) {
        return resource_exhausted("no memory for {} of KV blocks. Set {} lower.",
                                  format_bytes(num_blocks * layout.block_bytes), flag);
      }
      memory.parts[part] = buffer.data();
      buffers.push_back(std::move(buffer));
    }
    pieces.push_back(memory);
  }
  return {};
}

namespace {

nn::CacheLayer view_layer(const nn::KvLayerSpec& spec, const KvLayout::Place& place, const ops::BlockMemory& piece,
                          int32_t block_size, bool keys_by_token) {
  nn::CacheLayer layer{.view = {.keys = static_cast<uint8_t*>(piece.parts[0]) + place.keys,
                                .dtype = spec.dtype,
                                .num_blocks = piece.num_blocks,
                                .num_kv_heads = spec.num_kv_heads,
                                .head_dim = spec.key_dim,
                                .block_size = block_size,
                                .values_are_keys = spec.kind == nn::KvKind::kLatent,
                                .keys_by_token = keys_by_token,
                                .stride = piece.bytes},
                       .group = place.group};
  if (spec.kind == nn::KvKind::kState) {
    layer.states = {.states = layer.view.keys,
                    .num_blocks = piece.num_blocks,
                    .block_size = block_size,
                    .size = spec.state_floats(),
                    .most_drafts = spec.most_drafts,
                    .stride = piece.bytes};
    layer.view.keys = nullptr;
    return layer;
  }
  void* values = piece.parts[piece.num_parts() == 2 ? 1 : 0];
  if (!layer.view.values_are_keys) layer.view.values = static_cast<uint8_t*>(values) + place.values;
  return layer;
}

}  // namespace

Result<KvStorage> KvStorage::create(const KvLayout& layout, const Config& config, ops::Backend& backend) {
  KvStorage storage;
  QUIRE_RETURN_IF_ERROR(
      take(layout, config.num_blocks, "--kv-cache-memory-bytes", backend.allocator(), storage.buffers_, storage.pool_));
  if (config.num_swap_blocks > 0) {
    Allocator* second = &backend.host_allocator();
    if (!config.swap_folder.empty()) {
      auto file = FileAllocator::create(config.swap_folder);
      if (!file.ok()) return file.status().with_prefix("swap_file: ");
      storage.swap_file_ = std::move(*file);
      second = storage.swap_file_.get();
    }
    QUIRE_RETURN_IF_ERROR(
        take(layout, config.num_swap_blocks, "--swap-space", *second, storage.buffers_, storage.swap_));
  }
  if (config.num_offload_slots > 0) {
    QUIRE_RETURN_IF_ERROR(take(layout, config.num_offload_slots, "--kv-offloading-size", backend.host_allocator(),
                               storage.buffers_, storage.offload_));
  }
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const KvLayout::Place& place = layout.places[i];
    storage.piece_of_layer_.push_back(place.piece);
    // Of another stage's layer the sizes, and no memory.
    const ops::BlockMemory elsewhere{.num_blocks = config.num_blocks};
    const ops::BlockMemory& piece = place.piece < 0 ? elsewhere : storage.pool_[static_cast<size_t>(place.piece)];
    storage.layers_.push_back(view_layer(layout.layers[i], place, piece, layout.block_size, backend.keys_by_token()));
  }
  return storage;
}

namespace {

void copy_blocks(ops::Backend& backend, const ops::BlockMemory& from, const ops::BlockMemory& to,
                 const std::vector<ops::BlockCopy>& copies) {
  backend(ops::CopyBlocksArgs{
      .source = from, .destination = to, .copies = copies.data(), .num_copies = static_cast<int64_t>(copies.size())});
}

}  // namespace

void KvStorage::swap(ops::Backend& backend, std::span<const SwapCopy> out, std::span<const SwapCopy> in) {
  swaps_ = !out.empty() || !in.empty();
  for (size_t layer = 0; layer < layers_.size(); ++layer) layers_[layer].moved = swaps_ ? piece_of_layer_[layer] : -1;
  if (!swaps_) return;
  std::vector<ops::BlockCopy> moved_out;
  std::vector<ops::BlockCopy> moved_in;
  for (const SwapCopy& copy : out) moved_out.push_back({copy.block, copy.slot});
  for (const SwapCopy& copy : in) moved_in.push_back({copy.slot, copy.block});
  for (size_t i = 0; i < pool_.size(); ++i) {
    backend.on_side_stream(static_cast<int>(i), [&] {
      copy_blocks(backend, pool_[i], swap_[i], moved_out);
      copy_blocks(backend, swap_[i], pool_[i], moved_in);
    });
  }
}

void KvStorage::load(ops::Backend& backend, std::span<const OffloadCopy> loads) {
  if (loads.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const OffloadCopy& copy : loads) moved.push_back({copy.slot, copy.block});
  for (size_t i = 0; i < pool_.size(); ++i) {
    const auto copy_piece = [&] { copy_blocks(backend, offload_[i], pool_[i], moved); };
    if (swaps_) {
      backend.on_side_stream(static_cast<int>(i), copy_piece);  // behind what is swapped out of these blocks
    } else {
      copy_piece();
    }
  }
}

void KvStorage::store(ops::Backend& backend, std::span<const OffloadCopy> stores) {
  if (stores.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const OffloadCopy& copy : stores) moved.push_back({copy.block, copy.slot});
  for (size_t i = 0; i < pool_.size(); ++i) copy_blocks(backend, pool_[i], offload_[i], moved);
}

std::vector<std::span<uint8_t>> KvStorage::slot_parts(OffloadSlot slot) const {
  std::vector<std::span<uint8_t>> parts;
  for (const ops::BlockMemory& piece : offload_) {
    for (int part = 0; part < piece.num_parts(); ++part) {
      auto* memory = static_cast<uint8_t*>(piece.parts[static_cast<size_t>(part)]);
      parts.emplace_back(memory + slot * piece.bytes, static_cast<size_t>(piece.bytes));
    }
  }
  return parts;
}

void KvStorage::copy(ops::Backend& backend, std::span<const BlockCopy> copies) {
  if (copies.empty()) return;
  std::vector<ops::BlockCopy> moved;
  for (const BlockCopy& copy : copies) moved.push_back({copy.source, copy.destination});
  for (size_t i = 0; i < pool_.size(); ++i) {
    const auto copy_piece = [&] { copy_blocks(backend, pool_[i], pool_[i], moved); };
    if (swaps_) {
      backend.on_side_stream(static_cast<int>(i), copy_piece);  // behind what is swapped of it
    } else {
      copy_piece();
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
