#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "base/host_memory.h"
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/log_format.h"
#include "cli/options.h"
#include "cli/usage_errors.h"
#include "cli/vllm_arguments.h"

int main(int argc, char** argv) {
  using namespace quire::cli;
  log_to_standard_error();
  quire::return_large_blocks();

  int exit_code = kExitOk;
  CLI::App program("quire serves large language models from a paged KV cache.", "quire");
  program.set_version_flag("-V,--version", "quire " QUIRE_VERSION);
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
  add_try_attention_command(program, exit_code);
  const std::vector<std::string> given = with_flags_for_words({argv + 1, argv + argc});
  try {
    std::vector<std::string> arguments = given;
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
    // Asked for help or the version, which are printed here.
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return program.exit(error);
    std::fputs(usage_error(program, given, error).c_str(), stderr);
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    std::fputs(
        "quire: memory ran out: free some, or ask for less (--max-model-len, --max-num-seqs, "
        "--kv-cache-memory-bytes)\n",
        stderr);
    return kExitError;
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
