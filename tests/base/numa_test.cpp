#include "base/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A machine of two sockets whose second threads are counted after all first ones, a node of memory without cores, and
// one of cores without memory.
class Numa : public testing::Test {
 protected:
  Numa() {
    write("has_memory", "0-1,3\n");
    write("node0/cpulist", "0-3,8-11\n");
    write("node1/cpulist", "4-7,12-15\n");
    write("node2/cpulist", "16-19\n");
    write("node3/cpulist", "\n");
  }
  ~Numa() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("numa" + std::to_string(getpid()));
};

TEST_F(Numa, NodesAreThoseWithMemory) {
  const std::vector<NumaNode> nodes = numa_nodes(folder_);
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_THAT(nodes[0].cores, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(nodes[1].cores, ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_EQ(nodes[2].id, 3);
  EXPECT_THAT(nodes[2].cores, IsEmpty());
}

TEST_F(Numa, WhatIsNotThereOrNotAListHasNoNodes) {
  EXPECT_THAT(numa_nodes(folder_ / "nowhere"), IsEmpty());
  write("has_memory", "0-,x");
  EXPECT_THAT(numa_nodes(folder_), IsEmpty());
  write("has_memory", "0-99999999");
  EXPECT_THAT(numa_nodes(folder_), IsEmpty());
}

TEST_F(Numa, EqualPartsOfTheCoresLieInOneNodeEach) {
  const std::vector<NumaNode> nodes = numa_nodes(folder_);
  const std::vector<int> cores = cores_by_node({0, 1, 4, 5, 8, 9, 12, 13, 16}, nodes);
  EXPECT_THAT(cores, ElementsAre(0, 1, 8, 9, 4, 5, 12, 13, 16));
  EXPECT_THAT(nodes_of_cores({cores.begin(), cores.begin() + 4}, nodes), ElementsAre(0));
  EXPECT_THAT(nodes_of_cores({cores.begin() + 4, cores.begin() + 8}, nodes), ElementsAre(1));
  EXPECT_THAT(nodes_of_cores({13, 3}, nodes), ElementsAre(0, 1));
  EXPECT_THAT(nodes_of_cores({16}, nodes), IsEmpty());
  EXPECT_THAT(cores_by_node({3, 1, 2}, {}), ElementsAre(3, 1, 2));
}

TEST(PartsOfCores, AreAsEqualAsTheyCanBe) {
  const std::vector<int> cores = {8, 9, 4, 5, 12};
  EXPECT_EQ(part_of_cores(cores, 0, 2), "8,9,4");
  EXPECT_EQ(part_of_cores(cores, 1, 2), "5,12");
  EXPECT_EQ(part_of_cores(cores, 0, 1), "8,9,4,5,12");
  EXPECT_EQ(part_of_cores(cores, 4, 5), "12");
  EXPECT_EQ(part_of_cores(cores, 0, 6), "");
}

int policy_of_this_thread() {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0 ? mode : -1;
}

TEST_F(Numa, MemoryIsBoundForThisThreadAndThoseItStarts) {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.empty() || policy_of_this_thread() < 0) GTEST_SKIP() << "the system tells of no NUMA nodes";
  // In a thread, so that the other tests keep what they have.
  std::thread([&] {
    const Status bound = bind_memory({nodes.front().id}, NumaBinding::kStrict);
    if (!bound.ok()) GTEST_SKIP() << bound.message();
    EXPECT_EQ(policy_of_this_thread(), MPOL_BIND);
    std::thread([] { EXPECT_EQ(policy_of_this_thread(), MPOL_BIND); }).join();
    ASSERT_TRUE(bind_memory({nodes.front().id}, NumaBinding::kPreferred).ok());
    EXPECT_NE(policy_of_this_thread(), MPOL_BIND);
    EXPECT_NE(policy_of_this_thread(), MPOL_DEFAULT);
  }).join();
  EXPECT_EQ(policy_of_this_thread(), MPOL_DEFAULT);
}

TEST_F(Numa, NodesThatAreNotThereAreAnError) {
  EXPECT_EQ(bind_memory({}, NumaBinding::kStrict).code(), StatusCode::kInvalidArgument);
  const Status bound = bind_memory({1000}, NumaBinding::kStrict);
  EXPECT_EQ(bound.code(), StatusCode::kUnavailable);
  EXPECT_THAT(bound.message(), testing::HasSubstr("NUMA node 1000"));
}

}  // namespace
}  // namespace quire
