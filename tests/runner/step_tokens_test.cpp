// How many tokens a step has where nobody says.
#include <gtest/gtest.h>

#include <filesystem>

#include "runner/memory_planner.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

int64_t tokens_of_a_step(const EngineConfig& config, ops::Backend& backend,
                         const std::string& path = tiny_path("llama")) {
  auto checkpoint = checkpoint::Checkpoint::open(path);
  EngineConfig own = config;
  own.kv_cache_memory_bytes = 1 << 20;
  auto planned = plan_model(own, **checkpoint, backend, 0);
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  return planned->memory.max_num_batched_tokens;
}

TEST(TokensOfAStep, AreWhatIsSaidOrWhatSuitsTheDevice) {
  const auto real = ops::make_reference_backend();
  EXPECT_EQ(tokens_of_a_step({}, *real), 512);
  EXPECT_EQ(tokens_of_a_step({.max_num_batched_tokens = 7}, *real), 7);
}

TEST(TokensOfAStep, cudaHasMoreOfThem) {
  const auto backend = make_test_backend("cuda");
  if (backend == nullptr) GTEST_SKIP() << "there is no card";
  EXPECT_EQ(tokens_of_a_step({}, *backend), 2048);
  EXPECT_EQ(tokens_of_a_step({.max_num_batched_tokens = 7}, *backend), 7);
}

// The tiny llama, made for so many positions.
std::string with_positions(int64_t positions) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "step_tokens_llama";
  fs::create_directories(folder);
  fs::copy(tiny_path("llama"), folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  std::ifstream in(folder / "config.json");
  boost::json::value config = boost::json::parse(in);
  config.as_object()["max_position_embeddings"] = positions;
  in.close();
  std::ofstream(folder / "config.json") << config;
  return folder.string();
}

TEST(TokensOfAStep, HoldTheLongestPromptWherePromptsAreNotCut) {
  const auto real = ops::make_reference_backend();
  const std::string path = with_positions(3000);
  EngineConfig config;
  EXPECT_EQ(tokens_of_a_step(config, *real, path), 512);
  config.enable_chunked_prefill = false;
  EXPECT_EQ(tokens_of_a_step(config, *real, path), 3000);
  config.max_model_len = 100;
  EXPECT_EQ(tokens_of_a_step(config, *real, path), 512);
  config.max_num_batched_tokens = 300;  // what is said stands; too few are refused where the scheduler is made
  EXPECT_EQ(tokens_of_a_step(config, *real, path), 300);
}

}  // namespace
}  // namespace quire::runner
