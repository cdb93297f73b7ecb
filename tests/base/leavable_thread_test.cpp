#include "base/leavable_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "base/thread_clock.h"

namespace quire {
namespace {

TEST(LeavableThread, GivesBackWhatWorkTakes) {
  LeavableThread thread;
  for (int i = 0; i < 3; ++i) {
    bool done = false;
    const auto took = thread.run([&done] { done = true; }, 100);
    ASSERT_TRUE(took.has_value());
    EXPECT_TRUE(done);
    EXPECT_LT(*took, 50);
  }
}

TEST(LeavableThread, IsLeftToWhatTakesTooLong) {
  LeavableThread thread;
  const auto ends = std::make_shared<std::atomic<bool>>(false);
  EXPECT_FALSE(thread
                   .run(
                       [ends] {
                         while (!*ends) thread_seconds();
                       },
                       0.05)
                   .has_value());
  EXPECT_EQ(LeavableThread::num_left(), 1);
  EXPECT_TRUE(thread.run([] {}, 100).has_value()) << "by another thread";
  *ends = true;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (LeavableThread::num_left() > 0 && std::chrono::steady_clock::now() < patience) {
  }
  EXPECT_EQ(LeavableThread::num_left(), 0);
}

}  // namespace
}  // namespace quire
