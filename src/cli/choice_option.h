// Options whose value is one of some words (types/engine_choices.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "types/engine_choices.h"

namespace quire::cli {

// `value` must outlive the parsing. A word that is none of its type's is refused with those that are.
template <typename Choice>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, Choice& value, const std::string& help) {
  const auto take = [&value](const std::string& text) {
    const Result<Choice> choice = parse_choice<Choice>(text);
    if (!choice.ok()) throw CLI::ValidationError(choice.status().message());
    value = *choice;
  };
  return app.add_option_function<std::string>(flag, take, help)->default_function([&value] {
    return std::string(name(value));
  });
}

}  // namespace quire::cli
