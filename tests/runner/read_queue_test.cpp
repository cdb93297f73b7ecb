// Reads under way at once give what reads one by one give.
#include "runner/read_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

namespace quire::runner {
namespace {

constexpr int64_t kFileBytes = 3 << 20;

class ReadQueueTest : public testing::TestWithParam<ReadQueue::Way> {
 protected:
  ReadQueueTest() : queue_(GetParam()) {
    std::string name = testing::TempDir() + "/read-queue-XXXXXX";
    file_ = ::mkstemp(name.data());
    ::unlink(name.c_str());
    std::mt19937_64 random(1);
    bytes_.resize(kFileBytes);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    EXPECT_EQ(::pwrite(file_, bytes_.data(), bytes_.size(), 0), kFileBytes);
  }
  ~ReadQueueTest() override { ::close(file_); }
  void SetUp() override {
    if (GetParam() == ReadQueue::Way::kDeepest && !queue_.is_deep()) GTEST_SKIP() << "no io_uring for this process";
  }

  // `bytes` from `offset` on, into pieces of `piece` bytes; nothing that lies outside of them may change.
  struct Place {
    int64_t offset = 0;
    size_t bytes = 0;
    size_t piece = 0;
  };
  void read(std::span<const Place> places) {
    constexpr char kUntouched = 'u';
    std::vector<std::string> memory;
    std::vector<ReadQueue::Read> reads;
    for (const Place& place : places) {
      memory.emplace_back(2 * place.bytes, kUntouched);  // each piece with as much behind it
      ReadQueue::Read read{file_, place.offset, {}};
      for (size_t at = 0; at < place.bytes; at += place.piece) {
        read.parts.push_back({memory.back().data() + 2 * at, std::min(place.piece, place.bytes - at)});
      }
      reads.push_back(std::move(read));
    }
    std::vector<int> told(places.size(), 0);
    queue_.read(reads, [&](size_t index, bool ok) {
      ++told[index];
      const Place& place = places[index];
      EXPECT_EQ(ok, place.offset + static_cast<int64_t>(place.bytes) <= kFileBytes) << place.offset;
      if (!ok) return;
      for (size_t at = 0; at < place.bytes; at += place.piece) {
        const size_t count = std::min(place.piece, place.bytes - at);
        const std::string_view read = std::string_view(memory[index]).substr(2 * at, 2 * count);
        EXPECT_EQ(read.substr(0, count), std::string_view(bytes_).substr(place.offset + at, count));
        EXPECT_EQ(read.substr(count), std::string(count, kUntouched));
      }
    });
    EXPECT_EQ(told, std::vector<int>(places.size(), 1));
  }

  ReadQueue queue_;
  int file_ = -1;
  std::string bytes_;
};

TEST_P(ReadQueueTest, ManyAtOnceFromAllOverAFile) {
  std::mt19937_64 random(2);
  std::vector<Place> places;
  for (int i = 0; i < 100; ++i) {
    const size_t bytes = 1 + random() % 40'000;
    places.push_back({static_cast<int64_t>(random() % (kFileBytes - bytes)), bytes, 1 + random() % bytes});
  }
  read(places);
  read({});
  read(std::span(places).first(1));
}

TEST_P(ReadQueueTest, WhatTheFileDoesNotHaveIsNotRead) {
  read(std::vector<Place>{{0, 1000, 100},
                          {kFileBytes - 500, 1000, 100},
                          {kFileBytes, 1, 1},
                          {kFileBytes + 5000, 1000, 1000},
                          {kFileBytes - 1000, 1000, 1000}});
}

TEST_P(ReadQueueTest, MorePiecesThanTheKernelTakesInOneCall) {
  read(std::vector<Place>{{100, 40'000, 8}, {200, 10'000, 8}, {300, 30'000, 10}});
}

TEST_P(ReadQueueTest, ADescriptorThatIsNoneFailsAlone) {
  char byte = 0;
  const std::vector<ReadQueue::Read> reads = {{-1, 0, {{&byte, 1}}}, {file_, 7, {{&byte, 1}}}};
  std::vector<int> good(2, -1);
  queue_.read(reads, [&](size_t index, bool ok) { good[index] = ok ? 1 : 0; });
  EXPECT_EQ(good, (std::vector<int>{0, 1}));
  EXPECT_EQ(byte, bytes_[7]);
}

INSTANTIATE_TEST_SUITE_P(Ways, ReadQueueTest, testing::Values(ReadQueue::Way::kDeepest, ReadQueue::Way::kOneByOne),
                         [](const auto& one) {
                           return std::string(one.param == ReadQueue::Way::kDeepest ? "UnderWayAtOnce" : "OneByOne");
                         });

}  // namespace
}  // namespace quire::runner
