#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "base/host_memory.h"
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/llama_cpp_arguments.h"
#include "cli/log_format.h"
#include "cli/options.h"
#include "cli/vllm_arguments.h"

int main(int argc, char** argv) {
  using namespace quire::cli;
  log_to_standard_error();
  quire::return_large_blocks();

  int exit_code = kExitOk;
  CLI::App program("quire serves large language models from a paged KV cache.", "quire");
  program.set_version_flag("--version", "quire " QUIRE_VERSION);
  program.require_subcommand(0, 1);
  program.get_formatter()->column_width(36);
  program.footer(
      "Exit codes: 0 done, 1 the work failed, 2 the command line is wrong.\n"
      "`quire COMMAND --help` lists a command's flags.");
  add_complete_command(program, exit_code);
  add_chat_command(program, exit_code);
  add_serve_command(program, exit_code);
  add_run_batch_command(program, exit_code);
  add_embed_command(program, exit_code);
  add_tokenize_command(program, exit_code);
  add_render_command(program, exit_code);
  add_inspect_command(program, exit_code);
  add_plan_command(program, exit_code);
  add_replay_command(program, exit_code);
  add_pull_command(program, exit_code);
  add_models_command(program, exit_code);
  add_remove_command(program, exit_code);
  add_quantize_command(program, exit_code);
  add_bench_command(program, exit_code);
  add_worker_command(program, exit_code);
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!arguments.empty() && arguments.front() == "serve") {
      auto prepared =
          with_config_file(*program.get_subcommand("serve"), in_our_spelling({arguments.begin() + 1, arguments.end()}));
      if (!prepared.ok()) {
        fail(prepared.status());
        return kExitUsage;
      }
      arguments.assign(prepared->begin(), prepared->end());
      arguments.insert(arguments.begin(), "serve");
    }
    std::reverse(arguments.begin(), arguments.end());  // as the parser takes a list
    program.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (program.exit(error) == 0) return kExitOk;
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    std::fputs(llama_cpp_hints(arguments).c_str(), stderr);
    return kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire: %s\n", error.what());
    return kExitError;
  }
  if (program.get_subcommands().empty()) {
    std::fputs(program.help().c_str(), stderr);
    return kExitUsage;
  }
  return exit_code;
}
