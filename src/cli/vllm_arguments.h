// vLLM's arguments that have no option here: each is taken, because it changes nothing here, or refused with a sentence
// that says why and what to use instead. docs/arguments.md lists them with all the others.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

struct VllmArgument {
  enum class Takes {
    kFlag,    // --x and --no-x; what is given is then "yes" or "no"
    kSwitch,  // --x alone
    kValue,
    kValues,  // one or more
  };
  enum class Verdict {
    kTaken,    // changes nothing here: the sentence is logged
    kRefused,  // but for values that ask for nothing
  };
  std::string_view
      names;  // separated by commas, the long one first; short ones have one dash: "--data-parallel-size,-dp"
  Takes takes;
  Verdict verdict;
  std::string_view accepted;  // values separated by '|'; "*": any. Without white space: JSON is compared without it
  std::string_view sentence;

  // The first of the names.
  std::string_view name() const { return names.substr(0, names.find(',')); }
  bool accepts(std::string_view value) const;
};

// Of the version that tests/data/vllm_arguments.json names, and those of older ones.
std::span<const VllmArgument> vllm_arguments();

// Adds them as options that --help does not list, but for names that `command` has already. What is said of those that
// are taken is appended to `notes`, which must outlive the parsing.
void add_vllm_arguments(CLI::App& command, std::vector<std::string>& notes);

// The names by which `command`'s options may be called on a command line, put as its options have them: vLLM's with
// several letters behind one dash ("-tp" for "--tensor-parallel-size"), underscores for dashes, "-O3", and the members
// of JSON arguments ("--compilation-config.mode 3"), which are refused by the argument's name.
// Throws CLI::ValidationError.
std::vector<std::string> in_our_spelling(std::vector<std::string> arguments);

}  // namespace quire::cli
