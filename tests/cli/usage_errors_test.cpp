// A refused command line is answered with what was probably meant.
#include "cli/usage_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(NearestWord, IsOneOfFewTypos) {
  const std::vector<std::string> words = {"complete", "chat", "serve", "--max-model-len", "--seed"};
  EXPECT_EQ(nearest_word("compelte", words), "complete");
  EXPECT_EQ(nearest_word("server", words), "serve");
  EXPECT_EQ(nearest_word("Chat", words), "chat");
  EXPECT_EQ(nearest_word("--max_model_len", words), "--max-model-len");
  EXPECT_EQ(nearest_word("--max-modellen", words), "--max-model-len");
  EXPECT_EQ(nearest_word("--send", words), "--seed");
}

TEST(NearestWord, IsNoneForAnotherWord) {
  const std::vector<std::string> words = {"complete", "chat", "serve"};
  for (const char* word : {"", "x", "model.gguf", "cat litter", "swerving"}) EXPECT_EQ(nearest_word(word, words), "");
}

TEST(WordsForFlags, AreHelpAndVersionAlone) {
  EXPECT_THAT(with_flags_for_words({"help", "serve"}), ElementsAre("serve", "--help"));
  EXPECT_THAT(with_flags_for_words({"version"}), ElementsAre("--version"));
  EXPECT_THAT(with_flags_for_words({"serve", "help"}), ElementsAre("serve", "help"));
  EXPECT_THAT(with_flags_for_words({}), ElementsAre());
}

// What is said against a command line.
std::string said_of(const std::vector<std::string>& arguments) {
  CLI::App program("", "quire");
  int exit_code = 0;
  add_chat_command(program, exit_code);
  add_serve_command(program, exit_code);
  add_plan_command(program, exit_code);
  add_bench_command(program, exit_code);
  try {
    std::vector<std::string> list(arguments.rbegin(), arguments.rend());
    program.parse(std::move(list));
  } catch (const CLI::ParseError& error) {
    return usage_error(program, arguments, error);
  }
  return "";
}

TEST(UsageError, NamesTheCommandThatWasMeant) {
  EXPECT_THAT(said_of({"run", "llama"}), HasSubstr("there is no command \"run\"; did you mean \"quire chat\"?\n"));
  EXPECT_THAT(said_of({"ls"}), HasSubstr("There are: chat, serve, plan, bench\n"));
  EXPECT_THAT(said_of({"bench", "latncy"}), HasSubstr("did you mean \"quire bench latency\"?"));
  EXPECT_THAT(said_of({"zzz"}), Not(HasSubstr("did you mean")));
}

TEST(UsageError, NamesTheFlagThatWasMeantAndNotItsValue) {
  EXPECT_EQ(said_of({"plan", "--max-modle-len", "3", "4"}),
            "quire plan: there is no flag --max-modle-len; did you mean --max-model-len?\n"
            "`quire plan --help` says more.\n");
  EXPECT_THAT(said_of({"plan", "a", "b", "c"}), HasSubstr("nothing is known to do with \"b\" \"c\""));
}

TEST(UsageError, SaysWhatAValueShouldBe) {
  EXPECT_THAT(said_of({"serve", "--port", "99999"}), HasSubstr("\"99999\" is no port, a number from 0 to 65535"));
  EXPECT_THAT(said_of({"plan", "--block-size", "x"}), HasSubstr("--block-size \"x\" is not a whole number"));
  EXPECT_THAT(said_of({"serve", "-c", "4096"}), HasSubstr("-c is llama.cpp's; here: --max-model-len\n"));
}

}  // namespace
}  // namespace quire::cli
