// How a trial ends: well, with an error, or never. The process is this program once more.
#include "cli/attention_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "cli/worker_processes.h"

namespace quire::cli {
namespace {

using ::testing::HasSubstr;

// What the process runs, of the tests below.
std::unique_ptr<runner::WorkerProcess> process_that_runs(const std::string& test) {
  auto started = start_again({"test", "--gtest_filter=" + test, "--gtest_also_run_disabled_tests"}, {});
  EXPECT_TRUE(started.ok()) << started.status().message();
  return std::move(*started);
}

TEST(AttentionTrial, DISABLED_Ends) {}
TEST(AttentionTrial, DISABLED_EndsWithAnError) {
  FAIL() << "as it is to";
}
TEST(AttentionTrial, DISABLED_IsKilled) {
  kill(getpid(), SIGKILL);
}
TEST(AttentionTrial, DISABLED_NeverEnds) {
  alarm(60);
  for (;;) pause();
}

TEST(AttentionTrial, IsOverWhenItsProcessHasEnded) {
  const Status well = wait_for_trial(*process_that_runs("*.DISABLED_Ends"), 60);
  EXPECT_TRUE(well.ok()) << well.message();
  const Status badly = wait_for_trial(*process_that_runs("*.DISABLED_EndsWithAnError"), 60);
  EXPECT_EQ(badly.code(), StatusCode::kInternal);
  EXPECT_THAT(badly.message(), HasSubstr("has ended with code 1"));
  EXPECT_THAT(wait_for_trial(*process_that_runs("*.DISABLED_IsKilled"), 60).message(), HasSubstr("killed by signal 9"));
}

TEST(AttentionTrial, IsNotWaitedForForever) {
  const auto process = process_that_runs("*.DISABLED_NeverEnds");
  EXPECT_THAT(wait_for_trial(*process, 0.05).message(), HasSubstr("more than 0.05 s"));
}

// This program has no such command, and asks for no trial.
TEST(AttentionTrial, IsNotBegunOutsideOfQuire) {
  EXPECT_FALSE(is_quire());
  EXPECT_FALSE(static_cast<bool>(begin_attention_trial({}, 0)));
}

}  // namespace
}  // namespace quire::cli
