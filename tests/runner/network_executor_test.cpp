// Ranks as threads of this process, whose messages go through memory: everything but MPI. That is the end-to-end tests'
// (e2e.mpi).
#include "runner/network_executor.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "runner/local_executor.h"
#include "runner/plan_codec.h"
#include "runner/worker_messages.h"
#include "tests/comm/memory_transport.h"
#include "tests/runner/adapter_steps.h"
#include "tests/runner/tiny_model.h"
#include "tests/runner/worker_steps.h"

namespace quire::runner {
namespace {

using comm::NetworkGroup;
using comm::Tag;
using testing::HasSubstr;

EngineConfig network_config(int32_t tensor, int32_t pipeline) {
  EngineConfig config = workers_config(tensor, pipeline);
  config.distributed_executor_backend = DistributedBackend::kMpi;
  return config;
}

NetworkSelf self_of(int rank) {
  return {.program = "this one", .host = rank < 2 ? "a" : "b"};
}

class NetworkWorkers : public testing::Test {
 protected:
  using Rank = std::function<void(NetworkGroup& group, int rank)>;

  ~NetworkWorkers() override { leave(); }

  // The other ranks do as `rank` says, by itself as they should.
  Result<std::unique_ptr<Executor>> make(const EngineConfig& config, int size = 0, Rank rank = nullptr) {
    leave();
    const int count = size == 0 ? config.num_ranks() : size;
    network_ = std::make_shared<comm::MemoryNetwork>(count);
    for (int number = 1; number < count; ++number) {
      threads_.emplace_back([this, config, rank, number, network = network_] {
        NetworkGroup group(network->join(number));
        if (rank) return rank(group, number);
        ended_ += run_network_worker(group, config, self_of(number), workers_backend).ok() ? 1 : 0;
      });
    }
    group_ = std::make_unique<NetworkGroup>(network_->join(0));
    const auto planner = workers_backend(config).value();
    return make_network_executor(config, *group_, self_of(0), workers_backend, *planner);
  }

  void leave() {
    group_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::shared_ptr<comm::MemoryNetwork> network_;
  std::unique_ptr<NetworkGroup> group_;
  std::vector<std::thread> threads_;
  std::atomic<int> ended_{0};  // ranks that ended in order
};

TEST_F(NetworkWorkers, StagesGiveTheBitsOfThisProcessAndPartsNearlySo) {
  EngineConfig alone = workers_config(1, 1);
  const auto local = make_local_executor(alone, workers_backend(alone).value()).value();
  const auto expected = workers_answer(*local, 20);
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
    SCOPED_TRACE(fmt::format("{} stages of {}", pipeline, tensor));
    ended_ = 0;
    auto executor = make(network_config(tensor, pipeline));
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    EXPECT_EQ((*executor)->memory().num_blocks, 32);
    EXPECT_FALSE((*executor)->can_recover());
    EXPECT_THAT((*executor)->description(), HasSubstr(fmt::format("{} ranks over MPI: cpu", tensor * pipeline)));
    const auto found = workers_answer(**executor, 20);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected[i].first);
      if (tensor == 1) {
        EXPECT_EQ(found[i].second, expected[i].second);
      } else {
        EXPECT_NEAR(found[i].second, expected[i].second, 1e-4);
      }
    }
    executor->reset();
    leave();
    EXPECT_EQ(ended_, tensor * pipeline - 1);
    EXPECT_EQ(network_->num_waited_for(), tensor * pipeline);
  }
}

TEST_F(NetworkWorkers, HaveAdaptersAsWorkersOfOneHostDo) {
  EngineConfig config = adapted_config(2, 2);
  config.distributed_executor_backend = DistributedBackend::kMpi;
  auto executor = make(config);
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  const std::string path = workers_adapter_path("llama/dora");
  ASSERT_TRUE(load_shared_adapter(**executor, "a", path).ok());
  EXPECT_THAT(load_shared_adapter(**executor, "b", workers_adapter_path("gpt2/qv")).message(),
              HasSubstr("another model"));
  {
    const auto use = acquire_adapter(**executor, "a").value();
    const GoldenCase golden = read_golden(path).at(1);
    const auto found = workers_answer(**executor, 12, {.number = use->number()}, golden.prompt);
    for (size_t i = 0; i < found.size() && golden.greedy_margin[i] > 1e-3; ++i)
      EXPECT_EQ(found[i].first, golden.greedy[i]) << "token " << i;
    EXPECT_EQ(found.size(), 12u);
  }
  // Nobody starts these ranks again, so nobody waits for them.
  group_->end("rank 3 is gone");
  EXPECT_THAT(load_shared_adapter(**executor, "c", path).message(), HasSubstr("are gone"));
}

TEST_F(NetworkWorkers, AsManyAsWereStartedAreNeeded) {
  EXPECT_THAT(make(network_config(2, 1), 3).status().message(),
              HasSubstr("MPI has started 3 processes, but tensor_parallel_size 2 and pipeline_parallel_size 1 want 2"));
}

TEST_F(NetworkWorkers, RanksThatDifferRefuseEachOther) {
  const auto with = [&](const std::function<void(EngineConfig&, NetworkSelf&)>& change) {
    const EngineConfig config = network_config(2, 1);
    return make(config, 0,
                [config, change](NetworkGroup& group, int rank) {
                  EngineConfig own = config;
                  NetworkSelf self = self_of(rank);
                  change(own, self);
                  EXPECT_TRUE(run_network_worker(group, own, self, workers_backend).ok());
                  EXPECT_FALSE(group.goes_on());
                })
        .status()
        .message();
  };
  EXPECT_THAT(with([](EngineConfig& /*config*/, NetworkSelf& self) { self.program = "another"; }),
              HasSubstr("rank 1 (host a) runs another program than rank 0 (host a)"));
  EXPECT_THAT(with([](EngineConfig& config, NetworkSelf& /*self*/) { config.block_size = 32; }),
              HasSubstr("rank 1 (host a) was started with other flags than rank 0"));
  EXPECT_THAT(with([](EngineConfig& config, NetworkSelf& /*self*/) { config.model = tiny_path("qwen2"); }),
              HasSubstr("rank 1 (host a) has another model in"));
  // What is each rank's own may differ.
  auto executor = make(network_config(2, 1), 0, [](NetworkGroup& group, int rank) {
    EngineConfig own = network_config(2, 1);
    own.model = tiny_path("llama") + "/.";
    own.threads = 1;
    EXPECT_TRUE(run_network_worker(group, own, self_of(rank), workers_backend).ok());
  });
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  EXPECT_EQ(workers_answer(**executor, 3).size(), 3u);
}

TEST_F(NetworkWorkers, OtherKernelsAreRefused) {
  const std::vector<WorkerHello> hellos = {{.host = "a", .kernels = "cpu, avx512"},
                                           {.host = "b", .kernels = "cpu, avx2"}};
  EXPECT_THAT(check_same(hellos).message(), HasSubstr("rank 1 (host b) computes with other kernels (cpu, avx2)"));
}

TEST_F(NetworkWorkers, WhatARankSaysIsRefusedWhereItIsCutOrOfAnotherVersion) {
  const EngineConfig config = network_config(2, 1);
  const WorkerHello hello{.program = "this one", .host = "a"};
  std::string other = encode(hello);
  ++other[4];
  for (const auto& [message, says] : {std::pair(other, "run the same program on both sides"),
                                      {encode(hello).substr(0, 30), "ends too early"},
                                      {encode(WorkerReport()), "came where kind 9 was expected"},
                                      {std::string(), "ends too early"}}) {
    const auto made = make(config, 0, [message = message, says = says](NetworkGroup& group, int /*rank*/) {
      (void)group.write(0, Tag::kResult, message);
      EXPECT_FALSE(group.read(0, Tag::kOrder).ok());  // the end, with the same reason
      EXPECT_THAT(group.status().message(), HasSubstr(says));
    });
    EXPECT_THAT(made.status().message(), HasSubstr(says));
    EXPECT_THAT(made.status().message(), HasSubstr("rank 1: "));
  }
}

TEST_F(NetworkWorkers, AnOrderOrAPlanThatCannotBeReadEndsTheGroup) {
  for (const bool plan : {false, true}) {
    auto network = std::make_shared<comm::MemoryNetwork>(2);
    const EngineConfig config = network_config(1, 2);
    Status ended;
    std::thread rank([&] {
      NetworkGroup group(network->join(1));
      ended = run_network_worker(group, config, self_of(1), workers_backend);
    });
    NetworkGroup group(network->join(0));
    const auto hello = decode_hello(group.read(1, Tag::kResult).value()).value();
    EngineConfig order = config;
    order.rank = 1;
    order.model = hello.model;
    std::string first = encode_order(order);
    if (!plan) first.resize(first.size() - 1);
    ASSERT_TRUE(group.write(1, Tag::kOrder, first).ok());
    std::thread own([&] {
      if (plan) (void)run_network_worker(group, config, self_of(0), workers_backend);
    });
    if (plan) {
      order.rank = 0;
      (void)group.read(0, Tag::kResult);  // a greeting
      ASSERT_TRUE(group.write(0, Tag::kOrder, encode_order(order)).ok());
      for (int q = 0; q < 2; ++q) EXPECT_TRUE(decode_report(group.read(q, Tag::kResult).value())->status.ok());
      const std::string cut = encode(workers_plan(0, 0, 3, {5, 6, 7}));
      ASSERT_TRUE(group.write(1, Tag::kOrder, cut.substr(0, cut.size() - 2)).ok());
    }
    for (int i = 0; i < 500 && group.goes_on(); ++i) {
      group.look_for_ends();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    rank.join();
    own.join();
    EXPECT_THAT(ended.message(), HasSubstr("ends too early"));
    EXPECT_THAT(group.status().message(), HasSubstr("rank 1 (host a): "));
  }
}

TEST_F(NetworkWorkers, ARankThatFailsIsToldOfAndEndsTheSteps) {
  std::atomic<bool> fails{false};
  const EngineConfig config = network_config(2, 1);
  auto executor = make(config, 0, [&fails, config](NetworkGroup& group, int rank) {
    std::thread ends([&] {
      while (!fails) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      group.end("rank 1 (host a): the disk is gone");
    });
    (void)run_network_worker(group, config, self_of(rank), workers_backend);
    ends.join();
  });
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  std::atomic<int> told{0};
  (*executor)->on_failure([&] { ++told; });
  EXPECT_EQ(workers_answer(**executor, 3).size(), 3u);
  EXPECT_TRUE((*executor)->status().ok());
  fails = true;
  for (int i = 0; i < 500 && told == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(told, 1);
  EXPECT_EQ((*executor)->status().message(), "rank 1 (host a): the disk is gone");
  (*executor)->submit(workers_plan(5, 12, 1, {}));
  EXPECT_EQ((*executor)->collect().status().message(), "rank 1 (host a): the disk is gone");
}

TEST_F(NetworkWorkers, WhatARankCannotLoadIsToldInItsWords) {
  const EngineConfig config = network_config(2, 1);
  EngineConfig elsewhere = config;
  elsewhere.model = "/nowhere/at/all";
  const auto made = make(config, 0, [elsewhere](NetworkGroup& group, int rank) {
    EXPECT_FALSE(run_network_worker(group, elsewhere, self_of(rank), workers_backend).ok());
  });
  EXPECT_THAT(made.status().message(), HasSubstr("rank 1 (host a): "));
  EXPECT_THAT(made.status().message(), HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(make(network_config(1, 5)).status().message(), HasSubstr("the model has 2 layers"));
}

TEST_F(NetworkWorkers, CoresOfAHostAreDividedAmongThoseThatShareThem) {
  const EngineConfig config = network_config(4, 1);
  const std::vector<WorkerHello> hellos = {{.host = "a", .cores = {0, 1, 2}},
                                           {.host = "a", .cores = {0, 1, 2}},
                                           {.host = "b", .threads = 3, .cores = {0, 1, 2}},
                                           {.host = "b", .cores = {4}}};
  std::vector<std::string> cores;
  for (int rank = 0; rank < 4; ++rank) cores.push_back(order_of_rank(config, hellos, rank).cpu_affinity);
  EXPECT_THAT(cores, testing::ElementsAre("0,1", "2", "0,1,2", "4"));
  EXPECT_EQ(order_of_rank(config, hellos, 2).threads, 3);
  EXPECT_EQ(num_on_host_of(hellos, 3), 2);
  // More ranks than cores: all may use all of them, with one thread each, as workers of one host do.
  const std::vector<WorkerHello> crowd(4, {.host = "a", .cores = {0, 1}});
  for (int rank = 0; rank < 4; ++rank) {
    const EngineConfig order = order_of_rank(config, crowd, rank);
    EXPECT_EQ(order.cpu_affinity, "");
    EXPECT_EQ(order.threads, 1);
  }
}

}  // namespace
}  // namespace quire::runner
