// What a step costs to be written and read where its worker lives in another process: of 64 sequences that decode, four
// of which get a new block.
#include <benchmark/benchmark.h>

#include "runner/plan_codec.h"

namespace quire::runner {
namespace {

constexpr SequenceId kSequences = 64;

StepPlan decoding_plan() {
  StepPlan plan;
  plan.step = 1000;
  plan.num_tokens = kSequences;
  for (SequenceId id = 1; id <= kSequences; ++id) {
    plan.scheduled.push_back(
        {.id = id, .num_computed_tokens = static_cast<int32_t>(1000 + id), .num_new_tokens = 1, .samples = true});
    if (id % 16 != 0) continue;
    plan.table_changes.push_back({.id = id, .num_blocks = 64, .first = 63, .count = 1});
    plan.table_blocks.push_back(static_cast<BlockId>(id));
  }
  return plan;
}

Result<ExecutedStep> decoded_step() {
  ExecutedStep step;
  step.result.step = 1000;
  for (SequenceId id = 1; id <= kSequences; ++id) {
    step.result.sequences.push_back({.id = id, .tokens = {static_cast<TokenId>(id)}});
  }
  return step;
}

void plan(benchmark::State& state) {
  const StepPlan plan = decoding_plan();
  for (auto _ : state) benchmark::DoNotOptimize(decode_plan(encode(plan)));
  state.counters["bytes"] = static_cast<double>(encode(plan).size());
}
BENCHMARK(plan)->Unit(benchmark::kMicrosecond);

void result(benchmark::State& state) {
  const Result<ExecutedStep> step = decoded_step();
  for (auto _ : state) benchmark::DoNotOptimize(decode_step(encode(step)));
  state.counters["bytes"] = static_cast<double>(encode(step).size());
}
BENCHMARK(result)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire::runner
