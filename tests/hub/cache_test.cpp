// What a cache holds, and what is left of it when something is removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hub/cache.h"
#include "tests/hub/fake_hub.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const ModelName kName{.repository = "org/na-me", .gguf = {}};

class HubCache : public testing::Test {
 protected:
  // A file of a snapshot; the same content is the same blob.
  void add(const std::string& commit, const std::string& path, const std::string& content) {
    const std::string hash = sha256_of(content);
    fs::create_directories(cache.folder() / "blobs");
    std::ofstream(cache.blob(hash), std::ios::binary) << content;
    ASSERT_TRUE(cache.link(commit, path, hash).ok());
  }
  bool has_blob(const std::string& content) const { return fs::exists(cache.blob(sha256_of(content))); }

  TemporaryFolder folder;
  ModelCache cache{folder.path, kName};
  const std::string old_weights = some_bytes(40'000, 1), new_weights = some_bytes(50'000, 2), shared = "shared";
};

TEST_F(HubCache, ItIsListedWithWhatSnapshotsShareCountedOnce) {
  add(kCommit, "config.json", shared);
  add(kCommit, "model.safetensors", old_weights);
  add(kOtherCommit, "config.json", shared);
  add(kOtherCommit, "model.safetensors", new_weights);
  ASSERT_TRUE(cache.write_ref("main", kOtherCommit).ok());
  ASSERT_TRUE(cache.write_ref("refs/pr/1", kOtherCommit).ok());
  fs::create_directories(folder.path / "datasets--org--other");
  const auto models = scan_cache(folder.path);
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].repository, "org/na-me");
  ASSERT_EQ(models[0].snapshots.size(), 2u);
  EXPECT_THAT(models[0].snapshots[0].refs, ElementsAre());
  EXPECT_THAT(models[0].snapshots[1].refs, ElementsAre("main", "refs/pr/1"));
  EXPECT_EQ(models[0].snapshots[1].files[1].size, 50'000);
  EXPECT_GE(models[0].bytes, 90'000);
  EXPECT_LT(models[0].bytes, 100'000);
  EXPECT_TRUE(scan_cache(folder.path / "none").empty());
}

TEST_F(HubCache, RemovingARevisionLeavesWhatOthersShare) {
  add(kCommit, "config.json", shared);
  add(kCommit, "model.safetensors", old_weights);
  add(kOtherCommit, "config.json", shared);
  add(kOtherCommit, "model.safetensors", new_weights);
  ASSERT_TRUE(cache.write_ref("main", kOtherCommit).ok());
  const RemoveWhat what{.name = kName, .revision = "main"};
  const auto planned = remove_model(folder.path, what, true);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_TRUE(has_blob(new_weights)) << "it was only asked";
  const auto removed = remove_model(folder.path, what, false);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->bytes, planned->bytes);
  EXPECT_EQ(removed->bytes, 50'000);
  EXPECT_FALSE(removed->whole);
  EXPECT_FALSE(has_blob(new_weights));
  EXPECT_TRUE(has_blob(shared));
  EXPECT_TRUE(cache.has(kCommit, "model.safetensors"));
  EXPECT_EQ(cache.commit_of("main"), std::nullopt);
}

TEST_F(HubCache, RemovingAGgufTypeLeavesTheOthers) {
  add(kCommit, "m-Q4_0.gguf", old_weights);
  add(kCommit, "m-Q8_0.gguf", new_weights);
  const auto removed = remove_model(folder.path, {.name = {.repository = "org/na-me", .gguf = "q8_0"}}, false);
  ASSERT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_EQ(removed->bytes, 50'000);
  EXPECT_TRUE(cache.has(kCommit, "m-Q4_0.gguf"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(cache.snapshot(kCommit) / "m-Q8_0.gguf")));
  EXPECT_FALSE(remove_model(folder.path, {.name = {.repository = "org/na-me", .gguf = "q8_0"}}, false).ok());
}

TEST_F(HubCache, RemovingAllLeavesNothing) {
  add(kCommit, "config.json", shared);
  const auto lock = FileLock::try_take(cache.lock("abc"));
  ASSERT_TRUE(lock.ok());
  {
    const auto refused = remove_model(folder.path, {.name = kName}, false);
    EXPECT_THAT(refused.status().message(), HasSubstr("being downloaded"));
  }
  const_cast<std::optional<FileLock>&>(*lock).reset();
  const auto removed = remove_model(folder.path, {.name = kName}, false);
  ASSERT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_TRUE(removed->whole);
  EXPECT_FALSE(fs::exists(cache.folder()));
  EXPECT_THAT(remove_model(folder.path, {.name = kName}, false).status().message(), HasSubstr("quire models"));
}

TEST_F(HubCache, ALinkOutOfTheFolderIsNotFollowed) {
  const fs::path outside = folder.path / "outside";
  std::ofstream(outside) << "precious";
  fs::create_directories(cache.snapshot(kCommit));
  fs::create_symlink(outside, cache.snapshot(kCommit) / "model.safetensors");
  add(kOtherCommit, "config.json", shared);
  const auto removed = remove_model(folder.path, {.name = kName, .revision = kCommit}, false);
  ASSERT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_EQ(removed->bytes, 0);
  EXPECT_TRUE(fs::exists(outside));
}

TEST_F(HubCache, ALockIsHeldByOneAtATime) {
  const fs::path path = cache.lock("abc");
  auto first = FileLock::try_take(path);
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_FALSE(FileLock::try_take(path)->has_value());
  first->reset();
  EXPECT_TRUE(FileLock::try_take(path)->has_value());
}

}  // namespace
}  // namespace quire::hub
