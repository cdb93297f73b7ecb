// What a refused command line is answered with: what is wrong with it, and what was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

// The word that `word` is a misspelling of; empty: of none. Case, and '_' for '-', make no difference.
std::string nearest_word(std::string_view word, std::span<const std::string> words);

// `help`, `help COMMAND` and `version` as the flags that they mean; others stay as they are.
std::vector<std::string> with_flags_for_words(std::vector<std::string> arguments);

// Of `arguments`, which `program` refused with `error`: lines for standard error.
std::string usage_error(const CLI::App& program, std::span<const std::string> arguments, const CLI::ParseError& error);

}  // namespace quire::cli
