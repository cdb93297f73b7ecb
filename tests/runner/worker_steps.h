// What tests ask of executors whose model is computed by several.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "runner/executor.h"
#include "tests/runner/tiny_model.h"
#include "types/engine_config.h"

namespace quire::runner {

inline Result<std::unique_ptr<ops::Backend>> workers_backend(const EngineConfig& /*config*/) {
  return ops::make_cpu_backend({.threads = 1, .isa = Isa::kAvx2, .activation_dtype = ActivationDType::kFloat32});
}

inline EngineConfig workers_config(int32_t tensor, int32_t pipeline) {
  EngineConfig config;
  config.model = tiny_path("llama");
  config.max_model_len = 128;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.num_gpu_blocks_override = 32;
  config.device = DeviceChoice::cpu();
  config.distributed_executor_backend = DistributedBackend::kMp;
  config.tensor_parallel_size = tensor;
  config.pipeline_parallel_size = pipeline;
  return config;
}

// adapter: by its number; its own tokens are the prompt's first.
struct WorkersAdapter {
  int32_t number = 0;
  int32_t num_virtual_tokens = 0;
  bool follows = false;  // the sequence before this one is over
};

inline StepPlan workers_plan(uint64_t step, int32_t begin, int32_t count, const std::vector<TokenId>& prompt,
                             const WorkersAdapter& adapter = {}) {
  StepPlan plan;
  plan.step = step;
  if (step == 0) {
    if (adapter.follows) plan.retired = {1};
    SamplingParams params;
    params.temperature = 0;
    params.logprobs = 0;
    plan.added.push_back({.id = 1,
                          .prompt = prompt,
                          .params = std::make_shared<const SamplingParams>(params),
                          .adapter = adapter.number,
                          .num_virtual_tokens = adapter.num_virtual_tokens});
    const std::vector<BlockId> table = {3, 1, 2, 5};
    tell_whole_table(plan, 1, 0, table);
  }
  plan.scheduled.push_back({.id = 1, .num_computed_tokens = begin, .num_new_tokens = count, .samples = true});
  plan.num_tokens = count;
  return plan;
}

// Greedy tokens after a prompt, with their log-probabilities.
inline std::vector<std::pair<TokenId, float>> workers_answer(Executor& executor, size_t count,
                                                             const WorkersAdapter& adapter = {},
                                                             const std::vector<TokenId>& text = {5, 9, 11, 7, 30, 31,
                                                                                                 32, 33, 34, 35}) {
  std::vector<TokenId> prompt(static_cast<size_t>(adapter.num_virtual_tokens));
  std::iota(prompt.begin(), prompt.end(), 0);
  prompt.insert(prompt.end(), text.begin(), text.end());
  std::vector<std::pair<TokenId, float>> tokens;
  auto known = static_cast<int32_t>(prompt.size());
  for (size_t i = 0; i < count; ++i) {
    StepPlan plan = i == 0 ? workers_plan(0, 0, known, prompt, adapter) : workers_plan(i, known++, 1, prompt);
    if (i > 0) plan.sampled = {{.id = 1, .token = tokens.back().first}};
    executor.submit(std::move(plan));
    const auto step = executor.collect();
    EXPECT_TRUE(step.ok()) << step.status().message();
    if (!step.ok()) return tokens;
    const SequenceResult& result = step->result.sequences.at(0);
    tokens.emplace_back(result.tokens.at(0), result.logprobs.at(0).chosen.logprob);
  }
  return tokens;
}

}  // namespace quire::runner
