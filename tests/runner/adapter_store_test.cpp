// Who is in memory, who leaves, and who waits for whom.
#include "runner/adapter_store.h"

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using Lease = std::shared_ptr<const AdapterLease>;

class AdapterStoreTest : public testing::Test {
 protected:
  AdapterStoreTest() : backend_(ops::make_reference_backend()), model_("llama", *backend_) {}

  static std::string path(const std::string& name) { return std::string(QUIRE_TEST_DATA) + "/e2e/lora/llama/" + name; }
  void make(int32_t most_loaded, int64_t most_bytes = 1 << 30) {
    store_ = std::make_unique<AdapterStore>(
        model_.adapter_host(), AdapterLimits{.most_loaded = most_loaded, .most_bytes = most_bytes}, *backend_);
  }
  // By the name of its folder.
  Status load(const std::string& name, bool replace = false, const std::string& files = "") {
    std::promise<Status> promise;
    store_->load(name, path(files.empty() ? name : files), replace, [&](AdapterStore::LeaseOr lease) {
      const Status status = lease.status();
      lease = unavailable("let go of");
      promise.set_value(status);
    });
    return promise.get_future().get();
  }
  std::future<AdapterStore::LeaseOr> begin_acquire(const std::string& name) {
    auto promise = std::make_shared<std::promise<AdapterStore::LeaseOr>>();
    store_->acquire(name, [promise](AdapterStore::LeaseOr lease) { promise->set_value(std::move(lease)); });
    return promise->get_future();
  }
  Lease acquire(const std::string& name) {
    auto lease = begin_acquire(name).get();
    EXPECT_TRUE(lease.ok()) << lease.status().message();
    return std::move(*lease);
  }
  bool is_loaded(const std::string& name) const {
    for (const AdapterInfo& info : store_->list()) {
      if (info.name == name) return info.loaded;
    }
    return false;
  }
  static bool is_ready(const std::future<AdapterStore::LeaseOr>& lease) {
    return lease.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
  }

  std::unique_ptr<ops::Backend> backend_;
  TinyModel model_;
  std::unique_ptr<AdapterStore> store_;
};

TEST_F(AdapterStoreTest, WhatWasWantedLongestAgoLeavesWhenRoomIsNeeded) {
  make(2);
  ASSERT_TRUE(load("qv").ok());
  ASSERT_TRUE(load("rslora").ok());
  acquire("qv").reset();
  ASSERT_TRUE(load("patterns").ok());
  EXPECT_TRUE(is_loaded("qv"));
  EXPECT_FALSE(is_loaded("rslora"));
  EXPECT_TRUE(is_loaded("patterns"));
  EXPECT_EQ(store_->statistics().num_loaded, 2);
  // It comes back, as the same adapter.
  const Lease back = acquire("rslora");
  EXPECT_EQ(back->adapter().rank(), 16);
  EXPECT_TRUE(is_loaded("rslora"));
}

TEST_F(AdapterStoreTest, WhatIsInUseStaysAndWhoComesAfterAWaitingOneWaitsBehindIt) {
  make(1);
  ASSERT_TRUE(load("qv").ok());
  Lease used = acquire("qv");
  auto other = begin_acquire("qv");
  ASSERT_TRUE(is_ready(other));
  std::promise<Status> loaded;
  store_->load("rslora", path("rslora"), false,
               [&](const AdapterStore::LeaseOr& lease) { loaded.set_value(lease.status()); });
  auto future = loaded.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "there is no room";
  // The adapter that is there may not keep the other out by being asked for again and again.
  auto late = begin_acquire("qv");
  EXPECT_FALSE(is_ready(late));
  EXPECT_EQ(store_->in_use(used->number()), &used->adapter());
  used.reset();
  { const auto gone = other.get(); }
  EXPECT_TRUE(future.get().ok());
  EXPECT_TRUE(late.get().ok());
}

TEST_F(AdapterStoreTest, AnAdapterHasANumberOfItsOwnInEachVersion) {
  make(4);
  ASSERT_TRUE(load("qv").ok());
  ASSERT_TRUE(load("rslora").ok());
  const Lease old = acquire("qv");
  EXPECT_NE(old->number(), acquire("rslora")->number());
  EXPECT_EQ(old->number(), acquire("qv")->number());
  ASSERT_TRUE(load("qv", /*replace=*/true, "all_linear").ok());
  const Lease fresh = acquire("qv");
  EXPECT_NE(fresh->number(), old->number());
  EXPECT_EQ(store_->in_use(old->number()), &old->adapter()) << "who has the old one keeps it";
  EXPECT_EQ(store_->in_use(fresh->number()), &fresh->adapter());
  EXPECT_EQ(store_->in_use(0), nullptr);
}

// Blocks may have been filed under its number that were computed without it.
TEST_F(AdapterStoreTest, WhatWorkersLostComesBackUnderAnotherNumber) {
  make(2);
  ASSERT_TRUE(load("qv").ok());
  const int32_t before = acquire("qv")->number();
  EXPECT_EQ(acquire("qv")->number(), before);
  store_->lose(before);
  EXPECT_FALSE(is_loaded("qv"));
  const int32_t after = acquire("qv")->number();
  EXPECT_NE(after, before);
  EXPECT_EQ(acquire("qv")->number(), after);
}

TEST_F(AdapterStoreTest, WhatIsUnloadedFreesItsMemoryWithItsLastUser) {
  make(4);
  ASSERT_TRUE(load("qv").ok());
  Lease lease = acquire("qv");
  ASSERT_TRUE(store_->unload("qv").ok());
  EXPECT_FALSE(store_->knows("qv"));
  EXPECT_EQ(store_->statistics().num_loaded, 1);
  const int32_t number = lease->number();
  lease.reset();
  EXPECT_EQ(store_->statistics().num_loaded, 0);
  EXPECT_EQ(store_->in_use(number), nullptr);
  EXPECT_EQ(store_->unload("qv").code(), StatusCode::kNotFound);
}

TEST_F(AdapterStoreTest, MoreBytesThanThereAreForAllIsRefusedAndLessPushesOthersOut) {
  make(8);
  ASSERT_TRUE(load("qv").ok());
  ASSERT_TRUE(load("rslora").ok());
  const int64_t both = store_->statistics().bytes;
  make(8, both);
  ASSERT_TRUE(load("qv").ok());
  ASSERT_TRUE(load("rslora").ok());
  ASSERT_TRUE(load("some_layers").ok());
  EXPECT_FALSE(is_loaded("qv"));
  EXPECT_LE(store_->statistics().bytes, both);
  make(8, 1000);
  const Status large = load("rslora");
  EXPECT_THAT(large.message(), testing::HasSubstr("--max-cpu-loras"));
  EXPECT_FALSE(store_->knows("rslora"));
}

TEST_F(AdapterStoreTest, WhatCannotBeReadIsToldAndLeavesNothing) {
  make(2);
  EXPECT_FALSE(load("unfit", /*replace=*/false, "../gpt2/qv").ok());
  EXPECT_FALSE(load("nowhere").ok());
  EXPECT_FALSE(store_->knows("unfit"));
  EXPECT_EQ(store_->statistics().num_loaded, 0);
  EXPECT_EQ(begin_acquire("unfit").get().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(load("").param(), "lora_name");
  ASSERT_TRUE(load("qv").ok());
  EXPECT_EQ(load("qv").param(), "lora_name");
  EXPECT_FALSE(load("qv", /*replace=*/true, "nowhere").ok());
  EXPECT_TRUE(is_loaded("qv")) << "the one in its place is still there";
}

TEST_F(AdapterStoreTest, WhoWaitsWhenItEndsIsToldSo) {
  make(1);
  ASSERT_TRUE(load("qv").ok());
  Lease used = acquire("qv");
  std::promise<Status> told;
  store_->load("rslora", path("rslora"), false,
               [&](const AdapterStore::LeaseOr& lease) { told.set_value(lease.status()); });
  store_.reset();
  EXPECT_EQ(told.get_future().get().code(), StatusCode::kUnavailable);
}

// The next is read beside the first: each is served in its turn all the same, and has its own numbers.
TEST_F(AdapterStoreTest, ManyThatWaitAreServedInTheirTurn) {
  make(64);
  const std::vector<std::string> files = {"qv", "nowhere", "rslora", "some_layers", "../gpt2/qv"};
  const std::map<std::string, int32_t> ranks = {{"qv", 4}, {"rslora", 16}, {"some_layers", 8}};  // of those that fit
  constexpr size_t kMany = 40;
  std::mutex mutex;
  std::vector<size_t> served;
  std::vector<Status> statuses(kMany);
  std::map<size_t, Lease> leases;
  std::promise<void> all;
  for (size_t i = 0; i < kMany; ++i) {
    // Every eighth name is taken by then, which is found out when its file may have been read.
    const std::string name = fmt::format("a{}", i % 8 == 7 ? i - 7 : i);
    store_->load(name, path(files[i % files.size()]), /*replace=*/false, [&, i](AdapterStore::LeaseOr lease) {
      const std::lock_guard lock(mutex);
      served.push_back(i);
      statuses[i] = lease.status();
      if (lease.ok()) leases[i] = std::move(*lease);
      if (served.size() == kMany) all.set_value();
    });
  }
  all.get_future().get();
  std::set<int32_t> numbers;
  for (size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(served[i], i);
    const std::string& file = files[i % files.size()];
    const bool is_taken = i % 8 == 7 && ranks.contains(files[(i - 7) % files.size()]);
    EXPECT_EQ(statuses[i].ok(), ranks.contains(file) && !is_taken) << i << ": " << statuses[i].message();
    EXPECT_EQ(statuses[i].param(), is_taken ? "lora_name" : "") << i;
    if (!statuses[i].ok()) continue;
    EXPECT_EQ(leases[i]->adapter().rank(), ranks.at(file)) << i;
    EXPECT_TRUE(numbers.insert(leases[i]->number()).second) << i;
  }
  EXPECT_GT(numbers.size(), 20u);
}

TEST_F(AdapterStoreTest, ManyThatWaitAreToldThatItEnds) {
  make(64);
  std::atomic<int> told = 0;
  for (int i = 0; i < 40; ++i)
    store_->load(fmt::format("a{}", i), path("all_linear"), false, [&](const AdapterStore::LeaseOr&) { ++told; });
  store_.reset();
  EXPECT_EQ(told, 40);
}

// What the backend gives, counted.
class CountedAllocator final : public Allocator {
 public:
  explicit CountedAllocator(Allocator& from) : from_(from) {}
  Device device() const override { return from_.device(); }
  void* allocate(size_t bytes) override {
    ++taken;
    return from_.allocate(bytes);
  }
  void release(void* memory, size_t bytes) override { from_.release(memory, bytes); }
  std::atomic<int> taken = 0;  // since the start

 private:
  Allocator& from_;
};

TEST_F(AdapterStoreTest, MemoryForOneMoreIsReadyBeforeItIsAskedForAndNotForMoreThanThereMayBe) {
  CountedAllocator counted(backend_->allocator());
  AdapterHost host = model_.adapter_host();
  host.allocator = std::make_shared<KeepingAllocator>(counted, size_t{1} << 30);
  store_ =
      std::make_unique<AdapterStore>(host, AdapterLimits{.most_loaded = 2, .most_bytes = int64_t{1} << 30}, *backend_);
  ASSERT_TRUE(load("qv").ok());
  for (int i = 0; i < 1000 && counted.taken < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(counted.taken, 2) << "its own, and the next one's";
  // As large as the first: the piece that is ready. There may be no third one.
  ASSERT_TRUE(load("again", /*replace=*/false, "qv").ok());
  ASSERT_TRUE(load("another", /*replace=*/false, "qv").ok());
  store_.reset();
  EXPECT_EQ(counted.taken, 2);
}

// On a device with memory of its own.
class AdapterStoreOnCard : public AdapterStoreTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    card_ = cards::make_card(2, {.checked = true});
    if (card_ == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  void TearDown() override { store_.reset(); }
  void make_on_card(int32_t most_loaded, int64_t most_bytes) {
    store_ = std::make_unique<AdapterStore>(
        model_.adapter_host(), AdapterLimits{.most_loaded = most_loaded, .most_bytes = most_bytes}, *card_);
    ASSERT_TRUE(store_->has_memory());
  }
  int64_t bytes_of(const std::string& name) {
    for (const AdapterInfo& info : store_->list()) {
      if (info.name == name) return info.bytes;
    }
    return 0;
  }
  std::unique_ptr<ops::Backend> card_;
};

TEST_P(AdapterStoreOnCard, AdaptersTakeTurnsOnMemoryThatIsTakenOnce) {
  make_on_card(8, 1 << 22);
  for (const std::string name : {"qv", "all_linear", "rslora"}) ASSERT_TRUE(load(name).ok());
  const int64_t small = bytes_of("qv");
  const int64_t large = bytes_of("all_linear");
  ASSERT_GT(large, small);
  // Room for the largest beside a small one: what leaves is what was wanted longest ago, whatever it takes.
  make_on_card(3, large + small);
  const int64_t left = card_->free_memory();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(load("qv", /*replace=*/true).ok());
    ASSERT_TRUE(load("all_linear", /*replace=*/true).ok());
    const Lease lease = acquire("all_linear");
    EXPECT_NE(lease->adapter().table(), nullptr);
    EXPECT_LE(store_->statistics().bytes, large + small);
  }
  EXPECT_EQ(card_->free_memory(), left) << "memory that comes and goes";
}

TEST_P(AdapterStoreOnCard, WhatFindsNoRoomWaitsForIt) {
  make_on_card(8, 1 << 22);
  ASSERT_TRUE(load("all_linear").ok());
  const int64_t large = bytes_of("all_linear");
  make_on_card(2, large + large / 2);
  // Who waits may be awake before who lets go is done with that, on a device whose memory that one still has.
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(load("all_linear", /*replace=*/true).ok());
    Lease used = acquire("all_linear");
    std::promise<Status> loaded;
    store_->load("again", path("all_linear"), /*replace=*/true,
                 [&](const AdapterStore::LeaseOr& lease) { loaded.set_value(lease.status()); });
    auto future = loaded.get_future();
    EXPECT_EQ(future.wait_for(std::chrono::milliseconds(1)), std::future_status::timeout);
    used.reset();
    ASSERT_TRUE(future.get().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, AdapterStoreOnCard, testing::Values("cuda"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::runner
