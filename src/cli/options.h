// Flags that several commands share. vLLM's names and defaults where vLLM has them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "types/engine_config.h"
#include "types/sampling_params.h"
#include "types/text_source.h"

namespace quire::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;  // the work failed
inline constexpr int kExitUsage = 2;  // the command line is wrong

// Of a variable of the environment; empty where it is not set.
std::string environment(const char* name);

// Where the default model lies: <cache folder of the user>/quire/models/SmolLM2-135M-Instruct.Q4_1.gguf
std::string default_model_path();

inline constexpr const char* kModelHelp =
    "A .gguf file, a directory with config.json and safetensors, or a name on the Hugging Face Hub "
    "(ORG/NAME, ORG/NAME:Q4_K_M); nothing: the default model";

// MODEL, by its place or as --model. Empty: the default model. The parser refuses two that differ.
void add_model_argument(CLI::App& app, EngineConfig& config);
// --model alone.
void add_model_flag(CLI::App& app, EngineConfig& config);
// Takes `path` for the model. Throws CLI::ValidationError: it is empty, or another one was named before.
void name_model(EngineConfig& config, const std::string& path);
void add_engine_options(CLI::App& app, EngineConfig& config);
void add_sampling_options(CLI::App& app, SamplingParams& params);

// For a conversation: puts what suits the model (server/sampling_defaults.h) in the place of the parameters whose flags
// were not given to `command`. Returns it in words: "temperature=0.2 top_p=0.9 (the model's card)".
// Errors: invalid_argument (a generation_config.json that cannot be read).
Result<std::string> apply_chat_sampling(const CLI::App& command, const TextSource& text, SamplingParams& params);
// Says in `command`'s help that these flags' defaults are those.
void tell_chat_sampling(CLI::App& command, const char* when);

// Prints "quire: <message>" to standard error. Returns kExitError.
int fail(const Status& status);

// The exit code of a command that ended with `status`; an error is printed.
int exit_code_of(const Status& status);

}  // namespace quire::cli
