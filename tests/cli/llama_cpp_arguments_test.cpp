// Who types llama.cpp's flags is told ours, and those that are named are there.
#include "cli/llama_cpp_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace quire::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(LlamaCppArguments, AreAnsweredWithWhatToWriteHere) {
  const std::vector<std::string> given = {"serve", "-m", "model.gguf", "-ngl", "99", "--ctx-size=4096", "--port", "1"};
  const std::string hints = llama_cpp_hints(given);
  EXPECT_THAT(hints, HasSubstr("-m is llama.cpp's; here: the model's path without a flag, or --model\n"));
  EXPECT_THAT(hints, HasSubstr("--device cuda"));
  EXPECT_THAT(hints, HasSubstr("--ctx-size is llama.cpp's; here: --max-model-len\n"));
  EXPECT_EQ(std::ranges::count(hints, '\n'), 3);
}

TEST(LlamaCppArguments, OfNobodyElseAreNotExplained) {
  EXPECT_THAT(llama_cpp_hints(std::vector<std::string>{"serve", "--no-such", "m", "-", "--", "=", " ", ""}), IsEmpty());
}

TEST(LlamaCppArguments, AreAnsweredWithFlagsThatThereAre) {
  CLI::App program("", "quire");
  int exit_code = 0;
  add_complete_command(program, exit_code);
  add_serve_command(program, exit_code);
  std::string known;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : command->get_options()) known += option->get_name(false, true) + ",";
  }
  const std::regex flag("--[a-z][a-z-]*");
  for (const LlamaCppArgument& argument : llama_cpp_arguments()) {
    const std::string here(argument.here);
    for (auto it = std::sregex_iterator(here.begin(), here.end(), flag); it != std::sregex_iterator(); ++it) {
      EXPECT_THAT(known, HasSubstr(it->str() + ",")) << argument.names;
    }
  }
}

}  // namespace
}  // namespace quire::cli
