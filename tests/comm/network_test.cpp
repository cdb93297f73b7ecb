#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "comm/network_communicator.h"
#include "comm/network_group.h"
#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"
#include "tests/comm/memory_transport.h"
#include "tests/comm/tcp_network.h"

namespace quire::comm {
namespace {

using testing::HasSubstr;

std::vector<float> network_numbers(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random) * std::exp2(static_cast<float>(rank * 3));
  return numbers;
}

std::vector<int> all_of(int size) {
  std::vector<int> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(rank);
  return members;
}

enum class By { kMemory, kTcp };

// How each rank, a thread, comes to be one of the group.
std::function<std::unique_ptr<Transport>(int rank)> joins(By by, int size) {
  if (by == By::kTcp) return [network = std::make_shared<TcpNetwork>(size)](int rank) { return network->join(rank); };
  return [network = std::make_shared<MemoryNetwork>(size)](int rank) { return network->join(rank); };
}

// A rank a thread.
void run_groups(int size, By by, const std::function<void(NetworkGroup&)>& body) {
  const auto join = joins(by, size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      NetworkGroup group(join(rank));
      body(group);
      EXPECT_TRUE(group.goes_on()) << group.status().message();
      // Whoever leaves ends the group: nobody does before all have come here.
      make_network_communicator(group, {.members = all_of(size), .number = 9})->barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_network(int size, By by, const std::function<void(Communicator&)>& body) {
  run_groups(size, by, [&](NetworkGroup& group) {
    const auto communicator = make_network_communicator(group, {.members = all_of(size)});
    body(*communicator);
    EXPECT_TRUE(communicator->status().ok()) << communicator->status().message();
  });
}

std::vector<float> shared_sum(int size, size_t count) {
  const SharedGroupShape shape{.num_ranks = size};
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  std::vector<std::vector<float>> values(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto joined = join_shared_group(segment->data(), shape, {.rank = rank}).value();
      values[static_cast<size_t>(rank)] = network_numbers(rank, count);
      joined->all_reduce(values[static_cast<size_t>(rank)]);
      joined->barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return values.front();
}

class NetworkRanksOf : public testing::TestWithParam<std::tuple<int, By>> {
 protected:
  static int size() { return std::get<0>(GetParam()); }
  static By by() { return std::get<1>(GetParam()); }
};

// Gathered, divided, and in pieces.
TEST_P(NetworkRanksOf, SumsHaveTheBitsOfThoseThroughSharedMemory) {
  for (const size_t count : {size_t{1}, size_t{17}, size_t{8191}, size_t{8192}, size_t{40007}, size_t{1100003}}) {
    const std::vector<float> expected = shared_sum(size(), count);
    run_network(size(), by(), [&](Communicator& communicator) {
      std::vector<float> values = network_numbers(communicator.rank(), count);
      communicator.all_reduce(values);
      EXPECT_EQ(values, expected) << count << " numbers, rank " << communicator.rank();
    });
  }
}

TEST_P(NetworkRanksOf, APartOfTheSumIsThatPartOfAllOfIt) {
  constexpr size_t kPart = 3001;
  const size_t count = kPart * static_cast<size_t>(size());
  const std::vector<float> expected = shared_sum(size(), count);
  run_network(size(), by(), [&](Communicator& communicator) {
    std::vector<float> part(kPart);
    communicator.reduce_scatter(network_numbers(communicator.rank(), count), part);
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(kPart) * communicator.rank()));
  });
}

TEST_P(NetworkRanksOf, BytesAreGatheredInTheOrderOfTheRanksAndBroadcast) {
  run_network(size(), by(), [&](Communicator& communicator) {
    constexpr size_t kBytes = 10001;
    const std::vector<std::byte> own(kBytes, static_cast<std::byte>(communicator.rank() + 1));
    std::vector<std::byte> all(kBytes * static_cast<size_t>(communicator.size()));
    communicator.all_gather(own, all);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::byte>(i / kBytes + 1));
    std::vector<std::byte> told = own;
    communicator.broadcast(told, communicator.size() - 1);
    EXPECT_EQ(told, std::vector<std::byte>(kBytes, static_cast<std::byte>(communicator.size())));
  });
}

TEST_P(NetworkRanksOf, ColumnsAreGathered) {
  for (const int64_t width : {int64_t{3}, int64_t{400000}}) {
    std::vector<ColumnRange> columns;
    for (int rank = 0; rank < size(); ++rank) columns.push_back({rank * width, rank + 1 < size() ? width + 1 : width});
    const int64_t total = size() * width;
    const auto number = [&](int64_t row, int64_t column) { return static_cast<float>((row * total + column) % 9973); };
    for (const int root : {0, Communicator::kEverybody}) {
      run_network(size(), by(), [&](Communicator& communicator) {
        constexpr int64_t kRows = 3;
        const int64_t stride = total + 3;
        std::vector<float> matrix(static_cast<size_t>(kRows * stride), -1.0f);
        const ColumnRange& own = columns[static_cast<size_t>(communicator.rank())];
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t i = own.first; i < own.first + own.count; ++i)
            matrix[static_cast<size_t>(row * stride + i)] = number(row, i);
        }
        communicator.gather_columns({matrix.data(), kRows, stride}, columns, root);
        if (root != Communicator::kEverybody && root != communicator.rank()) return;
        bool right = true;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t i = 0; i < stride; ++i)
            right = right && matrix[static_cast<size_t>(row * stride + i)] == (i < total ? number(row, i) : -1.0f);
        }
        EXPECT_TRUE(right) << width << " to " << root;
      });
    }
  }
}

TEST_P(NetworkRanksOf, MessagesGoRoundInTheOrderInWhichTheyWereSent) {
  if (size() == 1) GTEST_SKIP() << "nobody to send to";
  run_network(size(), by(), [&](Communicator& communicator) {
    const int next = (communicator.rank() + 1) % communicator.size();
    const int last = (communicator.rank() + communicator.size() - 1) % communicator.size();
    for (int round = 0; round < 50; ++round) {
      const std::vector<std::byte> sent(static_cast<size_t>(1 + round * 81), static_cast<std::byte>(round));
      std::vector<std::byte> came(sent.size());
      communicator.send(sent, next);
      communicator.receive(came, last);
      ASSERT_EQ(came, sent);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NetworkRanksOf,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7), testing::Values(By::kMemory, By::kTcp)));

TEST(NetworkGroups, StagesAddUpApartAndAllTogether) {
  run_groups(4, By::kTcp, [](NetworkGroup& group) {
    const int first = group.rank() / 2 * 2;
    const auto stage = make_network_communicator(group, {.members = {first, first + 1}, .number = 1});
    const auto all = make_network_communicator(group, {.members = all_of(4), .number = 0});
    for (int round = 0; round < 100; ++round) {
      std::vector<float> of_stage(3, static_cast<float>(group.rank()));
      stage->all_reduce(of_stage);
      std::vector<float> of_all(3, static_cast<float>(group.rank()));
      all->all_reduce(of_all);
      ASSERT_EQ(of_stage.front(), static_cast<float>(2 * first + 1));
      ASSERT_EQ(of_all.back(), 6.0f);
    }
  });
}

class NetworkGroupsBy : public testing::TestWithParam<By> {};
INSTANTIATE_TEST_SUITE_P(Networks, NetworkGroupsBy, testing::Values(By::kMemory, By::kTcp));

TEST_P(NetworkGroupsBy, WordsArriveInOrderAlsoToOneself) {
  run_groups(2, GetParam(), [](NetworkGroup& group) {
    for (int to = 0; to < 2; ++to) {
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(group.write(to, Tag::kOrder, std::string(i * 1000, 'a')).ok());
    }
    for (int from = 0; from < 2; ++from) {
      for (int i = 0; i < 20; ++i) ASSERT_EQ(group.read(from, Tag::kOrder).value().size(), i * 1000u);
      EXPECT_FALSE(group.has_message(from, Tag::kOrder));
    }
  });
}

TEST_P(NetworkGroupsBy, WhoeverEndsItEndsTheWaitingOfAll) {
  for (const int who : {0, 2}) {
    const auto join = joins(GetParam(), 3);
    std::vector<Status> found(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        NetworkGroup group(join(rank));
        if (rank == who) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          group.end("enough");
        } else {
          make_network_communicator(group, {.members = all_of(3)})->barrier();
        }
        found[static_cast<size_t>(rank)] = group.status();
        EXPECT_EQ(group.read(1 - rank / 2, Tag::kOrder).status().message(), "enough");  // does not wait
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : found) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_EQ(status.message(), "enough");
    }
  }
}

TEST(NetworkGroups, ThatWasEndedInOrderIsWaitedFor) {
  const auto network = std::make_shared<MemoryNetwork>(2);
  { NetworkGroup group(network->join(0)); }
  EXPECT_EQ(network->num_waited_for(), 1);
}

TEST(NetworkGroups, ARankThatCannotBeReachedEndsItAndIsNotWaitedFor) {
  const auto network = std::make_shared<MemoryNetwork>(2);
  {
    NetworkGroup group(network->join(0));
    network->cut_off(1);
    EXPECT_THAT(group.write(1, Tag::kOrder, "a plan").message(), HasSubstr("rank 1 cannot be reached"));
    EXPECT_FALSE(group.goes_on());
    std::vector<float> values(10);
    make_network_communicator(group, {.members = all_of(2)})->all_reduce(values);  // does not wait
  }
  EXPECT_EQ(network->num_waited_for(), 0);
}

TEST(NetworkGroups, RanksThatDoNotDoTheSameAreFound) {
  for (const size_t other : {size_t{3}, size_t{9}}) {
    const auto network = std::make_shared<MemoryNetwork>(2);
    std::vector<Status> found(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        NetworkGroup group(network->join(rank));
        std::vector<float> values(rank == 0 ? 5 : other);
        const auto communicator = make_network_communicator(group, {.members = all_of(2)});
        communicator->all_reduce(values);
        communicator->barrier();
        communicator->barrier();
        found[static_cast<size_t>(rank)] = communicator->status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(found[0].ok());
    EXPECT_THAT(found[0].message(), testing::AnyOf(HasSubstr("where rank"), HasSubstr("were expected")));
  }
}

TEST(NetworkGroups, NobodyThatWaitsTakesACore) {
  const auto network = std::make_shared<MemoryNetwork>(2);
  NetworkGroup group(network->join(1));
  std::thread waits([&] {
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    (void)group.read(0, Tag::kOrder, std::chrono::microseconds(200));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    const double seconds =
        static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    EXPECT_LT(seconds, 0.1);  // of half a second
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  group.end("enough");
  waits.join();
}

// The program needs no MPI until it is asked for it.
TEST(Mpi, WhereItIsMissingItSaysWhatToInstall) {
  const Status missing = open_mpi("libquire_no_such_thing.so").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("install Open MPI (Debian: openmpi-bin)"));
  EXPECT_THAT(missing.message(), HasSubstr("libquire_no_such_thing.so"));
  EXPECT_THAT(open_mpi("libm.so.6").status().message(), HasSubstr("libm.so.6 is not of this quire"));
}

}  // namespace
}  // namespace quire::comm
