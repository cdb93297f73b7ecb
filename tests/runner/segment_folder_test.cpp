// Blocks in files: what comes back is what was written, or nothing.
#include "runner/segment_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "runner/offload_disk.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

constexpr int64_t kBlockBytes = 6000;
constexpr int32_t kTextTokens = 4;

// A block's bytes follow from its text, so that another's are seen.
std::vector<char> bytes_of_text(const StoredText& text, uint64_t parent_digest, uint64_t& digest) {
  digest = parent_digest * 31 + text.salt.size() * 7 + (text.is_long ? 3 : 0) + 1;
  for (const TokenId token : text.tokens) digest = digest * 1'000'003 + static_cast<uint64_t>(token) + 1;
  std::mt19937_64 random(digest + static_cast<uint64_t>(text.group));
  std::vector<char> bytes(kBlockBytes);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::vector<iovec> in_pieces(std::vector<char>& bytes) {
  return {{bytes.data(), 1000}, {bytes.data() + 1000, 0}, {bytes.data() + 1000, bytes.size() - 1000}};
}

class SegmentFolderTest : public testing::Test {
 protected:
  SegmentFolderTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                (std::string("segments-") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }
  ~SegmentFolderTest() override { std::filesystem::remove_all(folder_); }

  SegmentFolder::Config config() const {
    return {.folder = folder_,
            .fingerprint = "0123456789abcdef",
            .block_bytes = kBlockBytes,
            .block_size = kTextTokens,
            .num_groups = 2,
            .most_bytes = 4 << 20,
            .segment_bytes = 100'000};
  }
  static std::unique_ptr<SegmentFolder> open(const SegmentFolder::Config& config) {
    auto opened = SegmentFolder::open(config);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  std::unique_ptr<SegmentFolder> open() const { return open(config()); }
  std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.path().extension() == ".kv") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

  // Chains of texts, written from the beginning on. Returns how many blocks were written.
  static int write_chains(SegmentFolder& folder, int num_chains, int length, uint64_t first_node = 1,
                          StoredBlockId first_id = 1, TokenId first_token = 0) {
    int written = 0;
    for (int chain = 0; chain < num_chains; ++chain) {
      uint64_t parent = 0;
      uint64_t digest = 0;
      for (int i = 0; i < length; ++i) {
        StoredText text{.node = first_node++, .parent = parent, .salt = chain % 2 == 1 ? "salt" : ""};
        for (int t = 0; t < kTextTokens; ++t) text.tokens.push_back(first_token + chain * 1000 + i * 10 + t);
        parent = text.node;
        text.group = chain % 2;
        std::vector<char> bytes = bytes_of_text(text, digest, digest);
        written += folder.write({first_id++, text}, in_pieces(bytes)) ? 1 : 0;
      }
    }
    return written;
  }

  // Reads all that is found, each block's bytes held against its text; returns how many were there.
  static int read_all(SegmentFolder& folder) {
    std::map<uint64_t, std::pair<uint64_t, std::string>> digests = {{0, {0, ""}}};
    int good = 0;
    std::vector<SegmentFolder::Wanted> wanted;
    std::vector<std::vector<char>> read_bytes;
    std::vector<std::vector<char>> expected_bytes;
    for (const StoredBlock& block : folder.take_found()) {
      EXPECT_TRUE(digests.contains(block.text.parent)) << "a text comes before the one that it goes on from";
      uint64_t digest = 0;
      const std::vector<char> expected = bytes_of_text(block.text, digests[block.text.parent].first, digest);
      digests[block.text.node] = {digest, block.text.salt};
      if (block.text.parent != 0) {
        EXPECT_EQ(digests[block.text.parent].second, block.text.salt);
      }
      std::vector<char> bytes(kBlockBytes);
      expected_bytes.push_back(expected);
      read_bytes.push_back(std::move(bytes));
      wanted.push_back({block.id, in_pieces(read_bytes.back())});
    }
    const std::vector<bool> read = folder.read(wanted);
    for (size_t i = 0; i < read.size(); ++i) {
      if (!read[i]) continue;
      EXPECT_EQ(read_bytes[i], expected_bytes[i]) << "a wrong block";
      ++good;
    }
    return good;
  }

  const std::filesystem::path folder_;
};

TEST_F(SegmentFolderTest, WhatWasWrittenIsFoundByAnotherProcess) {
  {
    const auto folder = open();
    EXPECT_TRUE(folder->writes());
    EXPECT_EQ(write_chains(*folder, 6, 20), 120);
    EXPECT_EQ(folder->num_blocks(), 120);
  }
  EXPECT_GT(segments().size(), 5u);
  const auto again = open();
  EXPECT_EQ(again->num_blocks(), 120);
  EXPECT_EQ(read_all(*again), 120);
}

TEST_F(SegmentFolderTest, WhatALaterSessionAddsGoesOnFromWhatItFound) {
  { write_chains(*open(), 2, 5); }
  {
    const auto folder = open();
    std::vector<StoredBlock> found = folder->take_found();
    ASSERT_EQ(found.size(), 10u);
    // A block behind the last text of the first chain, by its number of this session.
    const auto last = std::ranges::max_element(
        found, {}, [](const StoredBlock& one) { return one.text.salt.empty() ? one.text.node : 0; });
    uint64_t digest = 0;
    for (const StoredBlock& one : found) {
      if (one.text.salt.empty()) bytes_of_text(one.text, digest, digest);
    }
    StoredText text{.node = 1000, .parent = last->text.node, .tokens = {7, 7, 7, 7}};
    std::vector<char> bytes = bytes_of_text(text, digest, digest);
    EXPECT_TRUE(folder->write({99, text}, in_pieces(bytes)));
  }
  EXPECT_EQ(read_all(*open()), 11);
}

TEST_F(SegmentFolderTest, FilesAreTheirOwnersAlone) {
  write_chains(*open(), 1, 3);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    struct stat info = {};
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
  }
}

TEST_F(SegmentFolderTest, WhatOthersCouldHaveWrittenIsNotRead) {
  { write_chains(*open(), 1, 3); }
  chmod(segments().front().c_str(), 0666);
  EXPECT_EQ(open()->num_blocks(), 0);
  chmod((folder_ / config().fingerprint).c_str(), 0777);
  const auto refused = SegmentFolder::open(config());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("others can write"));
}

TEST_F(SegmentFolderTest, OneWritesOthersRead) {
  const auto writer = open();
  write_chains(*writer, 1, 5);
  const auto reader = open();
  EXPECT_FALSE(reader->writes());
  EXPECT_EQ(reader->num_blocks(), 5);
  writer->clear();
  EXPECT_TRUE(segments().empty());
  EXPECT_EQ(read_all(*reader), 5) << "what is open can be read to its end";
}

TEST_F(SegmentFolderTest, AnotherFingerprintSeesNothing) {
  write_chains(*open(), 1, 5);
  SegmentFolder::Config other = config();
  other.fingerprint = "fedcba9876543210";
  EXPECT_EQ(open(other)->num_blocks(), 0);
  // Not even where somebody has moved the files.
  std::filesystem::remove_all(folder_ / other.fingerprint);
  std::filesystem::copy(folder_ / config().fingerprint, folder_ / other.fingerprint);
  EXPECT_EQ(open(other)->num_blocks(), 0);
}

TEST_F(SegmentFolderTest, ASaltThatIsTooLongIsNotWritten) {
  const auto folder = open();
  StoredText text{.node = 1, .salt = std::string(kLongestStoredSalt + 1, 's'), .tokens = {1, 2, 3, 4}};
  std::vector<char> bytes(kBlockBytes);
  EXPECT_FALSE(folder->write({1, text}, in_pieces(bytes)));
  text.salt.pop_back();
  EXPECT_TRUE(folder->write({1, text}, in_pieces(bytes)));
}

TEST_F(SegmentFolderTest, WithinItsSizeTheLongestUnusedGoes) {
  SegmentFolder::Config small = config();
  small.most_bytes = 500'000;
  const auto folder = open(small);
  EXPECT_EQ(write_chains(*folder, 20, 20), 400);
  EXPECT_LE(folder->bytes(), small.most_bytes);
  EXPECT_EQ(static_cast<size_t>(folder->num_blocks()) + folder->take_dropped().size(), 400u);
  int64_t bytes = 0;
  for (const auto& file : segments()) bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  EXPECT_LE(bytes, small.most_bytes);
}

TEST_F(SegmentFolderTest, WhatNobodyUsedForTooLongGoes) {
  { write_chains(*open(), 2, 20); }
  const std::vector<std::filesystem::path> files = segments();
  ASSERT_GE(files.size(), 2u);
  std::filesystem::last_write_time(files[0], std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  SegmentFolder::Config ageing = config();
  ageing.most_age_seconds = 3600;
  const auto folder = open(ageing);
  EXPECT_FALSE(std::filesystem::exists(files[0]));
  EXPECT_TRUE(std::filesystem::exists(files[1]));
  EXPECT_TRUE(folder->take_dropped().empty()) << "they were never told of";
  EXPECT_EQ(read_all(*folder), static_cast<int>(folder->num_blocks()));
}

// ---- damage ----

// A thousand files with flipped bits, cut or overwritten: never a wrong block, never a crash.
TEST_F(SegmentFolderTest, DamageCostsBlocksAndNeverGivesAWrongOne) {
  std::mt19937 random(1234);
  int read = 0;
  int files_damaged = 0;
  int rounds = 0;
  { write_chains(*open(), 8, 12); }
  const std::filesystem::path whole = folder_.string() + "-whole";
  std::filesystem::remove_all(whole);
  std::filesystem::copy(folder_, whole, std::filesystem::copy_options::recursive);
  while (files_damaged < 1000) {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(whole, folder_, std::filesystem::copy_options::recursive);
    for (const std::filesystem::path& file : segments()) {
      const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
      ++files_damaged;
      const auto kind = random() % 8;
      if (kind == 0) {
        std::filesystem::resize_file(file, static_cast<uintmax_t>(random() % static_cast<uint64_t>(size)));
        continue;
      }
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      for (auto flips = 1 + random() % 4; flips > 0; --flips) {
        // Headers are small: half of the flips go there.
        const int64_t at = random() % 2 == 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(size))
                                             : 4096 + static_cast<int64_t>(random() % 14) * 6656 +
                                                   static_cast<int64_t>(random() % 400);
        stream.seekg(at);
        const int byte = stream.get();
        if (byte < 0) {
          stream.clear();
          continue;
        }
        stream.seekp(at);
        if (kind == 1) {
          const std::string zeros(512, '\0');
          stream.write(zeros.data(), std::min<std::streamsize>(512, size - at));
        } else {
          stream.put(static_cast<char>(byte ^ (1 << (random() % 8))));
        }
      }
    }
    const auto folder = open();
    ASSERT_NE(folder, nullptr);
    read += read_all(*folder);
    // And it can be written to.
    EXPECT_EQ(write_chains(*folder, 1, 3, 5000, 5000, 900'000), 3);
    if (HasFailure()) return;
    ++rounds;
  }
  std::filesystem::remove_all(whole);
  EXPECT_GT(read, rounds * 96 / 4) << "damage to one block costs others";
  EXPECT_LT(read, rounds * 96) << "nothing was damaged";
}

TEST_F(SegmentFolderTest, ABlockThatIsMovedIsNotTakenForAnother) {
  write_chains(*open(), 1, 10);
  const std::filesystem::path file = segments().front();
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto record = static_cast<int64_t>((std::filesystem::file_size(file) - 4096) / 10);
  std::string bytes(static_cast<size_t>(record), '\0');
  stream.seekg(4096 + 2 * record);
  stream.read(bytes.data(), record);
  stream.seekp(4096 + 5 * record);
  stream.write(bytes.data(), record);
  stream.close();
  EXPECT_EQ(read_all(*open()), 5) << "the chain ends where a text is missing";
}

// A file system of a megabyte: what does not fit makes room or fails, and what was written stays right.
TEST_F(SegmentFolderTest, AFullDiskCostsBlocksAndNeverGivesAWrongOne) {
  std::filesystem::create_directories(folder_);
  if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0) {
    GTEST_SKIP() << "no right to mount a small file system";
  }
  SegmentFolder::Config large = config();
  large.most_bytes = int64_t{1} << 30;
  {
    const auto folder = open(large);
    EXPECT_EQ(write_chains(*folder, 40, 10), 400) << "older segments were not given up for it";
    const auto dropped = folder->take_dropped();
    EXPECT_GT(dropped.size(), 200u);
    // Somebody else takes all that is left and what is given up.
    std::ofstream hog(folder_ / "hog", std::ios::binary);
    const std::string piece(4096, 'x');
    while (hog.write(piece.data(), 4096) && hog.flush()) {
    }
    const int written = write_chains(*folder, 30, 10, 10'000, 10'000, 500'000);
    EXPECT_GT(written, 0);
    hog.clear();
    while (hog.write(piece.data(), 4096) && hog.flush()) {
    }
  }
  {
    const auto again = open(large);
    const auto found = static_cast<int>(again->num_blocks());
    EXPECT_GT(found, 0);
    EXPECT_LE(read_all(*again), found);
  }
  EXPECT_EQ(umount(folder_.c_str()), 0);
}

// A process that is killed while it writes leaves what is found or not, and nothing wrong.
TEST_F(SegmentFolderTest, AKilledWriterLeavesWholeBlocks) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto opened = SegmentFolder::open(config());
      if (!opened.ok() || !(*opened)->writes()) _exit(1);
      for (uint64_t i = 1; i <= 1000; ++i) {
        write_chains(**opened, 1, 10, 100'000 * i, 100'000 * i, static_cast<TokenId>(random() % 1'000'000));
      }
      _exit(0);
    }
    usleep(1000 + random() % 20'000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    const auto folder = open();
    ASSERT_TRUE(folder->writes()) << "the lock outlived its holder";
    const auto found = static_cast<int>(folder->num_blocks());
    EXPECT_EQ(read_all(*folder), found);
    random.discard(7);
  }
}

// ---- the thread ----

TEST_F(SegmentFolderTest, OrdersAreCarriedOutBesideAndReportedOnce) {
  std::vector<std::vector<char>> slots(8, std::vector<char>(kBlockBytes));
  const auto parts = [&](OffloadSlot slot) { return in_pieces(slots[static_cast<size_t>(slot)]); };
  std::mutex mutex;
  std::condition_variable bell;
  const auto wait_for = [&](OffloadDisk& disk, size_t fetched, size_t written) {
    OffloadReports all;
    std::unique_lock lock(mutex);
    for (int i = 0; i < 100 && (all.fetched.size() < fetched || all.written.size() < written); ++i) {
      bell.wait_for(lock, std::chrono::milliseconds(50));
      const OffloadReports some = disk.take_reports();
      all.fetched.insert(all.fetched.end(), some.fetched.begin(), some.fetched.end());
      all.written.insert(all.written.end(), some.written.begin(), some.written.end());
    }
    EXPECT_EQ(all.fetched.size(), fetched);
    EXPECT_EQ(all.written.size(), written);
    return all;
  };
  {
    OffloadDisk disk(open(), parts, 0);
    disk.on_reports([&] { bell.notify_all(); });
    for (size_t i = 0; i < 4; ++i) std::ranges::fill(slots[i], static_cast<char>('a' + i));
    OffloadOrders orders;
    for (int i = 0; i < 4; ++i) {
      const auto node = static_cast<uint64_t>(i + 1);
      orders.writes.push_back({i, {node, {.node = node, .parent = node - 1, .tokens = {i, i, i, i}}}});
    }
    disk.order(orders);
    for (const auto& done : wait_for(disk, 0, 4).written) EXPECT_TRUE(done.ok);
    disk.order({.fetches = {{2, 6}, {99, 7}}});
    for (const auto& done : wait_for(disk, 2, 0).fetched) EXPECT_EQ(done.ok, done.id == 2);
    EXPECT_EQ(slots[6], slots[1]);
    // What waits when it ends is written.
    disk.order({.writes = {{0, {50, {.node = 50, .parent = 4, .tokens = {9, 9, 9, 9}}}}}});
  }
  OffloadDisk again(open(), parts, 0);
  EXPECT_EQ(again.take_found().size(), 5u);
  again.order({.clear = true});
  again.order({.fetches = {{1, 7}}});
  EXPECT_FALSE(wait_for(again, 1, 0).fetched.front().ok);
  EXPECT_TRUE(segments().empty());
}

TEST_F(SegmentFolderTest, WritesKeepWithinTheirBandwidth) {
  std::vector<char> slot(kBlockBytes);
  const auto start = std::chrono::steady_clock::now();
  {
    OffloadDisk disk(
        open(), [&](OffloadSlot) { return in_pieces(slot); }, 10 * kBlockBytes);
    OffloadOrders orders;
    for (int i = 0; i < 100; ++i) {
      const auto node = static_cast<uint64_t>(i + 1);
      orders.writes.push_back({0, {node, {.node = node, .tokens = {i, i, i, i}}}});
    }
    disk.order(std::move(orders));
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    const size_t written = disk.take_reports().written.size();
    EXPECT_GE(written, 5u);
    EXPECT_LE(written, 25u);
  }
  // At its end it does not wait for the budget.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  EXPECT_EQ(open()->num_blocks(), 100);
}

}  // namespace
}  // namespace quire::runner
