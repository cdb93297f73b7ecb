#include "comm/child_process.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace quire::comm {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Le;
using testing::SizeIs;
using testing::StartsWith;

ChildEnd end_of(const std::string& script, const std::vector<std::string>& environment = {},
                const std::string& folder = "") {
  ChildProcess child({"/bin/sh", "-c", script}, environment, folder);
  return child.wait();
}

TEST(ChildProcess, SaysHowItEndedAndWhatItWroteLast) {
  const ChildEnd end = end_of("echo first >&2; echo last >&2; exit 3");
  EXPECT_EQ(end.code, 3);
  EXPECT_EQ(end.signal, 0);
  EXPECT_EQ(end.tail, "first\nlast\n");
  EXPECT_EQ(end_of("kill -9 $$").signal, SIGKILL);
  EXPECT_EQ(end_of("exit 0").code, 0);
}

TEST(ChildProcess, KeepsWholeLinesOfMuchThatWasWritten) {
  const ChildEnd end = end_of("for i in $(seq 1 2000); do echo line $i >&2; done");
  EXPECT_THAT(end.tail, AllOf(SizeIs(Le(ChildProcess::kTailBytes)), StartsWith("line "), EndsWith("\nline 2000\n")));
  EXPECT_THAT(end_of("head -c 100000 /dev/zero | tr '\\0' x >&2").tail, SizeIs(ChildProcess::kTailBytes));
}

TEST(ChildProcess, HasTheVariablesItWasGivenBesideTheOthersAndAFolder) {
  const std::string folder = testing::TempDir();
  const ChildEnd end = end_of("echo $QUIRE_TEST_GIVEN $PATH $(pwd) >&2; env | grep -c ^PATH= >&2; cat >&2",
                              {"QUIRE_TEST_GIVEN=a b", "PATH=/usr/bin:/bin:/own"}, folder);
  EXPECT_EQ(end.tail, "a b /usr/bin:/bin:/own " + std::filesystem::canonical(folder).string() + "\n1\n");
  EXPECT_EQ(end_of("exit 4", {}, "/no such folder").code, 4);
}

TEST(ChildProcess, ThatCannotBeStartedSaysWhy) {
  const auto start = [](const std::string& program) { ChildProcess child({program}, {}, ""); };
  EXPECT_THAT([&] { start("/no/such/program"); },
              testing::ThrowsMessage<std::runtime_error>("/no/such/program: No such file or directory"));
  EXPECT_THAT([&] { start("/tmp"); }, testing::ThrowsMessage<std::runtime_error>("/tmp: Permission denied"));
  EXPECT_THROW(ChildProcess({}, {}, ""), std::runtime_error);
}

bool is_running(int id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  return std::getline(file, line) && line.find(") Z ") == std::string::npos;
}

bool ends_within_seconds(int id) {
  for (int i = 0; i < 200 && is_running(id); ++i) usleep(25'000);
  return !is_running(id);
}

TEST(ChildProcess, DiesWithItsObject) {
  int id = 0;
  {
    const ChildProcess child({"/bin/sleep", "100"}, {}, "");
    id = child.id();
    EXPECT_TRUE(is_running(id));
  }
  EXPECT_FALSE(is_running(id));
}

// A descriptor that what it started keeps open is not waited for.
TEST(ChildProcess, HasEndedThoughWhatItStartedHasNot) {
  const ChildEnd end = end_of("sleep 1000 >/dev/null & echo $! >&2; exit 5");
  EXPECT_EQ(end.code, 5);
  const int left = std::stoi(end.tail);
  EXPECT_TRUE(is_running(left));
  kill(left, SIGKILL);
}

TEST(ChildProcess, DiesWithTheProcessThatMadeItThoughTheThreadThatAskedForItIsGone) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const int middle = fork();
  if (middle == 0) {
    const ChildProcess child({"/bin/sleep", "100"}, {}, "");
    const int id = child.id();
    [[maybe_unused]] const ssize_t told = write(pipes[1], &id, sizeof(id));
    pause();
  }
  int id = 0;
  ASSERT_EQ(read(pipes[0], &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
  EXPECT_TRUE(is_running(id));
  kill(middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  EXPECT_TRUE(ends_within_seconds(id));
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace
}  // namespace quire::comm
