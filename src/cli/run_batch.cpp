// quire run-batch: a file of requests in, a file of answers out, without a server.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "cli/adapters.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "engine/engine.h"
#include "server/batch_file.h"

namespace quire::cli {
namespace {

struct RunBatchOptions {
  EngineConfig engine;
  NodeOptions nodes;
  HubFlags hub;
  server::ServerConfig server;
  server::BatchFileOptions batch;
  std::vector<std::string> lora_modules;  // as they were given
};

Status run(RunBatchOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto adapters, read_lora_modules(options.lora_modules, options.engine));
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  // Before the model is loaded: a wrong file should not cost a minute. It lies where answers are written.
  if (!computes_for_another(ranks))
    QUIRE_RETURN_IF_ERROR(server::check_batch_files(options.batch.input, options.batch.output));
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  options.server.root_model = std::filesystem::path(shown_model(options.engine)).filename().string();
  if (options.server.served_model_names.empty()) {
    options.server.served_model_names = {shown_model(options.engine), options.server.root_model};
  }
  const std::vector<std::string>& names = options.server.served_model_names;
  for (const LoraModule& adapter : adapters) {
    if (!adapter.base.empty() && std::ranges::find(names, adapter.base) == names.end()) return no_such_base(adapter);
  }
  options.engine.served_model_name = options.server.served_model_names.front();
  options.batch.concurrency = options.engine.max_num_seqs;
  QUIRE_ASSIGN_OR_RETURN(auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  QUIRE_RETURN_IF_ERROR(load_adapters(*engine, adapters));
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  QUIRE_ASSIGN_OR_RETURN(
      const server::BatchFileResult result,
      server::run_batch_file(options.server, *engine, options.batch, [&](const server::BatchFileResult& so_far) {
        if (!terminal) return;
        std::fprintf(stderr, "\r%lld of %lld, %lld failed ", static_cast<long long>(so_far.completed),
                     static_cast<long long>(so_far.total), static_cast<long long>(so_far.failed));
      }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "%s%lld requests in %.1f s: %lld answered, %lld failed, %lld answered before\n",
               terminal ? "\n" : "", static_cast<long long>(result.total), seconds,
               static_cast<long long>(result.completed), static_cast<long long>(result.failed),
               static_cast<long long>(result.skipped));
  return {};
}

}  // namespace

void add_run_batch_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<RunBatchOptions>();
  CLI::App* command = program.add_subcommand("run-batch", "Answer a file of requests (OpenAI's batch format)");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command
      ->add_option("-i,--input-file", options->batch.input,
                   "JSON lines: {\"custom_id\", \"method\", \"url\", \"body\"}")
      ->required();
  command
      ->add_option(
          "-o,--output-file", options->batch.output,
          "JSON lines: {\"id\", \"custom_id\", \"response\", \"error\"}, in the order in which they are done. One "
          "that is there already is gone on with: what it has answers to, errors too, is not asked again")
      ->required();
  command->add_option("--served-model-name", options->server.served_model_names,
                      "Name (or names) in the requests; the model's path and its last part otherwise");
  command->add_flag("--trust-request-chat-template", options->server.trust_request_chat_template,
                    "Render chat templates that requests bring");
  command
      ->add_option("--max-logprobs", options->engine.max_logprobs,
                   "Most logprobs that a request may ask for; -1: the whole vocabulary")
      ->capture_default_str();
  command
      ->add_option("--max-answer-bytes", options->server.max_answer_bytes,
                   "What the logprobs and repeated prompts of an answer may come to as text, and those of all that are "
                   "under way in memory (1G, ...)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_lora_modules_option(*command, options->lora_modules);
  command->add_option("--seed", options->engine.seed, "Of requests that bring none")->capture_default_str();
  add_engine_options(*command, options->engine);
  add_node_options(*command, options->nodes);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
