#include "engine_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/vllm_arguments.h"

namespace quire::python {
namespace {

// Those of `quire serve` that make an engine; its others are of an HTTP server.
struct ArgumentParser {
  CLI::App app;
  EngineConfig config;
  cli::HubFlags hub;
  std::vector<std::string> notes;

  ArgumentParser() {
    cli::add_hub_options(app, hub);
    cli::add_engine_options(app, config);
    app.add_option("--max-logprobs", config.max_logprobs);
    app.add_option("--seed", config.seed);
    cli::add_vllm_arguments(app, notes);
  }

  bool has(const std::string& flag) const { return app.get_option_no_throw(flag) != nullptr; }
};

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

}  // namespace

std::vector<std::string> argument_names() {
  const ArgumentParser parser;
  std::vector<std::string> names;
  for (const CLI::Option* option : parser.app.get_options()) {
    for (std::string name : option->get_lnames()) {
      if (name == "help" || name.starts_with("no-")) continue;
      std::replace(name.begin(), name.end(), '-', '_');
      names.push_back(std::move(name));
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string unknown_name(const Arguments& arguments) {
  const ArgumentParser parser;
  for (const auto& argument : arguments) {
    if (!parser.has(flag_of(argument.first))) return argument.first;
  }
  return {};
}

Result<EngineConfig> read_arguments(const std::string& model, const Arguments& arguments,
                                    std::vector<std::string>& notes) {
  ArgumentParser parser;
  std::vector<std::string> line;
  for (const auto& [name, value] : arguments) {
    const std::string flag = flag_of(name);
    if (const bool* on = std::get_if<bool>(&value)) {
      const std::string off = "--no-" + flag.substr(2);
      if (*on) line.push_back(flag);
      if (!*on && parser.has(off)) line.push_back(off);  // without such a name it is off anyway
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      line.push_back(flag + "=" + *text);
    } else {
      for (const std::string& item : std::get<std::vector<std::string>>(value)) line.push_back(flag + "=" + item);
    }
  }
  std::reverse(line.begin(), line.end());  // as the parser takes a list
  try {
    parser.app.parse(std::move(line));
  } catch (const CLI::ParseError& error) {
    return invalid_argument("{}", error.what());
  }
  parser.config.model = model;
  QUIRE_RETURN_IF_ERROR(cli::resolve_model(parser.config, parser.hub));
  notes = std::move(parser.notes);
  return std::move(parser.config);
}

}  // namespace quire::python
