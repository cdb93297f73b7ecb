// Layers of one or more models in the blocks of one pool.
#include "runner/kv_layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/runner/kv_specs.h"

namespace quire::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

KvLayout layout_of(const std::vector<nn::KvLayerSpec>& layers, int32_t block_size = 16) {
  auto layout = make_kv_layout(layers, block_size);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return layout.ok() ? std::move(*layout) : KvLayout();
}

std::vector<int32_t> groups_of(const KvLayout& layout) {
  std::vector<int32_t> groups;
  for (const KvLayout::Place& place : layout.places) groups.push_back(place.group);
  return groups;
}

std::vector<nn::KvLayerSpec> joined(std::vector<nn::KvLayerSpec> layers, const std::vector<nn::KvLayerSpec>& more) {
  layers.insert(layers.end(), more.begin(), more.end());
  return layers;
}

TEST(KvLayout, OfLayersThatAreAllAlikeIsOnePieceALayerWithKeysAndValuesInAMemoryEach) {
  const KvLayout layout = layout_of(std::vector(30, plain_layer(3, 64)));
  EXPECT_THAT(layout.windows, ElementsAre(0));
  EXPECT_THAT(layout.layers_of_group, ElementsAre(30));
  ASSERT_EQ(layout.pieces.size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(layout.pieces[i].bytes, 3 * 64 * 2 * 16);
    EXPECT_EQ(layout.pieces[i].num_memories, 2);
    EXPECT_EQ(layout.places[i].piece, static_cast<int32_t>(i));
    EXPECT_EQ(layout.places[i].keys + layout.places[i].values, 0);
  }
  EXPECT_EQ(layout.token_bytes(), 23'040);  // SmolLM2-135M in 16 bits
  EXPECT_EQ(layout.block_bytes, 16 * 23'040);
  EXPECT_EQ(layout.unused_bytes(), 0);
}

TEST(KvLayout, CutsLayersWithWindowsIntoGroupsOfAsManyAsThereAreWithout) {
  std::vector<nn::KvLayerSpec> gemma;
  for (int32_t layer = 0; layer < 18; ++layer) gemma.push_back(plain_layer(1, 256, layer % 6 == 5 ? 0 : 512));
  const KvLayout layout = layout_of(gemma);
  EXPECT_THAT(layout.windows, ElementsAre(512, 512, 512, 512, 512, 0));
  EXPECT_THAT(layout.layers_of_group, ElementsAre(3, 3, 3, 3, 3, 3));
  EXPECT_THAT(groups_of(layout), ElementsAre(0, 0, 0, 1, 1, 5, 1, 2, 2, 2, 3, 5, 3, 3, 4, 4, 4, 5));
  EXPECT_EQ(layout.pieces.size(), 3u);
  EXPECT_EQ(layout.block_bytes, 3 * 2 * 256 * 2 * 16);
  EXPECT_EQ(layout.unused_bytes(), 0);
}

TEST(KvLayout, LeavesWhatTheLastOfTheirGroupsLacksUnused) {
  std::vector<nn::KvLayerSpec> layers(7, plain_layer(2, 16, 24));
  layers.insert(layers.begin() + 1, 3, plain_layer(2, 16));
  const KvLayout layout = layout_of(layers);
  EXPECT_THAT(layout.windows, ElementsAre(24, 24, 24, 0));
  EXPECT_THAT(layout.layers_of_group, ElementsAre(3, 3, 1, 3));
  EXPECT_EQ(layout.pieces.size(), 3u);
  EXPECT_EQ(layout.unused_bytes(), 2 * layers[0].token_bytes() * 16);
}

TEST(KvLayout, OfLayersThatSeeTheSameIsOneGroupInWhichEachTakesItsOwnBytes) {
  const std::vector<nn::KvLayerSpec> layers = {plain_layer(8, 64), plain_layer(2, 64), latent_layer(512, 64),
                                               plain_layer(8, 64, 0, DType::kI8)};
  EXPECT_EQ(layers[0].token_bytes(), 2 * 8 * 64 * 2);
  EXPECT_EQ(layers[1].token_bytes(), 2 * 2 * 64 * 2);
  EXPECT_EQ(layers[2].token_bytes(), 576 * 2);
  EXPECT_EQ(layers[3].token_bytes(), 2 * 8 * (64 + 4));
  const KvLayout layout = layout_of(layers, 32);
  EXPECT_THAT(groups_of(layout), ElementsAre(0, 0, 0, 0));
  ASSERT_EQ(layout.pieces.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.pieces[i].block_bytes(), layers[i].token_bytes() * 32);
  EXPECT_EQ(layout.pieces[2].num_memories, 1) << "values are keys";
  EXPECT_EQ(layout.token_bytes(), 2048 + 512 + 1152 + 1088);
  EXPECT_EQ(layout.block_bytes, layout.token_bytes() * 32);
  EXPECT_EQ(layout.unused_bytes(), 0);
}

TEST(KvLayout, PutsGroupsOfOtherShapesIntoTheSameBytesOfABlock) {
  // 8 layers of 2 kv heads with a window, 2 of 8 without: 4 of the small ones take what a large one does.
  std::vector<nn::KvLayerSpec> layers(8, plain_layer(2, 64, 100));
  layers.insert(layers.begin() + 4, 2, plain_layer(8, 64));
  const KvLayout layout = layout_of(layers);
  EXPECT_THAT(layout.windows, ElementsAre(100, 0));
  EXPECT_THAT(layout.layers_of_group, ElementsAre(8, 2));
  ASSERT_EQ(layout.pieces.size(), 1u);
  EXPECT_EQ(layout.pieces[0].num_memories, 1);
  EXPECT_EQ(layout.block_bytes, 2 * layers[4].token_bytes() * 16);
  EXPECT_EQ(layout.unused_bytes(), 0);
  // The second large layer lies where the fifth small one does, behind four of them or the first large one.
  EXPECT_EQ(layout.places[5].keys, layers[4].token_bytes() * 16);
  EXPECT_EQ(layout.places[6].keys, layers[4].token_bytes() * 16);
}

TEST(KvLayout, GivesALayerThatIsLargerThanAllOfASmallWindowRoomOfItsOwn) {
  const std::vector<nn::KvLayerSpec> layers = {plain_layer(1, 16, 20), plain_layer(4, 16), latent_layer(32, 16),
                                               plain_layer(1, 16, 20), plain_layer(4, 16), latent_layer(32, 16)};
  const KvLayout layout = layout_of(layers);
  // 128 numbers a token: the large ones. The window's two take 64, the latent ones 48 each.
  EXPECT_THAT(layout.windows, ElementsAre(20, 0, 0, 0));
  EXPECT_THAT(groups_of(layout), ElementsAre(0, 1, 2, 0, 3, 2));
  EXPECT_EQ(layout.block_bytes, 128 * 2 * 16);
  EXPECT_EQ(layout.unused_bytes(), (64 + 0 + 32 + 0) * 2 * 16);
}

TEST(KvLayout, TakesTheLayersOfADraftModelIntoTheGroupsOfThoseThatSeeTheSame) {
  // Llama 3.1 8B and one of 16 smaller layers that drafts for it.
  const std::vector<nn::KvLayerSpec> target(32, plain_layer(8, 128));
  const std::vector<nn::KvLayerSpec> draft(16, plain_layer(8, 64));
  const KvLayout together = layout_of(joined(target, draft));
  EXPECT_THAT(together.windows, ElementsAre(0));
  EXPECT_EQ(together.block_bytes, layout_of(target).block_bytes + layout_of(draft).block_bytes);
  EXPECT_EQ(together.token_bytes(), 131'072 + 32'768);
  EXPECT_EQ(together.unused_bytes(), 0);
  for (size_t i = 0; i < 48; ++i) {
    const auto piece = static_cast<size_t>(together.places[i].piece);
    EXPECT_EQ(piece, i);
    EXPECT_EQ(together.pieces[piece].block_bytes(), together.layers[i].token_bytes() * 16);
  }

  // A draft of latent rows for a model with windows: it has what sees everything beside it.
  std::vector<nn::KvLayerSpec> windows;
  for (int32_t layer = 0; layer < 6; ++layer) windows.push_back(plain_layer(2, 64, layer % 3 == 2 ? 0 : 50));
  const KvLayout mixed = layout_of(joined(windows, {latent_layer(96, 32), latent_layer(96, 32)}));
  EXPECT_THAT(mixed.windows, ElementsAre(50, 50, 0));
  EXPECT_THAT(groups_of(mixed), ElementsAre(0, 0, 2, 0, 1, 2, 2, 2));
  EXPECT_EQ(mixed.block_bytes, (2 * 512 + 2 * 256) * 16);
}

// Three layers with a state and one with keys and values, twice, as in Qwen3.5.
TEST(KvLayout, BlocksAreSoLongThatAStateFillsThePlaceOfKeysAndValues) {
  constexpr int64_t kState = 5000;
  std::vector<nn::KvLayerSpec> layers;
  for (int32_t layer = 0; layer < 8; ++layer) {
    layers.push_back(layer % 4 == 3 ? plain_layer(2, 64) : nn::KvLayerSpec::of_state(kState, 100));
  }
  // 20,000 B of 512 a token: 40 tokens.
  ASSERT_EQ(block_size_for(layers, 16), 48);
  EXPECT_EQ(block_size_for(layers, 64), 64);
  EXPECT_EQ(block_size_for({plain_layer(2, 64)}, 16), 16);
  EXPECT_EQ(block_size_for({nn::KvLayerSpec::of_state(kState, 100)}, 16), 16);

  const KvLayout layout = layout_of(layers, 48);
  EXPECT_TRUE(layout.keeps_states);
  EXPECT_THAT(layout.windows, ElementsAre(nn::KvLayerSpec::kStateWindow, nn::KvLayerSpec::kStateWindow,
                                          nn::KvLayerSpec::kStateWindow, 0));
  EXPECT_THAT(layout.layers_of_group, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(groups_of(layout), ElementsAre(0, 0, 1, 3, 1, 2, 2, 3));
  EXPECT_EQ(layout.token_bytes(), 2 * 512);
  ASSERT_EQ(layout.pieces.size(), 1u);
  EXPECT_EQ(layout.block_bytes, 2 * 512 * 48);
  EXPECT_EQ(layout.unused_bytes(), 4 * layout.block_bytes - 2 * 512 * 48 - 6 * 4 * kState);
  EXPECT_EQ(layout.places[0].keys, 0);
  EXPECT_EQ(layout.places[1].keys, 20'032);  // a multiple of 64

  // What drafts leave beside a state makes states larger, and blocks no longer.
  std::vector<nn::KvLayerSpec> drafted = layers;
  for (nn::KvLayerSpec& layer : drafted) layer.most_drafts = layer.kind == nn::KvKind::kState ? 8 : 0;
  EXPECT_EQ(block_size_for(drafted, 16), 48);
  EXPECT_EQ(drafted[0].state_bytes(), (5000 + 8 * 100) * 4);
  EXPECT_EQ(layout_of(drafted, 48).places[1].keys, 23'232);

  // States of few numbers: all of them beside each other, in blocks as long as was asked for.
  for (nn::KvLayerSpec& layer : layers) layer.state_size = layer.kind == nn::KvKind::kState ? 50 : 0;
  EXPECT_EQ(block_size_for(layers, 16), 16);
  EXPECT_THAT(layout_of(layers).layers_of_group, ElementsAre(6, 2));
  // Nothing but states.
  const KvLayout states = layout_of({nn::KvLayerSpec::of_state(10, 1), nn::KvLayerSpec::of_state(10, 1)});
  EXPECT_THAT(states.layers_of_group, ElementsAre(2));
  EXPECT_EQ(states.block_bytes, 80);
  EXPECT_EQ(states.token_bytes() + states.unused_bytes(), 0);
}

// Ranks with unlike parts of heads and of states.
TEST(KvLayout, GroupsAreThoseOfTheUncutModelInAllRanks) {
  const auto layers_of = [](int32_t kv_heads, int64_t state) {
    std::vector<nn::KvLayerSpec> layers;
    for (int32_t layer = 0; layer < 8; ++layer) {
      layers.push_back(layer % 4 == 3 ? plain_layer(kv_heads, 64) : nn::KvLayerSpec::of_state(state, 100));
    }
    return layers;
  };
  const std::vector<nn::KvLayerSpec> uncut = layers_of(3, 5000);
  const KvLayout whole = layout_of(uncut, 32);
  for (const auto& [kv_heads, state] : {std::pair(2, 2400), {1, 2600}, {1, 100}}) {
    const auto cut = make_kv_layout(layers_of(kv_heads, state), 32, std::nullopt, uncut);
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    EXPECT_EQ(groups_of(*cut), groups_of(whole));
    EXPECT_EQ(cut->windows, whole.windows);
    EXPECT_LT(cut->block_bytes, whole.block_bytes);
    EXPECT_GE(cut->unused_bytes(), 0);
  }
  EXPECT_NE(groups_of(layout_of(layers_of(1, 100), 32)), groups_of(whole)) << "or the test shows nothing";
}

TEST(KvLayout, RefusesWhatItHasNoPlaceFor) {
  const auto refused = [](nn::KvLayerSpec layer) {
    const auto layout = make_kv_layout({plain_layer(2, 64), layer}, 16);
    EXPECT_FALSE(layout.ok());
    return layout.status();
  };
  EXPECT_THAT(refused(nn::KvLayerSpec::of_state(0, 1)).message(), HasSubstr("layer 1 keeps a state of 0 numbers"));

  nn::KvLayerSpec uneven = plain_layer(2, 192);
  uneven.value_dim = 128;
  EXPECT_EQ(refused(uneven).code(), StatusCode::kUnimplemented);
  EXPECT_THAT(refused(uneven).message(), HasSubstr("layer 1 has keys of 192 numbers and values of 128"));

  nn::KvLayerSpec longer = latent_layer(64, 16);
  longer.value_dim = 81;
  EXPECT_THAT(refused(longer).message(), HasSubstr("layer 1 reads values of 81 numbers out of rows of 80"));
  EXPECT_THAT(refused(plain_layer(0, 64)).message(), HasSubstr("layer 1 has 0 kv heads"));
  EXPECT_THAT(refused(plain_layer(2, 63)).message(), HasSubstr("keys of 63 numbers"));
  EXPECT_THAT(refused(plain_layer(2, 64, -1)).message(), HasSubstr("a window of -1"));
  EXPECT_THAT(refused(plain_layer(2, 64, 0, DType::kQ4_0)).message(), HasSubstr("layer 1 would be cached as Q4_0"));
  EXPECT_FALSE(make_kv_layout({}, 16).ok());
  EXPECT_FALSE(make_kv_layout({plain_layer(2, 64)}, 0).ok());
}

TEST(KvLayout, OfAnyLayersHasEachOnceInAGroupOfItsWindowAndNoMoreBytesThanABlock) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  for (int round = 0; round < 300; ++round) {
    const std::vector<nn::KvLayerSpec> layers = random_layers(engine);
    const KvLayout layout = layout_of(layers, static_cast<int32_t>(1 + engine() % 40));
    ASSERT_EQ(layout.layers, layers);
    std::vector<int64_t> bytes(layout.windows.size());
    std::vector<int32_t> counts(layout.windows.size());
    int64_t largest = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto group = static_cast<size_t>(layout.places[i].group);
      ASSERT_LT(group, layout.windows.size());
      ASSERT_EQ(layout.windows[group], layers[i].window);
      bytes[group] += layers[i].token_bytes() * layout.block_size;
      ++counts[group];
      largest = std::max(largest, bytes[group]);
    }
    ASSERT_EQ(counts, layout.layers_of_group);
    int64_t block = 0;
    for (const KvLayout::Piece& piece : layout.pieces) block += piece.block_bytes();
    ASSERT_EQ(block, layout.block_bytes);
    ASSERT_GE(layout.block_bytes, largest);
    // No more than what each key and each value is rounded up by.
    ASSERT_LE(layout.block_bytes, largest + 2 * kKvAlignment * std::ssize(layers));
    if (layout.windows.size() == 1) {
      ASSERT_EQ(layout.unused_bytes(), 0);
    }
  }
}

TEST(KvLayers, AreCountedInTheOrderOfTheirFirst) {
  const auto counts = count_layers({plain_layer(2, 64), plain_layer(8, 64), plain_layer(2, 64), plain_layer(2, 64, 9)});
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].num_layers, 2);
  EXPECT_EQ(counts[1].spec, plain_layer(8, 64));
  EXPECT_EQ(counts[2].spec.window, 9);
}

}  // namespace
}  // namespace quire::runner
