// LLM's keyword arguments are the program's options: one table of names, words, ranges and sentences for both.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "types/engine_config.h"

namespace quire::python {

// A flag, or a value as it would stand on a command line, or several.
using ArgumentValue = std::variant<bool, std::string, std::vector<std::string>>;
using Arguments = std::vector<std::pair<std::string, ArgumentValue>>;  // by names with underscores

// Names of arguments that LLM() takes, vLLM's that change nothing or are refused included.
std::vector<std::string> argument_names();

// The first name that is none of them; empty: all are.
std::string unknown_name(const Arguments& arguments);

// A configuration whose model is a path: a name on the Hub is looked up in the cache and downloaded. `notes`: what is
// said of arguments that change nothing here. REQUIRES: no unknown_name(). Errors: invalid_argument, and those of
// cli::resolve_model().
Result<EngineConfig> read_arguments(const std::string& model, const Arguments& arguments,
                                    std::vector<std::string>& notes);

}  // namespace quire::python
