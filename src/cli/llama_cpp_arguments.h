// What llama.cpp's users type, in our spelling: said beside the parser's own error, never taken.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::cli {

struct LlamaCppArgument {
  std::string_view names;  // separated by spaces
  std::string_view here;   // a sentence's end: what to write instead
};

std::span<const LlamaCppArgument> llama_cpp_arguments();

// A line for each argument of a refused command line that llama.cpp has; empty: there are none.
std::string llama_cpp_hints(std::span<const std::string> arguments);

}  // namespace quire::cli
