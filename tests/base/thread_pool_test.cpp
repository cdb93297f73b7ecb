#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

namespace quire {
namespace {

TEST(UsableCoresTest, AreSomeAndAllDifferent) {
  const std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_EQ(std::set<int>(cores.begin(), cores.end()).size(), cores.size());
  for (const int core : cores) EXPECT_GE(core, 0);
}

TEST(CoreListTest, NumbersAndRangesAreReadInOrder) {
  const int core = usable_cores().front();
  const std::string text = std::to_string(core);
  EXPECT_EQ(parse_core_list(text).value(), std::vector<int>{core});
  EXPECT_EQ(parse_core_list(text + "-" + text).value(), std::vector<int>{core});
  EXPECT_TRUE(parse_core_list("").value().empty());
  const std::vector<int> all = usable_cores();
  if (all.size() > 1) {
    const std::string two = std::to_string(all[1]) + "," + std::to_string(all[0]);
    EXPECT_EQ(parse_core_list(two).value(), (std::vector<int>{all[1], all[0]}));
    EXPECT_EQ(ThreadPool(ThreadPoolOptions{.cores = {all[1], all[0]}}).num_threads(), 2);
  }
}

TEST(CoreListTest, WhatIsNoListIsRefusedWithItsText) {
  const std::string core = std::to_string(usable_cores().front());
  for (const std::string& text :
       std::vector<std::string>{"x", "-", "0-", "-1", "3-2", ",", "0,,1", core + ",", core + "," + core, "1000", "1e3",
                                "99999999999", core + " "}) {
    const auto cores = parse_core_list(text);
    ASSERT_FALSE(cores.ok()) << text;
    EXPECT_EQ(cores.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(cores.status().message().find(text), std::string::npos) << cores.status().message();
  }
}

TEST(ThreadPoolTest, TakesAThreadForEachUsableCoreByDefault) {
  const ThreadPool pool;
  EXPECT_EQ(pool.num_threads(), static_cast<int>(usable_cores().size()));
}

class ThreadPoolSizeTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolSizeTest, RunsTheBodyOnceOnEveryThread) {
  ThreadPool pool({.num_threads = GetParam()});
  ASSERT_EQ(pool.num_threads(), GetParam());
  for (int round = 0; round < 200; ++round) {
    // Plain ints: run() itself must order these writes before the reads below.
    std::vector<int> runs(static_cast<size_t>(GetParam()), 0);
    pool.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(GetParam()), 1));
  }
}

TEST_P(ThreadPoolSizeTest, TheCallerIsThreadZero) {
  ThreadPool pool({.num_threads = GetParam()});
  std::vector<std::thread::id> ids(static_cast<size_t>(GetParam()));
  pool.run([&](int thread) { ids[static_cast<size_t>(thread)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), ids.size());
}

TEST_P(ThreadPoolSizeTest, HandsOutEveryTaskOnce) {
  ThreadPool pool({.num_threads = GetParam()});
  for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
    std::vector<int> runs(static_cast<size_t>(tasks), 0);
    std::atomic<int> strangers = 0;
    pool.parallel_for(tasks, [&](int64_t task, int thread) {
      ++runs[static_cast<size_t>(task)];
      if (thread < 0 || thread >= pool.num_threads()) ++strangers;
    });
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(tasks), 1));
    EXPECT_EQ(strangers, 0);
  }
}

TEST_P(ThreadPoolSizeTest, CutsARangeIntoRangesThatCoverItOnce) {
  ThreadPool pool({.num_threads = GetParam()});
  for (const int64_t size : {0, 1, 2, 3, 7, 18, 96, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(size));
    pool.parallel_ranges(size, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_LT(begin, end);
      EXPECT_LT(thread, GetParam());
      for (int64_t i = begin; i < end; ++i) ++seen.at(static_cast<size_t>(i));
    });
    for (const auto& count : seen) EXPECT_EQ(count, 1) << "of " << size;
  }
}

TEST_P(ThreadPoolSizeTest, GivesAThreadTheSameFirstRangeEveryTime) {
  ThreadPool pool({.num_threads = GetParam()});
  std::vector<std::pair<int64_t, int64_t>> first(static_cast<size_t>(GetParam()), {-1, -1});
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<int64_t, int64_t>> now(first.size(), {-1, -1});
    pool.parallel_ranges(100, [&](int64_t begin, int64_t end, int thread) {
      auto& mine = now[static_cast<size_t>(thread)];
      if (mine.first < 0) mine = {begin, end};
    });
    if (round == 0) first = now;
    EXPECT_EQ(now, first);
  }
}

TEST_P(ThreadPoolSizeTest, WakesThreadsThatHaveParked) {
  ThreadPool pool({.num_threads = GetParam(), .spin_microseconds = 0});
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> runs = 0;
    pool.run([&](int) { ++runs; });
    EXPECT_EQ(runs, GetParam());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_P(ThreadPoolSizeTest, WaitsForAWorkerThatTakesLonger) {
  ThreadPool pool({.num_threads = GetParam(), .spin_microseconds = 0});
  std::vector<int> done(static_cast<size_t>(GetParam()), 0);
  pool.run([&](int thread) {
    if (thread > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done[static_cast<size_t>(thread)] = 1;
  });
  EXPECT_EQ(done, std::vector<int>(static_cast<size_t>(GetParam()), 1));
}

TEST_P(ThreadPoolSizeTest, ThreadsThatHaveMetSeeWhatEachHasWritten) {
  ThreadPool pool({.num_threads = GetParam()});
  const auto threads = static_cast<size_t>(GetParam());
  constexpr int kMeetings = 50;
  for (int round = 0; round < 20; ++round) {
    // Plain ints: meet() itself must order the writes before the reads, and the reads before the next writes.
    std::vector<int> written(threads, -1);
    std::atomic<int> wrong = 0;
    pool.run([&](int thread) {
      for (int meeting = 0; meeting < kMeetings; ++meeting) {
        written[static_cast<size_t>(thread)] = meeting;
        pool.meet();
        if (written != std::vector<int>(threads, meeting)) ++wrong;
        pool.meet();
      }
    });
    ASSERT_EQ(wrong, 0) << "round " << round;
  }
}

TEST_P(ThreadPoolSizeTest, AWorkerWaitsForWhatTheLastOneDoes) {
  ThreadPool pool({.num_threads = GetParam()});
  const int last = GetParam() - 1;
  for (int round = 0; round < 20; ++round) {
    int written = 0;  // a plain int, which `ready` orders
    std::atomic<bool> ready = false;
    std::atomic<int> wrong = 0;
    pool.run([&](int thread) {
      if (thread == last) {
        if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than others spin
        written = 1;
        ready.store(true, std::memory_order_release);
      }
      pool.wait_until([&] { return ready.load(std::memory_order_acquire); });
      if (written != 1) ++wrong;
    });
    ASSERT_EQ(wrong, 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolSizeTest, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPoolTest, CanBeMadeAndLeftWithoutWork) {
  for (int i = 0; i < 20; ++i) const ThreadPool pool({.num_threads = 4});
}

// The kernel's word for what each of the pool's own threads does now: "S" asleep, "R" running.
std::string worker_states() {
  std::string states;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    // "12 (quire-1) S ..."
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.find("(quire-") == std::string::npos) continue;
    states += stat[name_end + 2];
  }
  return states;
}

TEST(ThreadPoolTest, ItsThreadsSleepWhenThereIsNoWork) {
  ThreadPool pool({.num_threads = 3, .spin_microseconds = 1000});
  pool.run([](int) {});
  std::string states;
  // Soon, but a busy machine may take its time.
  for (int i = 0; i < 2000 && states != "SS"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    states = worker_states();
  }
  EXPECT_EQ(states, "SS");
}

TEST(ThreadPoolTest, SeveralPoolsWorkAtOnce) {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&sum] {
      ThreadPool pool({.num_threads = 2});
      for (int round = 0; round < 50; ++round) pool.parallel_for(10, [&](int64_t task, int) { sum += task; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 50 * 45);
}

TEST(GivesWayTest, AThreadGivesWayByHowMuchItIsToAndNeverLess) {
  const auto usual = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(getpid())); };
  if (usual() > 8) GTEST_SKIP() << "this runs with so low a priority that there are too few below it";
  std::thread([&] {
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), usual());
    give_way_to_other_threads(GivesWay::kSomewhat);
    const int somewhat = getpriority(PRIO_PROCESS, 0);
    EXPECT_GT(somewhat, usual());
    give_way_to_other_threads(GivesWay::kSomewhat);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), somewhat) << "twice is not more";
    // Another thread says so, and is itself as it was.
    std::thread([&, number = this_thread_number()] {
      give_way_to_other_threads(GivesWay::kMuch, number);
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), somewhat) << "as the thread that started it";
    }).join();
    const int much = getpriority(PRIO_PROCESS, 0);
    EXPECT_GT(much, somewhat);
    give_way_to_other_threads(GivesWay::kSomewhat);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), much);
    give_way_to_other_threads(GivesWay::kAll);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);
  }).join();
  EXPECT_LT(usual(), 19);
}

TEST(ThreadPoolDeathTest, ARunInsideARunIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool({.num_threads = 2});
        pool.run([&](int thread) {
          if (thread == 0) pool.run([](int) {});
        });
      },
      "inside or beside another run");
}

}  // namespace
}  // namespace quire
