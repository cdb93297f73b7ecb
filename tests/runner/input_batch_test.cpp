#include "runner/input_batch.h"

#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"

namespace quire::runner {
namespace {

TEST(InputBatch, ABlockThatTheCacheDoesNotHaveIsFoundOnceForAllLayers) {
  const auto backend = ops::make_reference_backend();
  InputBatch batch(*backend, 1);
  std::unordered_map<SequenceId, SequenceState> states;
  const std::vector<TokenId> tokens(20, 5);
  const auto params = std::make_shared<const SamplingParams>();
  states.emplace(1, SequenceState{.tokens = sampling::TokenHistory(tokens),
                                  .num_prompt_tokens = 20,
                                  .params = params,
                                  .sampler = sampling::SequenceSampler(params, tokens, 0, 100, {})});
  std::vector<float> cells(2 * 16 * 2);
  const ops::KvCacheView view{.keys = cells.data(),
                              .values = cells.data(),
                              .dtype = DType::kF32,
                              .num_blocks = 2,
                              .num_kv_heads = 1,
                              .head_dim = 2,
                              .block_size = 16};
  const std::vector<nn::CacheLayer> layers(3, {.view = view});
  StepPlan plan;
  plan.scheduled.push_back({.id = 1, .num_new_tokens = 20});
  const TableChange whole{.id = 1, .num_blocks = 2, .count = 2};
  states.at(1).tables.take(whole, std::vector<BlockId>{1, 0});
  plan.num_tokens = 20;
  batch.build(plan, states, 16);
  EXPECT_TRUE(batch.view(layers).tables_checked);

  states.at(1).tables.take(whole, std::vector<BlockId>{1, 2});
  batch.build(plan, states, 16);
  EXPECT_DEATH(batch.view(layers), "block 1 of its table is 2, the cache has 2");
}

}  // namespace
}  // namespace quire::runner
