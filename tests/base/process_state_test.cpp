#include "base/process_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace quire {
namespace {

// Until it is what is expected: the kernel takes its time to stop a process, and to begin one.
bool becomes(pid_t process, bool expected) {
  for (int i = 0; i < 2000; ++i) {
    if (has_runnable_thread(process) == expected) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(ProcessState, AThreadThatComputesIsRunnableUntilItsProcessIsStoppedOrGone) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (volatile int i = 0;;) i = i + 1;
  }
  EXPECT_TRUE(becomes(child, true));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(child, false));
  kill(child, SIGCONT);
  EXPECT_TRUE(becomes(child, true));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(has_runnable_thread(child));
}

TEST(ProcessState, OneThatSleepsIsNot) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  EXPECT_TRUE(becomes(child, false));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace quire
