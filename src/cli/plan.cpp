// quire plan: where the memory would go, from the headers alone.
#include <cstdio>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/kv_layers.h"
#include "cli/options.h"
#include "runner/memory_planner.h"
#include "runner/model_drafts.h"
#include "runner/open_checkpoint.h"

namespace quire::cli {
namespace {

struct PlanOptions {
  EngineConfig engine;
  HubFlags hub;
  int64_t sequence_tokens = 0;
  bool json = false;
};

std::string as_json(const runner::PlannedModel& planned, const runner::DraftMemory& drafter, int64_t sequence_tokens) {
  const MemoryPlan& plan = planned.memory;
  return boost::json::serialize(boost::json::object{{"draft_weight_bytes", drafter.weight_bytes},
                                                    {"draft_workspace_bytes", drafter.workspace_bytes},
                                                    {"draft_pool_bytes", drafter.pool_bytes},
                                                    {"weight_bytes", plan.weight_bytes},
                                                    {"quantization", plan.quantization},
                                                    {"workspace_bytes", plan.workspace_bytes},
                                                    {"kv_bytes_per_token", plan.kv_token_bytes},
                                                    {"kv_layers", kv_layers_json(planned.kv_layout)},
                                                    {"block_size", plan.block_size},
                                                    {"block_bytes", plan.block_bytes},
                                                    {"num_blocks", plan.num_blocks},
                                                    {"kv_bytes", plan.kv_bytes},
                                                    {"kv_tokens", plan.kv_tokens()},
                                                    {"max_model_len", plan.max_model_len},
                                                    {"free_bytes", plan.free_bytes},
                                                    {"sequence_tokens", sequence_tokens},
                                                    {"sequences", plan.sequences_of(sequence_tokens)}});
}

Status run(PlanOptions& options) {
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  QUIRE_ASSIGN_OR_RETURN(auto checkpoint, runner::open_checkpoint(options.engine));
  QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(options.engine));
  const int32_t num_parts = options.engine.num_ranks() * options.engine.data_parallel_size;
  QUIRE_ASSIGN_OR_RETURN(const runner::DraftMemory drafter, runner::plan_draft_memory(options.engine, *backend));
  const int64_t free_bytes = backend->free_memory() / num_parts - drafter.total();
  QUIRE_ASSIGN_OR_RETURN(const runner::PlannedModel planned,
                         runner::plan_model(options.engine, *checkpoint, *backend, free_bytes));
  const ModelConfig& model = planned.config;
  const int64_t length = options.sequence_tokens > 0 ? options.sequence_tokens : planned.max_model_len;
  if (options.json) {
    std::printf("%s\n", as_json(planned, drafter, length).c_str());
    return {};
  }
  std::printf("model        %s: %s, %s\n", shown_model(options.engine).c_str(), model.architecture.c_str(),
              model.dtype.c_str());
  std::printf("shape        %d layers, hidden %lld, %d heads of %d, %d kv heads, vocabulary %lld, context %lld\n",
              model.num_layers, static_cast<long long>(model.hidden_size), model.num_heads, model.head_dim,
              model.num_kv_heads, static_cast<long long>(model.vocab_size), static_cast<long long>(model.max_position));
  if (num_parts > 1) {
    std::printf("processes    %d engines of %d stages of %d ranks; what follows is one rank's, the first's\n",
                options.engine.data_parallel_size, options.engine.pipeline_parallel_size,
                options.engine.tensor_parallel_size);
  }
  std::printf("%s", kv_arithmetic(planned.kv_layout).c_str());
  std::printf("%s", planned.memory.to_string().c_str());
  if (drafter.total() > 0) {
    std::printf("who drafts   weights %s, workspace %s, keys and values of its own up to %s: off what is free\n",
                format_bytes(drafter.weight_bytes).c_str(), format_bytes(drafter.workspace_bytes).c_str(),
                format_bytes(drafter.pool_bytes).c_str());
  }
  if (!planned.memory.converted_weights.empty()) {
    std::printf("--dtype      %s\n", planned.memory.converted_weights.c_str());
  }
  if (!planned.memory.widened_weights.empty()) std::printf("a wider form %s\n", planned.memory.widened_weights.c_str());
  std::printf("sequences    %12lld  of %lld tokens at once\n",
              static_cast<long long>(planned.memory.sequences_of(length)), static_cast<long long>(length));
  return {};
}

}  // namespace

void add_plan_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = program.add_subcommand("plan", "Memory of weights, workspace and KV cache, without loading");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command
      ->add_option("--sequence-tokens", options->sequence_tokens,
                   "How many sequences of this length fit; 0: max-model-len")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json, "One JSON object");
  add_engine_options(*command, options->engine);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
