// One function a command: adds its subcommand to the program. The chosen one's exit code lands in `exit_code`.
#pragma once

#include <CLI/CLI.hpp>

namespace quire::cli {

void add_complete_command(CLI::App& program, int& exit_code);
void add_chat_command(CLI::App& program, int& exit_code);
void add_serve_command(CLI::App& program, int& exit_code);
void add_run_batch_command(CLI::App& program, int& exit_code);
void add_embed_command(CLI::App& program, int& exit_code);
void add_tokenize_command(CLI::App& program, int& exit_code);
void add_render_command(CLI::App& program, int& exit_code);
void add_inspect_command(CLI::App& program, int& exit_code);
void add_plan_command(CLI::App& program, int& exit_code);
void add_replay_command(CLI::App& program, int& exit_code);
void add_pull_command(CLI::App& program, int& exit_code);
void add_models_command(CLI::App& program, int& exit_code);
void add_remove_command(CLI::App& program, int& exit_code);
void add_quantize_command(CLI::App& program, int& exit_code);
void add_bench_command(CLI::App& program, int& exit_code);
void add_worker_command(CLI::App& program, int& exit_code);
void add_try_attention_command(CLI::App& program, int& exit_code);

}  // namespace quire::cli
