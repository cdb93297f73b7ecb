// Ranks whose numbers lie in a device's memory: threads of this process, each with a backend of its own.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"
#include "runner/device_communicator.h"
#include "tests/runner/near_logits.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

// A real card is lent to one thread at a time.
bool has_ranks(const std::string& kind) {
  return !cards::is_card(kind) || cards::is_emulated(kind);
}

std::unique_ptr<ops::Backend> rank_backend(const std::string& kind) {
  return make_test_backend(kind, ActivationDType::kFloat32);
}

struct Rank {
  ops::Backend& backend;
  comm::Communicator& host;
  comm::Communicator& device;
};

void run_ranks(const std::string& kind, int num_ranks, const std::function<void(Rank)>& body) {
  const comm::SharedGroupShape shape{.num_ranks = num_ranks, .slot_bytes = 16 << 10};
  auto segment = comm::SharedSegment::create(comm::shared_group_bytes(shape)).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto host = comm::join_shared_group(segment.data(), shape, {.rank = rank}).value();
      const auto backend = rank_backend(kind);
      const auto device = make_device_communicator(*backend, *host, {.widest_row = 1 << 12}).value();
      body({*backend, *host, *device});
      EXPECT_TRUE(device->status().ok()) << device->status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> numbers(size_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> all(count);
  for (float& one : all) one = normal(random);
  return all;
}

// Floats in the device's memory.
class Placed {
 public:
  Placed(ops::Backend& backend, const std::vector<float>& values)
      : backend_(backend), memory_(backend.allocator(), values.size() * sizeof(float)), size_(values.size()) {
    backend_.upload(memory_.data(), values.data(), memory_.bytes());
  }
  std::span<float> span() { return {memory_.as<float>(), size_}; }
  std::span<std::byte> bytes() { return std::as_writable_bytes(span()); }
  std::vector<float> values() {
    std::vector<float> all(size_);
    backend_.download(all.data(), memory_.data(), memory_.bytes());
    return all;
  }

 private:
  ops::Backend& backend_;
  Buffer memory_;
  size_t size_;
};

class DeviceCommunicator : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_ranks(GetParam()) || make_test_backend(GetParam()) == nullptr)
      GTEST_SKIP() << "no ranks of " << GetParam();
  }
};

// Below a slot of the host's, beyond it, and beyond what is staged at once.
constexpr size_t kCounts[] = {1, 77, 9000, (size_t{5} << 20) / sizeof(float) + 3};

TEST_P(DeviceCommunicator, SumsHaveTheBitsOfTheHosts) {
  for (const int num_ranks : {1, 2, 3}) {
    run_ranks(GetParam(), num_ranks, [](Rank rank) {
      for (const size_t count : kCounts) {
        std::vector<float> expected = numbers(count, rank.host.rank());
        Placed placed(rank.backend, expected);
        rank.device.all_reduce(placed.span());
        const std::vector<float> found = placed.values();
        rank.host.all_reduce(expected);
        EXPECT_EQ(found, expected);
      }
    });
  }
}

TEST_P(DeviceCommunicator, PartsOfSumsAndAllPartsAreTheHosts) {
  run_ranks(GetParam(), 3, [](Rank rank) {
    for (const size_t count : kCounts) {
      const std::vector<float> values = numbers(3 * count, rank.host.rank());
      std::vector<float> expected(count);
      Placed placed(rank.backend, values);
      Placed sum(rank.backend, expected);
      rank.device.reduce_scatter(placed.span(), sum.span());
      const std::vector<float> found = sum.values();
      rank.host.reduce_scatter(values, expected);
      EXPECT_EQ(found, expected);
      std::vector<float> all(3 * count);
      Placed gathered(rank.backend, all);
      rank.device.all_gather(sum.bytes(), gathered.bytes());
      const std::vector<float> found_all = gathered.values();
      rank.host.all_gather(std::as_bytes(std::span(expected)), std::as_writable_bytes(std::span(all)));
      EXPECT_EQ(found_all, all);
    }
  });
}

// Ranges of unlike sizes, in a matrix whose rows lie apart; one has fewer rows than are staged at once, one more.
TEST_P(DeviceCommunicator, ColumnsComeToWhomTheyAreFor) {
  const std::vector<comm::ColumnRange> columns = {{0, 500}, {500, 1}, {501, 499}};
  for (const int root : {comm::Communicator::kEverybody, 0, 2}) {
    for (const int64_t num_rows : {3, 1500}) {
      run_ranks(GetParam(), 3, [&](Rank rank) {
        constexpr int64_t kStride = 1003;
        std::vector<float> expected = numbers(static_cast<size_t>(num_rows * kStride), rank.host.rank());
        Placed placed(rank.backend, expected);
        rank.device.gather_columns({placed.span().data(), num_rows, kStride}, columns, root);
        const std::vector<float> found = placed.values();
        rank.host.gather_columns({expected.data(), num_rows, kStride}, columns, root);
        EXPECT_EQ(found, expected);
      });
    }
  }
}

TEST_P(DeviceCommunicator, MessagesArriveInTheOrderInWhichTheyWereSent) {
  run_ranks(GetParam(), 2, [](Rank rank) {
    for (const size_t count : kCounts) {
      const std::vector<float> first = numbers(count, 5);
      const std::vector<float> second = numbers(count, 6);
      const bool sends = rank.host.rank() == 0;
      Placed one(rank.backend, sends ? first : numbers(count, 7));
      Placed two(rank.backend, sends ? second : numbers(count, 8));
      for (Placed* each : {&one, &two}) {
        if (sends) rank.device.send(each->bytes(), 1);
        if (!sends) rank.device.receive(each->bytes(), 0);
      }
      EXPECT_EQ(one.values(), first);
      EXPECT_EQ(two.values(), second);
      Placed everybodys(rank.backend, sends ? first : second);
      rank.device.broadcast(everybodys.bytes(), 1);
      rank.device.barrier();
      EXPECT_EQ(everybodys.values(), second);
    }
  });
}

TEST_P(DeviceCommunicator, AReplayExchangesWhatIsThereThen) {
  run_ranks(GetParam(), 2, [](Rank rank) {
    if (!rank.backend.can_record()) return;
    constexpr size_t kCount = 300;
    Placed placed(rank.backend, numbers(kCount, 1));
    // An op between two sums.
    const auto pass = [&] {
      rank.device.all_reduce(placed.span());
      rank.backend(ops::ScaleArgs{
          .values = placed.span().data(), .scale = 0.25f, .num_rows = 1, .size = static_cast<int64_t>(kCount)});
      rank.device.all_reduce(placed.span());
    };
    pass();
    const auto recording = rank.backend.record(pass, /*renews_attention=*/false);
    ASSERT_TRUE(recording.ok()) << recording.status().message();
    for (int step = 0; step < 3; ++step) {
      std::vector<float> expected = numbers(kCount, 10 * step + rank.host.rank());
      rank.backend.upload(placed.span().data(), expected.data(), kCount * sizeof(float));
      rank.backend.replay(**recording, [](ops::PagedAttentionArgs&) {});
      const std::vector<float> found = placed.values();
      rank.host.all_reduce(expected);
      for (float& one : expected) one *= 0.25f;
      rank.host.all_reduce(expected);
      EXPECT_EQ(found, expected);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceCommunicator, testing::Values("avx2", "cuda"),
                         [](const auto& test) { return test.param; });

// Logits after each token of the prompts, as rank 0 of so many has them.
std::vector<std::vector<std::vector<float>>> logits_on_ranks(const std::string& kind, const std::string& family,
                                                             int num_ranks, int32_t chunk) {
  const std::vector<GoldenCase> cases = read_golden(family);
  std::vector<std::vector<std::vector<float>>> all(cases.size());
  run_ranks(kind, num_ranks, [&](Rank rank) {
    TinyModel model(family, rank.backend, "float32", {}, "", LoadFormat::kAuto, WeightDType::kAuto, nullptr,
                    num_ranks == 1 ? nullptr : &rank.device);
    if (testing::Test::HasFailure()) return;
    model.fill_memory(0xff);
    for (size_t i = 0; i < cases.size(); ++i) {
      auto rows = model.logits(cases[i].prompt, chunk);
      if (rank.host.rank() == 0) all[i] = std::move(rows);
    }
  });
  return all;
}

class TensorParallelOnDevice : public testing::TestWithParam<std::tuple<std::string, std::string, int>> {};

TEST_P(TensorParallelOnDevice, LogprobsAreThoseOfOneProcessAndBitsRepeat) {
  const auto& [kind, family, num_ranks] = GetParam();
  if (!has_ranks(kind) || make_test_backend(kind) == nullptr) GTEST_SKIP() << "no ranks of " << kind;
  constexpr int32_t kWhole = 2048;
  const auto expected = logits_on_ranks(kind, family, 1, kWhole);
  const auto found = logits_on_ranks(kind, family, num_ranks, kWhole);
  expect_near_logprobs(family, found, expected, 1e-4);
  EXPECT_EQ(logits_on_ranks(kind, family, num_ranks, kWhole), found);
}

// Heads of unlike numbers, norms over all of them, experts, latents, learned positions, sinks.
INSTANTIATE_TEST_SUITE_P(Two, TensorParallelOnDevice,
                         testing::Combine(testing::Values("cuda"),
                                          testing::Values("llama", "olmo2", "gemma3", "gpt2", "qwen2_moe",
                                                          "deepseek_v2", "gpt_oss"),
                                          testing::Values(2)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param) + "_" +
                                  std::to_string(std::get<2>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(Three, TensorParallelOnDevice,
                         testing::Combine(testing::Values("cuda"), testing::Values("llama"), testing::Values(3)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param) + "_" +
                                  std::to_string(std::get<2>(test.param));
                         });

}  // namespace
}  // namespace quire::runner
