// Queries and keys normalised and rotated, keys and values stored, in one op.
#include "ops/prepare_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kDevices;
using testing::kKvFormats;
using testing::Random;
using testing::same_bits;

constexpr int32_t kBlockSize = 8;
constexpr int32_t kNumBlocks = 5;
constexpr int64_t kNumPositions = 60;

struct Heads {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  bool interleaved;
  bool norms;
};

const std::vector<Heads> kHeads = {
    {9, 3, 64, 64, false, false},   // SmolLM2
    {4, 2, 128, 128, false, true},  // Qwen3
    {4, 4, 64, 32, true, false},    // half of a head rotates
    {3, 1, 80, 0, false, false},    // nothing does
    {2, 1, 6, 6, true, true},      {8, 2, 256, 256, false, true}, {2, 2, 10, 4, false, true},
};

// What is left of a projection and of an empty cache.
struct Outcome {
  std::vector<float> heads;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
};

class PrepareHeadsTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  static KvCacheView cache_in(Outcome& outcome, const Heads& heads, DType dtype, bool keys_by_token) {
    KvCacheView cache{.dtype = dtype,
                      .num_blocks = kNumBlocks,
                      .num_kv_heads = heads.num_kv_heads,
                      .head_dim = heads.head_dim,
                      .block_size = kBlockSize,
                      .keys_by_token = keys_by_token};
    outcome.keys.assign(static_cast<size_t>(kNumBlocks * block_bytes(cache)), 0xff);
    outcome.values = outcome.keys;
    cache.keys = outcome.keys.data();
    cache.values = outcome.values.data();
    return cache;
  }

  static void run_steps(Backend& backend, const PrepareHeadsArgs& args) {
    const auto normalise = [&](int32_t first_head, int32_t num_heads, const float* weight) {
      float* heads = args.heads + int64_t{first_head} * args.cache.head_dim;
      backend(RmsNormArgs{.hidden = heads,
                          .weight = weight,
                          .eps = args.eps,
                          .num_tokens = args.num_tokens,
                          .num_groups = num_heads,
                          .size = args.cache.head_dim,
                          .token_stride = args.token_stride,
                          .out = heads});
    };
    if (args.query_weight != nullptr) {
      normalise(0, args.num_heads, args.query_weight);
      normalise(args.num_heads, args.cache.num_kv_heads, args.key_weight);
    }
    if (args.rotary_dim > 0) backend(rotation_of(args));
    backend(write_of(args));
  }
};

TEST_P(PrepareHeadsTest, DoesWhatItsOpsDoOneAfterTheOtherToTheBit) {
  const auto& [isa, dtype] = GetParam();
  QUIRE_BACKEND_OR_SKIP(backend, isa);
  Random random(61);
  for (const Heads& heads : kHeads) {
    const int64_t queries = int64_t{heads.num_heads} * heads.head_dim;
    const int64_t size = queries + 2 * int64_t{heads.num_kv_heads} * heads.head_dim;
    const int64_t stride = size + 5;
    for (const int64_t tokens : {1, 4, 19}) {
      SCOPED_TRACE(::testing::Message() << heads.num_heads << " heads of " << heads.head_dim << ", rotating "
                                        << heads.rotary_dim << ", norms " << heads.norms << ", tokens " << tokens);
      const std::vector<float> projected = random.normals(tokens * stride);
      const std::vector<float> table = random.normals(kNumPositions * std::max(heads.rotary_dim, 1));
      const std::vector<float> query_weight = random.normals(heads.head_dim);
      const std::vector<float> key_weight = random.normals(heads.head_dim);
      std::vector<int64_t> slots;
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < tokens; ++t) {
        slots.push_back(t == 2 ? kNoSlot : 2 * t + 1);
        positions.push_back(static_cast<int32_t>(random.between(0, kNumPositions - 1)));
      }
      Outcome together{.heads = projected, .keys = {}, .values = {}};
      Outcome in_steps = together;
      PrepareHeadsArgs args{.heads = together.heads.data(),
                            .token_stride = stride,
                            .num_tokens = tokens,
                            .num_heads = heads.num_heads,
                            .query_weight = heads.norms ? query_weight.data() : nullptr,
                            .key_weight = heads.norms ? key_weight.data() : nullptr,
                            .eps = 1e-6f,
                            .rotary_dim = heads.rotary_dim,
                            .interleaved = heads.interleaved,
                            .positions = positions.data(),
                            .table = table.data(),
                            .table_positions = kNumPositions,
                            .slots = slots.data(),
                            .cache = cache_in(together, heads, dtype, backend->keys_by_token())};
      (*backend)(args);
      args.heads = in_steps.heads.data();
      args.cache = cache_in(in_steps, heads, dtype, backend->keys_by_token());
      run_steps(*backend, args);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t at = t * stride;
        EXPECT_TRUE(same_bits(together.heads.data() + at, in_steps.heads.data() + at, queries)) << "token " << t;
        EXPECT_TRUE(same_bits(together.heads.data() + at + size, projected.data() + at + size, stride - size));
      }
      EXPECT_EQ(together.keys, in_steps.keys);
      EXPECT_EQ(together.values, in_steps.values);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, PrepareHeadsTest,
                         ::testing::Combine(::testing::ValuesIn(kDevices), ::testing::ValuesIn(kKvFormats)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace quire::ops
