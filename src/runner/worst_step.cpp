#include "runner/worst_step.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/log.h"

namespace quire::runner {
namespace {

// Lengths of the prompts: one token each, and of what is left as much as the context allows to the first ones.
std::vector<int32_t> prompt_lengths(const PlannedModel& planned) {
  const MemoryPlan& memory = planned.memory;
  const int64_t most = std::max<int64_t>(planned.max_model_len - 1, 1);  // a token is to follow
  std::vector<int32_t> lengths(static_cast<size_t>(std::min(planned.max_num_seqs, memory.max_num_batched_tokens)), 1);
  int64_t left = memory.max_num_batched_tokens - static_cast<int64_t>(lengths.size());
  for (int32_t& length : lengths) {
    const int64_t more = std::min(left, most - 1);
    length += static_cast<int32_t>(more);
    left -= more;
  }
  return lengths;
}

int64_t blocks_of(int64_t tokens, const MemoryPlan& memory) {
  return (tokens + memory.block_size - 1) / memory.block_size;
}

// Hands out blocks in order, those of the pool's beginning again after its end.
class Blocks {
 public:
  explicit Blocks(const MemoryPlan& memory) : memory_(memory) {}
  // [num_groups, num_blocks]
  std::vector<BlockId> table_of(int64_t tokens) {
    std::vector<BlockId> table(memory_.windows.size() * static_cast<size_t>(blocks_of(tokens, memory_)));
    for (BlockId& block : table) block = static_cast<BlockId>(next_++ % memory_.num_blocks);
    return table;
  }

 private:
  const MemoryPlan& memory_;
  int64_t next_ = 0;
};

// Of a score without a head of its own: the logits of a token.
std::shared_ptr<const SamplingParams> one_token() {
  SamplingParams params;
  params.allowed_token_ids = {0};
  return std::make_shared<const SamplingParams>(std::move(params));
}

// All that the device can do to logits before it draws.
std::shared_ptr<const SamplingParams> edited_draws() {
  SamplingParams params;
  params.max_tokens = 2;
  params.temperature = 0.8f;
  params.top_p = 0.9f;
  params.top_k = 50;
  params.min_p = 0.01f;
  params.repetition_penalty = 1.1f;
  params.presence_penalty = 0.1f;
  params.frequency_penalty = 0.1f;
  return std::make_shared<const SamplingParams>(std::move(params));
}

void run(StepPlan plan, ModelRunner& runner) {
  runner.launch(std::move(plan));
  runner.choose();
  runner.finish();
}

}  // namespace

int64_t blocks_of_worst_steps(const PlannedModel& planned) {
  int64_t blocks = 0;
  for (const int32_t length : prompt_lengths(planned)) blocks += blocks_of(length + 1, planned.memory);
  return blocks * static_cast<int64_t>(planned.memory.windows.size());
}

void run_worst_steps(const PlannedModel& planned, ModelRunner& runner) {
  // Of a model that is pooled nothing is drawn, and nothing follows.
  const bool draws = planned.config.task == ModelTask::kGenerate;
  const auto params = draws ? edited_draws() : one_token();
  const OutputKind output = draws                                      ? OutputKind::kToken
                            : planned.config.task == ModelTask::kEmbed ? OutputKind::kHiddenState
                                                                       : OutputKind::kScore;
  Blocks blocks(planned.memory);
  StepPlan prompts;
  StepPlan decodes;
  prompts.step = 1;
  decodes.step = 2;
  SequenceId id = 0;
  for (const int32_t length : prompt_lengths(planned)) {
    ++id;
    prompts.added.push_back({.id = id,
                             .prompt = std::vector<TokenId>(static_cast<size_t>(length), 0),
                             .params = params,
                             .seed = id,
                             .output_kind = output});
    // Tables reach to the end of a run, and the second run may need another block.
    const std::vector<BlockId> table = blocks.table_of(length + 1);
    const auto per_group = static_cast<size_t>(blocks_of(length + 1, planned.memory));
    const auto used = static_cast<size_t>(blocks_of(length, planned.memory));
    for (size_t group = 0; group < planned.memory.windows.size(); ++group) {
      const auto blocks_of_group = std::span(table).subspan(group * per_group, per_group);
      tell_whole_table(prompts, id, static_cast<int32_t>(group), blocks_of_group.first(used));
      tell_whole_table(decodes, id, static_cast<int32_t>(group), blocks_of_group);
    }
    prompts.scheduled.push_back({.id = id, .num_new_tokens = length, .samples = draws});
    prompts.num_tokens += length;
    decodes.scheduled.push_back({.id = id, .num_computed_tokens = length, .num_new_tokens = 1, .samples = true});
    decodes.sampled.push_back({.id = id, .token = 0});  // to stages that do not sample: whichever it was
    ++decodes.num_tokens;
  }
  run(std::move(prompts), runner);
  if (draws) run(std::move(decodes), runner);
}

Status size_pool_by(int64_t taken, PlannedModel& planned) {
  MemoryPlan& memory = planned.memory;
  if (memory.free_bytes == 0) return {};  // the size was asked for
  const double left = static_cast<double>(memory.free_bytes) * memory.memory_utilization - static_cast<double>(taken);
  memory.num_blocks = static_cast<int64_t>(std::max(left, 0.0) / static_cast<double>(memory.block_bytes));
  memory.num_blocks = std::min(
      {memory.num_blocks, memory.blocks_of(planned.max_model_len) * planned.max_num_seqs, (int64_t{1} << 31) - 1});
  memory.kv_bytes = memory.num_blocks * memory.block_bytes;
  if (memory.num_blocks >= 1) return {};
  return resource_exhausted(
      "no memory for a single KV block of {}: {} were free, weights and the largest step were seen to take {}. Free "
      "some "
      "memory, or set --max-model-len, --max-num-seqs and --max-num-batched-tokens lower.",
      format_bytes(memory.block_bytes), format_bytes(memory.free_bytes), format_bytes(taken));
}

Result<std::unique_ptr<models::Model>> measure_on_device(std::unique_ptr<models::Model> model, int64_t free_bytes,
                                                         PlannedModel& planned, ops::Backend& backend,
                                                         const RankGroup& ranks) {
  PlannedModel probe = planned;
  probe.memory.num_blocks = std::min(planned.memory.num_blocks, blocks_of_worst_steps(planned));
  probe.memory.num_swap_blocks = 0;
  probe.swap_folder.clear();
  probe.largest_recorded_step = 0;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, ModelRunner::create(probe, std::move(model), backend));
  runner->use_ranks(ranks);
  run_worst_steps(probe, *runner);
  backend.synchronise();
  // What a step takes beyond the runner's buffers (libraries' workspaces, kernels that are loaded when they are first
  // called) stays with the backend, so that what is missing after the steps is the most that was taken.
  const int64_t pool = probe.memory.num_blocks * planned.memory.block_bytes;
  // Whatever was given back meanwhile, the weights are there.
  const int64_t taken = std::max(free_bytes - backend.free_memory() - pool, planned.memory.weight_bytes);
  // The kernels' own scratch was taken before the free memory was read.
  const MemoryPlan& memory = planned.memory;
  const int64_t computed =
      memory.weight_bytes + memory.workspace_bytes - backend.scratch_bytes(memory.max_num_batched_tokens);
  log_info("weights, workspace and the largest step: {} computed, {} measured", format_bytes(computed),
           format_bytes(taken));
  model = ModelRunner::take_model(std::move(runner));
  QUIRE_RETURN_IF_ERROR(size_pool_by(taken + memory.adapter_bytes, planned));  // which are taken later
  return model;
}

}  // namespace quire::runner
