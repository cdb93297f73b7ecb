#include "cli/vllm_arguments.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>

#include <fmt/format.h>

namespace quire::cli {
namespace {

using Takes = VllmArgument::Takes;
using Verdict = VllmArgument::Verdict;

template <typename Use>
void for_each_part(std::string_view list, char separator, Use use) {
  while (!list.empty()) {
    const size_t end = list.find(separator);
    use(list.substr(0, end));
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
  }
}

std::string without_space(std::string_view text) {
  std::string out(text);
  std::erase_if(out, [](unsigned char c) { return std::isspace(c) != 0; });
  return out;
}

std::string long_names(const VllmArgument& argument) {
  std::string out;
  for_each_part(argument.names, ',', [&out](std::string_view name) {
    if (name.starts_with("--")) out += (out.empty() ? "" : ",") + std::string(name);
  });
  return out;
}

void take(const VllmArgument& argument, const std::string& value, std::vector<std::string>& notes) {
  const bool is_flag = argument.takes == Takes::kFlag || argument.takes == Takes::kSwitch;
  const std::string shown = is_flag ? fmt::format("--{}{}", value == "no" ? "no-" : "", argument.name().substr(2))
                                    : fmt::format("{} {}", argument.name(), value);
  if (!argument.accepts(value)) throw CLI::ValidationError(shown, std::string(argument.sentence));
  if (argument.verdict == Verdict::kTaken) notes.push_back(fmt::format("{}: {}", shown, argument.sentence));
}

void add(CLI::App& command, const VllmArgument& argument, std::vector<std::string>& notes) {
  const std::string names = long_names(argument);
  CLI::Option* option = nullptr;
  switch (argument.takes) {
    case Takes::kSwitch:
      option = command.add_flag_function(names, [&](int64_t) { take(argument, "yes", notes); });
      break;
    case Takes::kFlag: {
      std::string both;
      for_each_part(names, ',', [&both](std::string_view name) {
        both += fmt::format("{}{},!--no-{}", both.empty() ? "" : ",", name, name.substr(2));
      });
      option = command.add_flag_function(both, [&](int64_t count) { take(argument, count > 0 ? "yes" : "no", notes); });
      break;
    }
    case Takes::kValue:
      option = command.add_option_function<std::string>(
          names, [&](const std::string& value) { take(argument, value, notes); });
      break;
    case Takes::kValues:
      option =
          command.add_option_function<std::vector<std::string>>(names, [&](const std::vector<std::string>& values) {
            for (const std::string& value : values) take(argument, value, notes);
          });
      break;
  }
  option->group("");
}

// Those of vLLM's short names that our parser, which knows one letter behind a dash, cannot have.
std::optional<std::string> spelled_out(std::string_view name) {
  struct Short {
    std::string_view name, option;
  };
  // Of arguments that have options here.
  static constexpr Short kOurs[] = {{"-q", "--quantization"},
                                    {"-sc", "--speculative-config"},
                                    {"-tp", "--tensor-parallel-size"},
                                    {"-ep", "--enable-expert-parallel"},
                                    {"-pp", "--pipeline-parallel-size"},
                                    {"-dp", "--data-parallel-size"}};
  for (const Short& one : kOurs) {
    if (one.name == name) return std::string(one.option);
  }
  for (const VllmArgument& argument : vllm_arguments()) {
    bool found = false;
    for_each_part(argument.names, ',', [&](std::string_view other) { found |= other == name; });
    if (found && !name.starts_with("--")) return std::string(argument.name());
  }
  return std::nullopt;
}

}  // namespace

bool VllmArgument::accepts(std::string_view value) const {
  if (accepted == "*") return true;
  const std::string wanted = without_space(value);
  bool found = false;
  for_each_part(accepted, '|', [&](std::string_view one) { found |= one == wanted; });
  return found;
}

void add_vllm_arguments(CLI::App& command, std::vector<std::string>& notes) {
  for (const VllmArgument& argument : vllm_arguments()) {
    if (command.get_option_no_throw(std::string(argument.name())) == nullptr) add(command, argument, notes);
  }
}

std::vector<std::string> in_our_spelling(std::vector<std::string> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") break;
    const size_t first = argument.find_first_not_of('-');
    const bool is_name = first != 0 && first != std::string::npos && first <= 2 &&
                         std::isalpha(static_cast<unsigned char>(argument[first])) != 0;
    if (!is_name) continue;  // a value, a negative number perhaps
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    std::string rest = equals == std::string::npos ? "" : argument.substr(equals);
    if (name.starts_with("-O") && name.size() > 2 && std::isdigit(static_cast<unsigned char>(name[2])) != 0) {
      rest = "=" + name.substr(2);
      name = "-O";
    }
    const size_t dot = name.find('.');
    const std::string member = dot == std::string::npos ? "" : name.substr(dot);
    name.resize(std::min(dot, name.size()));
    if (const auto spelled = spelled_out(name)) name = *spelled;
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    if (!member.empty()) {
      throw CLI::ValidationError(
          name + member,
          fmt::format("single members of a JSON argument are not read: give the whole, {} '{{...}}'", name));
    }
    argument = name + rest;
  }
  return arguments;
}

}  // namespace quire::cli
