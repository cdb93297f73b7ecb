// --config FILE: arguments out of a file, as vLLM has them in YAML.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::cli {

struct ConfigEntry {
  std::string key;                  // as in the file: "max-model-len"
  std::vector<std::string> values;  // one, or those of a list
  int line = 0;
};

// Of YAML what arguments need: a line `key: value` each, values as they are or in quotes, a list as `[a, b]` or as
// lines
// `- a` under its key, comments, empty lines. A value in braces is JSON, on one line. Anything else is an error.
// Errors: invalid_argument, "line 3: ...".
Result<std::vector<ConfigEntry>> parse_config_file(std::string_view text);

// `arguments` of `command`, without its name, in our spelling: in the place of --config FILE what the file says, but
// for what the arguments say themselves. true is `--key`, false `--no-key`. Errors: not_found, invalid_argument; each
// names the file and, where there is one, the line.
Result<std::vector<std::string>> with_config_file(const CLI::App& command, std::vector<std::string> arguments);

}  // namespace quire::cli
