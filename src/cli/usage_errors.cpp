#include "cli/usage_errors.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "cli/llama_cpp_arguments.h"

namespace quire::cli {
namespace {

// Names that other programs, ollama's and vLLM's above all, have for our commands.
struct OtherName {
  std::string_view theirs, ours;
};
constexpr OtherName kOtherNames[] = {
    {"run", "chat"},         {"cli", "chat"},      {"generate", "complete"}, {"prompt", "complete"},
    {"start", "serve"},      {"launch", "serve"},  {"api", "serve"},         {"list", "models"},
    {"ls", "models"},        {"rm", "remove"},     {"delete", "remove"},     {"show", "inspect"},
    {"info", "inspect"},     {"download", "pull"}, {"get", "pull"},          {"batch", "run-batch"},
    {"convert", "quantize"}, {"perf", "bench"},
};

// A letter left out, put in, changed, or two of them turned round count one each.
size_t num_typos(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t k = 1; k <= b.size(); ++k) {
      row[k] = std::min({last[k] + 1, row[k - 1] + 1, last[k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1)});
      const bool turned = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
      if (turned) row[k] = std::min(row[k], before[k - 2] + 1);
    }
    before = std::exchange(last, row);
  }
  return last.back();
}

std::string lower_with_dashes(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

// The command that the arguments name, and how many of them do.
struct Named {
  const CLI::App* app;
  std::string words;  // "quire bench serve"
  size_t count = 0;
};

Named named_command(const CLI::App& program, std::span<const std::string> arguments) {
  Named named{.app = &program, .words = program.get_name()};
  for (const std::string& argument : arguments) {
    const auto commands = named.app->get_subcommands([](const CLI::App*) { return true; });
    const auto found = std::ranges::find(commands, argument, [](const CLI::App* one) { return one->get_name(); });
    if (found == commands.end()) break;
    named.app = *found;
    named.words += " " + argument;
    ++named.count;
  }
  return named;
}

bool could_be_a_model(const std::string& word) {
  std::error_code none;
  return word.ends_with(".gguf") || word.find('/') != std::string::npos || std::filesystem::exists(word, none);
}

std::string no_such_command(const Named& named, const std::string& word) {
  const std::vector<std::string> commands = names_of(commands_of(*named.app));
  const bool is_first = named.count == 0;
  std::string out = fmt::format("{}: there is no {} \"{}\"", named.words, is_first ? "command" : "benchmark", word);
  const auto* other = std::ranges::find(kOtherNames, word, &OtherName::theirs);
  const bool is_known = is_first && other != std::end(kOtherNames);
  const std::string meant = is_known ? std::string(other->ours) : nearest_word(word, commands);
  if (!meant.empty()) {
    out += fmt::format("; did you mean \"{} {}\"?\n", named.words, meant);
  } else if (could_be_a_model(word)) {
    out += fmt::format("; a model stands behind a command: {} chat {}\n", named.words, word);
  } else {
    out += '\n';
  }
  return out + fmt::format("There are: {}\n", fmt::join(commands, ", "));
}

// What the parser could not place. Beside a flag that there is not, other words are most likely its values.
std::string unknown_arguments(const Named& named) {
  std::vector<std::string> known;
  for (const CLI::Option* option : named.app->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  std::string flags, words;
  for (const std::string& argument : named.app->remaining()) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with('-') || name.size() < 2) {
      words += fmt::format(" \"{}\"", argument);
      continue;
    }
    const std::string meant = name.starts_with("--") ? nearest_word(name, known) : "";
    flags += fmt::format("{}: there is no flag {}{}\n", named.words, name,
                         meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
  }
  if (!flags.empty() || words.empty()) return flags;
  return fmt::format("{}: nothing is known to do with{}. A text of several words is given in quotes\n", named.words,
                     words);
}

std::optional<std::string> not_converted(const Named& named, std::string_view message) {
  constexpr std::string_view kBefore = "Could not convert: ";
  const size_t equals = message.find(" = ");
  if (!message.starts_with(kBefore) || equals == std::string_view::npos) return std::nullopt;
  const std::string flag(message.substr(kBefore.size(), equals - kBefore.size()));
  const CLI::Option* option = named.app->get_option_no_throw(flag);
  if (option == nullptr) return std::nullopt;
  const std::string type = option->get_type_name();
  const std::string_view wanted = type.starts_with("UINT")    ? "a whole number from 0, or is too large"
                                  : type.starts_with("INT")   ? "a whole number, or is too large"
                                  : type.starts_with("FLOAT") ? "a number"
                                                              : "of that kind";
  return fmt::format("{} \"{}\" is not {}", flag, message.substr(equals + 3), wanted);
}

}  // namespace

std::string nearest_word(std::string_view word, std::span<const std::string> words) {
  const std::string meant = lower_with_dashes(word);
  std::string_view nearest;
  // A third of a short word, and no more than three letters of a long one.
  size_t fewest = std::min<size_t>(std::max<size_t>(meant.size() / 3, 1), 3) + 1;
  for (const std::string& one : words) {
    const size_t typos = num_typos(meant, lower_with_dashes(one));
    if (typos >= fewest) continue;
    fewest = typos;
    nearest = one;
  }
  return std::string(nearest);
}

std::vector<std::string> with_flags_for_words(std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  if (arguments.front() == "version" && arguments.size() == 1) return {"--version"};
  if (arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

std::string usage_error(const CLI::App& program, std::span<const std::string> arguments, const CLI::ParseError& error) {
  const Named named = named_command(program, arguments);
  const std::string* next = named.count < arguments.size() ? &arguments[named.count] : nullptr;
  const bool is_extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  std::string out;
  if (next != nullptr && !commands_of(*named.app).empty()) {
    out = next->starts_with('-')
              ? fmt::format("{}: flags stand behind a command: {} COMMAND {}\nThere are: {}\n", named.words,
                            named.words, *next, fmt::join(names_of(commands_of(*named.app)), ", "))
              : no_such_command(named, *next);
  } else if (next == nullptr && !commands_of(*named.app).empty()) {
    out = fmt::format("{}: say what to measure: {}\n", named.words, fmt::join(names_of(commands_of(*named.app)), ", "));
  } else if (is_extra) {
    out = unknown_arguments(named);
  }
  if (out.empty()) {
    out = fmt::format("{}: {}\n", named.words, not_converted(named, error.what()).value_or(error.what()));
  }
  out += llama_cpp_hints(arguments);
  return out + fmt::format("`{} --help` says more.\n", named.words);
}

}  // namespace quire::cli
