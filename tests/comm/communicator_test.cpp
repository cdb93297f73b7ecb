#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "comm/message_ring.h"
#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"

namespace quire::comm {
namespace {

using Body = std::function<void(Communicator&)>;

SharedGroupShape shape_of(int num_ranks) {
  return {.num_ranks = num_ranks, .slot_bytes = 4096};  // small, so that messages are cut
}

// A rank a thread.
void run_ranks(int num_ranks, const Body& body, SharedGroupShape shape = {}) {
  if (shape.num_ranks == 1) shape = shape_of(num_ranks);
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  ASSERT_TRUE(segment.ok());
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto joined = join_shared_group(segment->data(), shape, {.rank = rank, .spin = std::chrono::microseconds(20)});
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    ranks.push_back(std::move(*joined));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
  for (auto& rank : ranks) EXPECT_TRUE(rank->status().ok()) << rank->status().message();
}

// The same in processes; each gives whether all was well.
void run_processes(int num_ranks, const std::function<bool(Communicator&)>& body) {
  const SharedGroupShape shape = shape_of(num_ranks);
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  ASSERT_TRUE(segment.ok());
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      auto joined = join_shared_group(segment->data(), shape, {.rank = rank});
      _exit(joined.ok() && body(**joined) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

std::vector<float> numbers_of(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank + 1));
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random) * std::exp2(static_cast<float>(rank * 3));
  return numbers;
}

std::vector<float> sum_in_order(int num_ranks, size_t count) {
  std::vector<float> sum = numbers_of(0, count);
  for (int rank = 1; rank < num_ranks; ++rank) {
    const std::vector<float> own = numbers_of(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += own[i];
  }
  return sum;
}

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, SumsAreThoseInTheOrderOfTheRanksToTheBit) {
  for (const size_t count : {size_t{1}, size_t{17}, size_t{1023}, size_t{1024}, size_t{5000}, size_t{40000}}) {
    const std::vector<float> expected = sum_in_order(GetParam(), count);
    const Body body = [&](Communicator& communicator) {
      std::vector<float> values = numbers_of(communicator.rank(), count);
      communicator.all_reduce(values);
      EXPECT_EQ(values, expected) << count << " numbers, rank " << communicator.rank();
    };
    run_ranks(GetParam(), body);
    // Pieces that are worth dividing between the ranks.
    run_ranks(GetParam(), body, {.num_ranks = GetParam(), .slot_bytes = 1 << 18});
  }
}

TEST_P(Ranks, OneCallAfterAnotherDoesNotDisturbIt) {
  run_ranks(GetParam(), [&](Communicator& communicator) {
    for (int round = 0; round < 2000; ++round) {
      std::vector<float> values(static_cast<size_t>(1 + round % 7), static_cast<float>(communicator.rank() + round));
      communicator.all_reduce(values);
      const int size = communicator.size();
      for (const float value : values) ASSERT_EQ(value, static_cast<float>(size * round + size * (size - 1) / 2));
    }
  });
}

TEST_P(Ranks, APartOfTheSumIsThatPartOfAllOfIt) {
  constexpr size_t kPart = 3000;
  const size_t count = kPart * static_cast<size_t>(GetParam());
  const std::vector<float> expected = sum_in_order(GetParam(), count);
  run_ranks(GetParam(), [&](Communicator& communicator) {
    std::vector<float> part(kPart);
    communicator.reduce_scatter(numbers_of(communicator.rank(), count), part);
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(kPart) * communicator.rank()));
  });
}

TEST_P(Ranks, BytesAreGatheredInTheOrderOfTheRanksAndBroadcast) {
  run_ranks(GetParam(), [&](Communicator& communicator) {
    constexpr size_t kBytes = 10001;
    const std::vector<std::byte> own(kBytes, static_cast<std::byte>(communicator.rank() + 1));
    std::vector<std::byte> all(kBytes * static_cast<size_t>(communicator.size()));
    communicator.all_gather(own, all);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::byte>(i / kBytes + 1));
    std::vector<std::byte> told = own;
    const int root = communicator.size() - 1;
    communicator.broadcast(told, root);
    EXPECT_EQ(told, std::vector<std::byte>(kBytes, static_cast<std::byte>(root + 1)));
  });
}

// Columns of each rank, of different widths, wider than a piece, and overlapping.
TEST_P(Ranks, ColumnsAreGathered) {
  const int size = GetParam();
  for (const int64_t width : {int64_t{3}, int64_t{700}, int64_t{2500}}) {
    std::vector<ColumnRange> columns;
    for (int rank = 0; rank < size; ++rank) columns.push_back({rank * width, rank + 1 < size ? width + 1 : width});
    const int64_t total = size * width;
    const auto number = [&](int64_t row, int64_t column) { return static_cast<float>(row * total + column); };
    for (const int root : {0, Communicator::kEverybody}) {
      run_ranks(size, [&](Communicator& communicator) {
        constexpr int64_t kRows = 5;
        const int64_t stride = total + 3;
        std::vector<float> matrix(static_cast<size_t>(kRows * stride), -1.0f);
        const ColumnRange& own = columns[static_cast<size_t>(communicator.rank())];
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t i = own.first; i < own.first + own.count; ++i)
            matrix[static_cast<size_t>(row * stride + i)] = number(row, i);
        }
        communicator.gather_columns({matrix.data(), kRows, stride}, columns, root);
        if (root != Communicator::kEverybody && root != communicator.rank()) return;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t i = 0; i < stride; ++i) {
            ASSERT_EQ(matrix[static_cast<size_t>(row * stride + i)], i < total ? number(row, i) : -1.0f);
          }
        }
      });
    }
  }
}

TEST_P(Ranks, MessagesGoRoundInTheOrderInWhichTheyWereSent) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody to send to";
  run_ranks(GetParam(), [&](Communicator& communicator) {
    const int next = (communicator.rank() + 1) % communicator.size();
    const int last = (communicator.rank() + communicator.size() - 1) % communicator.size();
    for (int round = 0; round < 50; ++round) {
      // One piece can be on its way while nobody receives it.
      const std::vector<std::byte> sent(static_cast<size_t>(1 + round * 81), static_cast<std::byte>(round));
      std::vector<std::byte> came(sent.size());
      communicator.send(sent, next);
      communicator.receive(came, last);
      ASSERT_EQ(came, sent);
    }
  });
}

TEST_P(Ranks, ProcessesDoTheSame) {
  const std::vector<float> expected = sum_in_order(GetParam(), 5000);
  run_processes(GetParam(), [&](Communicator& communicator) {
    bool right = true;
    for (int round = 0; round < 100; ++round) {
      std::vector<float> values = numbers_of(communicator.rank(), 5000);
      communicator.all_reduce(values);
      right = right && values == expected;
    }
    communicator.barrier();
    return right && communicator.status().ok();
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, testing::Values(1, 2, 3, 4, 7));

TEST(SharedGroup, ARankThatLeavesEndsTheWaitingOfTheOthers) {
  const SharedGroupShape shape = shape_of(3);
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  ASSERT_TRUE(segment.ok());
  auto first = join_shared_group(segment->data(), shape, {.rank = 0});
  auto second = join_shared_group(segment->data(), shape, {.rank = 1});
  auto third = join_shared_group(segment->data(), shape, {.rank = 2});
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  std::thread waits([&] { (*first)->barrier(); });
  std::thread waits_too([&] { (*second)->barrier(); });
  third->reset();
  waits.join();
  waits_too.join();
  EXPECT_EQ((*first)->status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*first)->status().message(), "rank 2 of 3 is gone");
  EXPECT_EQ((*second)->status().message(), "rank 2 of 3 is gone");
  std::vector<float> values(10);
  (*first)->all_reduce(values);  // does not wait
}

// Another one may have seen nothing of the last meeting yet: it did not see everybody there, and finds one gone.
TEST(SharedGroup, ARankThatHasDoneItsPartMayGoWhileOthersAreStillWaiting) {
  constexpr int kRounds = 300;
  constexpr int kRanks = 8;
  for (int round = 0; round < kRounds; ++round) {
    auto segment = SharedSegment::create(shared_group_bytes(shape_of(kRanks)));
    ASSERT_TRUE(segment.ok());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto communicator = join_shared_group(segment->data(), shape_of(kRanks), {.rank = rank}).value();
        for (int meeting = 0; meeting < 3; ++meeting) communicator->barrier();
        EXPECT_TRUE(communicator->status().ok()) << communicator->status().message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SharedGroup, AKilledProcessEndsTheWaitingOfTheOthers) {
  const SharedGroupShape shape = shape_of(2);
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  ASSERT_TRUE(segment.ok());
  const pid_t child = fork();
  if (child == 0) {
    auto joined = join_shared_group(segment->data(), shape, {.rank = 1});
    (*joined)->barrier();
    while (true) pause();
  }
  auto joined = join_shared_group(segment->data(), shape, {.rank = 0});
  ASSERT_TRUE(joined.ok());
  (*joined)->barrier();
  EXPECT_TRUE((*joined)->status().ok());
  kill(child, SIGKILL);  // and nobody waits for it: it stays a zombie
  const auto start = std::chrono::steady_clock::now();
  (*joined)->barrier();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ((*joined)->status().message(), "rank 1 of 2 is gone");
  waitpid(child, nullptr, 0);
}

TEST(SharedGroup, WhoeverHasTheMemoryMayEndIt) {
  const SharedGroupShape shape = shape_of(2);
  auto segment = SharedSegment::create(shared_group_bytes(shape));
  ASSERT_TRUE(segment.ok());
  auto joined = join_shared_group(segment->data(), shape, {.rank = 0});
  ASSERT_TRUE(joined.ok());
  std::thread waits([&] {
    std::byte byte{};
    (*joined)->receive({&byte, 1}, 1);
  });
  end_shared_group(segment->data(), "the server stops");
  end_shared_group(segment->data(), "another reason");
  waits.join();
  EXPECT_EQ((*joined)->status().message(), "the server stops");
  EXPECT_EQ(shared_group_status(segment->data()).message(), "the server stops");
}

TEST(SharedGroup, RefusesRanksThatAreTakenAndOtherShapes) {
  const SharedGroupShape shape = shape_of(2);
  auto segment = SharedSegment::create(shared_group_bytes(shape_of(4)));
  ASSERT_TRUE(segment.ok());
  auto joined = join_shared_group(segment->data(), shape, {.rank = 1});
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(join_shared_group(segment->data(), shape, {.rank = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join_shared_group(segment->data(), shape, {.rank = 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join_shared_group(segment->data(), shape, {.rank = -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join_shared_group(segment->data(), shape_of(4), {.rank = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedSegment::open(dup(segment->descriptor()), 4096).status().code(), StatusCode::kInvalidArgument);
}

constexpr auto kAlways = [] { return true; };

TEST(MessageRing, MessagesOfAllLengthsPass) {
  constexpr int64_t kCapacity = 256;
  auto segment = SharedSegment::create(MessageRing::bytes(kCapacity));
  ASSERT_TRUE(segment.ok());
  std::mt19937 random(7);
  std::vector<std::string> messages;
  for (int i = 0; i < 300; ++i) messages.emplace_back(random() % 1000, static_cast<char>('a' + i % 26));
  std::thread writer([&] {
    MessageRing ring(segment->data(), kCapacity);
    for (const std::string& message : messages) ASSERT_TRUE(ring.write(message, kAlways).ok());
  });
  MessageRing ring(segment->data(), kCapacity);
  for (const std::string& message : messages) {
    const auto came = ring.read(kAlways);
    ASSERT_TRUE(came.ok());
    ASSERT_EQ(*came, message);
  }
  writer.join();
  EXPECT_FALSE(ring.has_message());
}

TEST(MessageRing, WaitingEndsWhereNobodyIsThere) {
  auto segment = SharedSegment::create(MessageRing::bytes(64));
  ASSERT_TRUE(segment.ok());
  MessageRing ring(segment->data(), 64);
  int asked = 0;
  const auto twice = [&] { return ++asked < 3; };
  EXPECT_EQ(ring.read(twice).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(asked, 3);
  asked = 0;
  EXPECT_EQ(ring.write(std::string(100, 'x'), twice).code(), StatusCode::kUnavailable);
}

// D2: what the other side writes is not believed.
TEST(MessageRing, LengthsAndPlacesThatCannotBeAreErrors) {
  constexpr int64_t kCapacity = 64;
  auto segment = SharedSegment::create(MessageRing::bytes(kCapacity));
  ASSERT_TRUE(segment.ok());
  auto& header = *reinterpret_cast<RingHeader*>(segment->data());
  MessageRing ring(segment->data(), kCapacity);
  header.head = 1000;
  EXPECT_EQ(ring.read(kAlways).status().code(), StatusCode::kDataLoss);
  header.head = 4;
  std::memset(segment->data() + sizeof(RingHeader), 0xff, 4);
  EXPECT_EQ(ring.read(kAlways).status().code(), StatusCode::kDataLoss);
  header.tail = 5000;
  EXPECT_EQ(ring.write("x", kAlways).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace quire::comm
