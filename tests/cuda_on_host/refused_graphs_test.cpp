// The engine where some shape of its steps cannot be recorded.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "quire/llm.h"
#include "refused_capture.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

struct Answered {
  std::vector<TokenId> tokens;
  int64_t num_replayed = 0;
};

Answered answer(bool eager) {
  EngineConfig config{.model = runner::tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
  config.device = DeviceChoice::cuda();
  config.threads = 1;
  config.max_num_batched_tokens = 32;
  config.max_num_seqs = 2;
  config.enforce_eager = eager;
  auto llm = LLM::create(config);
  EXPECT_TRUE(llm.ok()) << llm.status().message();
  const SamplingParams params{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  const std::vector<Prompt> prompts = {Prompt(runner::read_golden("llama").front().prompt)};
  const auto outputs = (*llm)->generate(prompts, params, {.progress = false});
  EXPECT_TRUE(outputs.ok()) << outputs.status().message();
  Answered answered{.tokens = outputs->at(0).token_ids};
  const boost::json::object steps = (*llm)->engine().flight_recorder().steps(-1);
  for (const boost::json::value& step : steps.at("steps").as_array())
    answered.num_replayed += step.at("replayed").as_bool() ? 1 : 0;
  return answered;
}

TEST(RefusedGraphs, AreDoneWithoutAndTheOthersAreNot) {
  const Answered eager = answer(/*eager=*/true);
  EXPECT_EQ(eager.num_replayed, 0);
  const Answered recorded = answer(/*eager=*/false);
  EXPECT_GE(recorded.num_replayed, 8);
  EXPECT_EQ(recorded.tokens, eager.tokens);
  // The first that is recorded, of one sequence, which all these steps have; that of two is recorded.
  testing::internal::CaptureStdout();
  cuda_on_host::refuse_captured_call(7);
  const Answered refused = answer(/*eager=*/false);
  cuda_on_host::refuse_captured_call(-1);
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_EQ(refused.num_replayed, 0);
  EXPECT_EQ(refused.tokens, eager.tokens);
  const std::string said = "computed call by call";
  const size_t at = log.find(said);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(said, at + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace quire
