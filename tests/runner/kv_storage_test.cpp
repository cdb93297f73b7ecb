// The memory of layers that differ.
#include "runner/kv_storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "ops/reference/reference_backend.h"
#include "tests/runner/kv_specs.h"

namespace quire::runner {
namespace {

// Five blocks for each of as many groups as random_layers() has layers, and as many slots as two of them; no multiple
// of 7, by which the test scatters them.
constexpr int32_t kPoolBlocks = 5 * 12;
constexpr int32_t kSwapBlocks = 2 * 12 + 1;

KvLayout random_layout(std::mt19937_64& engine) {
  auto layout = make_kv_layout(random_layers(engine), static_cast<int32_t>(1 + engine() % 20));
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return std::move(*layout);
}

KvStorage storage_of(const KvLayout& layout, ops::Backend& backend, const std::string& swap_folder = "") {
  auto storage = KvStorage::create(
      layout, {.num_blocks = kPoolBlocks, .num_swap_blocks = kSwapBlocks, .swap_folder = swap_folder}, backend);
  EXPECT_TRUE(storage.ok()) << storage.status().message();
  return std::move(*storage);
}

struct Bytes {
  uint8_t* begin;
  int64_t size;
};

// What the layer has of a block: keys, then values where there are any.
std::vector<Bytes> bytes_of(const nn::CacheLayer& layer, BlockId block) {
  const ops::KvCacheView& view = layer.view;
  const int64_t at = block * ops::block_stride(view);
  std::vector<Bytes> parts = {{static_cast<uint8_t*>(view.keys) + at, ops::block_bytes(view)}};
  if (!view.values_are_keys) parts.push_back({static_cast<uint8_t*>(view.values) + at, ops::block_bytes(view)});
  return parts;
}

void fill(const nn::CacheLayer& layer, BlockId block, std::mt19937_64& engine) {
  for (const Bytes& part : bytes_of(layer, block)) {
    std::generate_n(part.begin, part.size, [&] { return static_cast<uint8_t>(engine()); });
  }
}

std::vector<uint8_t> read(const nn::CacheLayer& layer, BlockId block) {
  std::vector<uint8_t> out;
  for (const Bytes& part : bytes_of(layer, block)) out.insert(out.end(), part.begin, part.begin + part.size);
  return out;
}

TEST(KvStorage, GivesEveryLayerOfABlocksGroupBytesOfItsOwnWhateverGroupsTheBlocksBelongTo) {
  auto backend = ops::make_reference_backend();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  for (int round = 0; round < 100; ++round) {
    const KvLayout layout = random_layout(engine);
    const KvStorage storage = storage_of(layout, *backend);
    ASSERT_EQ(storage.layers().size(), layout.layers.size());
    std::vector<Bytes> taken;
    int64_t sum = 0;
    for (BlockId block = 0; block < kPoolBlocks; ++block) {
      const auto group = static_cast<int32_t>(engine() % layout.windows.size());
      for (size_t i = 0; i < layout.layers.size(); ++i) {
        const nn::CacheLayer& layer = storage.layers()[i];
        ASSERT_EQ(layer.group, layout.places[i].group);
        if (layer.group != group) continue;
        int64_t bytes = 0;
        for (const Bytes& part : bytes_of(layer, block)) {
          taken.push_back(part);
          bytes += part.size;
        }
        ASSERT_EQ(bytes, layout.layers[i].token_bytes() * layout.block_size);
        sum += bytes;
      }
    }
    ASSERT_LE(sum, kPoolBlocks * layout.block_bytes);
    std::ranges::sort(taken, {}, &Bytes::begin);
    for (size_t i = 1; i < taken.size(); ++i) {
      ASSERT_LE(taken[i - 1].begin + taken[i - 1].size, taken[i].begin) << "two layers meet";
    }
  }
}

TEST(KvStorage, BringsBlocksOfEveryGroupBackFromTheSecondPoolByteForByte) {
  auto backend = ops::make_reference_backend();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  for (int round = 0; round < 40; ++round) {
    const KvLayout layout = random_layout(engine);
    KvStorage storage = storage_of(layout, *backend, round % 2 == 0 ? "" : testing::TempDir());
    const auto num_groups = static_cast<int32_t>(layout.windows.size());
    ASSERT_LE(5 * num_groups, kPoolBlocks);
    // Block b belongs to group b % num_groups; what goes out of it comes back to one of the same group.
    std::vector<std::vector<std::vector<uint8_t>>> before(layout.layers.size());
    const auto for_each = [&](const auto& body) {
      for (size_t i = 0; i < layout.layers.size(); ++i) {
        const nn::CacheLayer& layer = storage.layers()[i];
        for (BlockId block = layer.group; block < kPoolBlocks; block += num_groups) body(i, layer, block);
      }
    };
    for_each([&](size_t, const nn::CacheLayer& layer, BlockId block) { fill(layer, block, engine); });
    for (auto& blocks : before) blocks.resize(kPoolBlocks);
    for_each([&](size_t i, const nn::CacheLayer& layer, BlockId block) {
      before[i][static_cast<size_t>(block)] = read(layer, block);
    });
    std::vector<SwapCopy> out;
    std::vector<SwapCopy> in;
    for (BlockId block = 0; block < 2 * num_groups; ++block) {
      const auto slot = static_cast<SwapSlot>((block * 7 + 3) % kSwapBlocks);
      out.push_back({.block = block, .slot = slot});
      in.push_back({.block = block + 2 * num_groups, .slot = slot});
    }
    storage.swap(*backend, out, {});
    EXPECT_TRUE(storage.swaps());
    for_each([&](size_t, const nn::CacheLayer& layer, BlockId block) {
      if (block < 2 * num_groups) fill(layer, block, engine);  // somebody else's now
    });
    storage.swap(*backend, {}, in);
    storage.copy(*backend, std::vector<BlockCopy>{{.source = 2 * num_groups, .destination = 4 * num_groups}});
    for_each([&](size_t i, const nn::CacheLayer& layer, BlockId block) {
      layer.wait(*backend);
      const BlockId from = block == 4 * num_groups                             ? 0
                           : block >= 2 * num_groups && block < 4 * num_groups ? block - 2 * num_groups
                                                                               : block;
      if (block < 2 * num_groups) return;
      ASSERT_EQ(read(layer, block), before[i][static_cast<size_t>(from)]) << "layer " << i << ", block " << block;
    });
  }
}

TEST(KvStorage, KeepsABlocksLayersWaitingForTheirOwnPieceAlone) {
  auto backend = ops::make_reference_backend();
  const auto moved = [&](const std::vector<nn::KvLayerSpec>& layers) {
    auto layout = make_kv_layout(layers, 16);
    EXPECT_TRUE(layout.ok());
    KvStorage storage = storage_of(*layout, *backend);
    storage.swap(*backend, std::vector<SwapCopy>{{.block = 1, .slot = 0}}, {});
    std::vector<int32_t> marks;
    for (const nn::CacheLayer& layer : storage.layers()) marks.push_back(layer.moved);
    storage.swap(*backend, {}, {});
    EXPECT_EQ(storage.layers().front().moved, -1);
    return marks;
  };
  EXPECT_EQ(moved({plain_layer(8, 64), plain_layer(2, 64), latent_layer(32, 16)}), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(moved({plain_layer(8, 64), plain_layer(2, 64, 30)}), (std::vector<int32_t>{0, 0}));
}

}  // namespace
}  // namespace quire::runner
