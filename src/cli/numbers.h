// Numbers as people write them on a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire::cli {

// "8192", "8k" (8,000), "8K" (8,192), "1.5M": a letter k, m, g, t counts in thousands, a capital one in 1024s, as vLLM
// has it. nullopt: it is none of these, is negative, has a fraction left, or does not fit.
std::optional<int64_t> whole_number(std::string_view text);

// Puts such a number as digits; another text is refused.
CLI::Validator as_whole_number();
// The same of bytes: also "512MiB", "4 GB" (units of 1024).
CLI::Validator as_bytes();
// Refuses what is no port.
CLI::Validator as_port();

}  // namespace quire::cli
