// The steps that take the most memory: what they are made of, and what is made of what they were seen to take.
#include "runner/worst_step.h"

#include <gmock/gmock.h>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

struct Loaded {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  PlannedModel planned;
  std::unique_ptr<models::Model> model;
};

Loaded load(const EngineConfig& config, ops::Backend& backend, const std::string& family) {
  Loaded out;
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path(family));
  EXPECT_TRUE(checkpoint.ok());
  out.checkpoint = std::move(*checkpoint);
  auto planned = plan_model(config, *out.checkpoint, backend, backend.free_memory());
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  out.planned = std::move(*planned);
  nn::Loader loader(nn::Loader::Mode::kLoad, *out.checkpoint, backend);
  auto model = out.planned.family.build(out.planned.config, out.planned.max_model_len, loader);
  EXPECT_TRUE(model.ok()) << model.status().message();
  out.model = std::move(*model);
  return out;
}

class WorstSteps : public testing::TestWithParam<std::string> {};

TEST_P(WorstSteps, RunForEveryNumberOfTokensAndSequences) {
  const auto backend = make_test_backend(GetParam());
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  for (const char* family : {"llama", "gemma3", "gemma4", "gemma4_moe", "qwen3_5"}) {
    for (const auto& [tokens, sequences] : {std::pair{64, 4}, {8, 16}, {40, 1}}) {
      EngineConfig config{.max_num_seqs = sequences, .max_num_batched_tokens = tokens};
      config.num_gpu_blocks_override = 0;
      config.kv_cache_memory_bytes = 1 << 20;
      Loaded loaded = load(config, *backend, family);
      auto runner = ModelRunner::create(loaded.planned, std::move(loaded.model), *backend);
      ASSERT_TRUE(runner.ok()) << runner.status().message();
      run_worst_steps(loaded.planned, **runner);
      EXPECT_FALSE((*runner)->any_under_way());
    }
  }
}

TEST_P(WorstSteps, FitAPoolThatIsSmallerThanTheyWouldHave) {
  const auto backend = make_test_backend(GetParam());
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  EngineConfig config{.max_num_seqs = 4, .max_num_batched_tokens = 64};
  config.num_gpu_blocks_override = 2;
  Loaded loaded = load(config, *backend, "llama");
  EXPECT_GT(blocks_of_worst_steps(loaded.planned), 2);
  auto runner = ModelRunner::create(loaded.planned, std::move(loaded.model), *backend);
  ASSERT_TRUE(runner.ok()) << runner.status().message();
  run_worst_steps(loaded.planned, **runner);
}

INSTANTIATE_TEST_SUITE_P(Backends, WorstSteps, testing::Values("reference", "avx2", "cuda"),
                         [](const auto& values) { return values.param; });

PlannedModel plan_of(int64_t free_bytes) {
  PlannedModel planned;
  planned.max_model_len = 1600;
  planned.max_num_seqs = 1000;
  planned.memory.block_size = 16;
  planned.memory.block_bytes = 1000;
  planned.memory.max_num_batched_tokens = 2048;
  planned.memory.free_bytes = free_bytes;
  planned.memory.memory_utilization = 0.5;
  planned.memory.num_blocks = 7;
  planned.memory.kv_bytes = 7000;
  return planned;
}

TEST(SizePool, ByWhatIsLeftOfTheShare) {
  PlannedModel planned = plan_of(100'000);
  ASSERT_TRUE(size_pool_by(20'500, planned).ok());
  EXPECT_EQ(planned.memory.num_blocks, 29);
  EXPECT_EQ(planned.memory.kv_bytes, 29'000);
}

TEST(SizePool, NeverMoreThanAllSequencesNeed) {
  PlannedModel planned = plan_of(100'000'000);
  planned.max_num_seqs = 2;
  ASSERT_TRUE(size_pool_by(0, planned).ok());
  EXPECT_EQ(planned.memory.num_blocks, 200);
}

TEST(SizePool, OneThatWasAskedForStays) {
  PlannedModel planned = plan_of(0);
  ASSERT_TRUE(size_pool_by(1 << 30, planned).ok());
  EXPECT_EQ(planned.memory.num_blocks, 7);
}

TEST(SizePool, WithoutRoomForABlockSaysWhatTookIt) {
  PlannedModel planned = plan_of(100'000);
  const Status status = size_pool_by(49'500, planned);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), testing::HasSubstr("48.3 KiB"));
}

// On a card, a real one or the emulated one: what is seen is at least what is held, and the pool follows.
TEST(MeasureOnDevice, cudaSeesWhatWeightsAndTheLargestStepTake) {
  const auto backend = make_test_backend("cuda");
  if (backend == nullptr) GTEST_SKIP() << "there is no card";
  const int64_t free_bytes = backend->free_memory();
  EngineConfig config{.max_num_seqs = 4, .max_num_batched_tokens = 64};
  Loaded loaded = load(config, *backend, "llama");
  PlannedModel& planned = loaded.planned;
  const int64_t computed = planned.memory.num_blocks;
  planned.memory.free_bytes = free_bytes;
  auto model = measure_on_device(std::move(loaded.model), free_bytes, planned, *backend);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_NE(*model, nullptr);
  const int64_t held = free_bytes - backend->free_memory();
  EXPECT_GT(held, 0) << "the weights are still there";
  EXPECT_GE(planned.memory.num_blocks, 1);
  EXPECT_LE(planned.memory.num_blocks, planned.memory.blocks_of(planned.max_model_len) * planned.max_num_seqs);
  EXPECT_GT(computed, 0);
  // The model serves a runner whose pool has the new size.
  auto runner = ModelRunner::create(planned, std::move(*model), *backend);
  ASSERT_TRUE(runner.ok()) << runner.status().message();
  run_worst_steps(planned, **runner);
}

}  // namespace
}  // namespace quire::runner
