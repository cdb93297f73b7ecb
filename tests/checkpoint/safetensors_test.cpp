// Right directories in Hugging Face's layout: single, sharded, linked, with and without what is optional.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open(const fs::path& path) {
    auto checkpoint = Checkpoint::open(path.string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return checkpoint.ok() ? *checkpoint : nullptr;
  }
  const fs::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

template <typename T>
T value_of(const Checkpoint& checkpoint, std::string_view name, size_t index) {
  return static_cast<const T*>(checkpoint.find(name)->view.data)[index];
}

TEST_F(SafetensorsTest, GivenOneFileThenItsTensorsAreFound) {
  write_small_directory(path());
  const auto checkpoint = open(path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), Format::kSafetensors);
  ASSERT_EQ(checkpoint->tensors().size(), 1u);
  EXPECT_EQ(checkpoint->tensors()[0].stored_name, "a");
  EXPECT_EQ(value_of<float>(*checkpoint, "a", 1), -2.0f);
  EXPECT_EQ(checkpoint->find("b"), nullptr);
  EXPECT_EQ(checkpoint->config().at("vocab_size"), 2);
  EXPECT_TRUE(checkpoint->generation_config().empty());
  EXPECT_TRUE(checkpoint->tokenizer_config().empty());
  EXPECT_EQ(checkpoint->tokenizer_json(), "");
  EXPECT_EQ(checkpoint->chat_template(), "");
  EXPECT_FALSE(checkpoint->vocabulary().has_value());
  EXPECT_EQ(checkpoint->total_tensor_bytes(), 8);
  EXPECT_EQ(checkpoint->dtype_summary(), "F32");
}

TEST_F(SafetensorsTest, GivenEveryTypeInAnyOrderThenViewsAreRight) {
  write_small_directory(path());
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("i64", "I64", "[1]", 12, 20) + "," +
                             entry("f16", "F16", "[1,2]", 0, 4) + "," + entry("bf16", "BF16", "[2,1]", 4, 8) + "," +
                             entry("i32", "I32", "[]", 8, 12) + "," + entry("none", "F32", "[0,3]", 20, 20) + "}  ";
  write_file(path() / "model.safetensors",
             safetensors(header, bytes_of<uint16_t>({1, 2, 3, 4}) + bytes_of<int32_t>({5}) + bytes_of<int64_t>({6})));
  const auto checkpoint = open(path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(value_of<uint16_t>(*checkpoint, "f16", 1), 2);
  EXPECT_EQ(value_of<uint16_t>(*checkpoint, "bf16", 0), 3);
  EXPECT_EQ(value_of<int32_t>(*checkpoint, "i32", 0), 5);
  EXPECT_EQ(value_of<int64_t>(*checkpoint, "i64", 0), 6);
  EXPECT_EQ(checkpoint->find("i32")->view.shape.rank(), 0);
  EXPECT_EQ(checkpoint->find("f16")->view.shape, (Shape{1, 2}));
  EXPECT_EQ(checkpoint->find("none")->view.bytes(), 0);
  EXPECT_EQ(checkpoint->total_tensor_bytes(), 20);
}

// F6: the file has holes, and takes no room but at its ends.
TEST_F(SafetensorsTest, GivenMoreElementsThan31BitsCountThenTheLastIsRead) {
  constexpr uint64_t kRows = 70'000;
  constexpr uint64_t kColumns = 40'000;
  constexpr uint64_t kBytes = 2 * kRows * kColumns;
  static_assert(kRows * kColumns > uint64_t{1} << 31);
  write_small_directory(path());
  const std::string file = (path() / "model.safetensors").string();
  std::string header = "{" + entry("a", "F16", "[70000,40000]", 0, kBytes) + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that elements are aligned, and need no copy
  write_file(file, safetensors(header, ""));
  const uint64_t begin = fs::file_size(file);
  fs::resize_file(file, begin + kBytes);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(begin + kBytes - 2))
      .write("\x01\x3c", 2);
  const auto checkpoint = open(path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->find("a")->view.shape.num_elements(), static_cast<int64_t>(kRows * kColumns));
  EXPECT_EQ(checkpoint->find("a")->view.bytes(), static_cast<int64_t>(kBytes));
  EXPECT_EQ(checkpoint->total_tensor_bytes(), static_cast<int64_t>(kBytes));
  EXPECT_EQ(value_of<uint16_t>(*checkpoint, "a", kRows * kColumns - 1), 0x3c01);
  EXPECT_EQ(value_of<uint16_t>(*checkpoint, "a", kRows * kColumns - 2), 0);
}

TEST_F(SafetensorsTest, GivenAHeaderOfAnyLengthThenViewsAreAlignedToTheirElements) {
  for (size_t spaces = 0; spaces < 8; ++spaces) {
    write_small_directory(path());
    write_file(path() / "model.safetensors",
               safetensors("{" + entry("a", "F32", "[2]", 0, 8) + "}" + std::string(spaces, ' '),
                           bytes_of<float>({1.5f, -2.0f})));
    const auto checkpoint = open(path());
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(checkpoint->find("a")->view.data) % alignof(float), 0u);
    EXPECT_EQ(value_of<float>(*checkpoint, "a", 0), 1.5f);
    EXPECT_EQ(value_of<float>(*checkpoint, "a", 1), -2.0f);
  }
}

TEST_F(SafetensorsTest, GivenShardsThenTheIndexJoinsThem) {
  write_sharded_directory(path());
  const auto checkpoint = open(path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(value_of<float>(*checkpoint, "a", 0), 1.5f);
  EXPECT_EQ(value_of<float>(*checkpoint, "b", 0), 8.0f);
  EXPECT_EQ(checkpoint->total_tensor_bytes(), 12);
}

TEST_F(SafetensorsTest, GivenAnIndexWithoutMetadataThenItOpens) {
  write_sharded_directory(path());
  write_file(path() / "model.safetensors.index.json",
             R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_NE(open(path()), nullptr);
}

TEST_F(SafetensorsTest, GivenAnIndexWithTheSizeOfAnotherModelThenItOpensWithAWarning) {
  write_sharded_directory(path());
  write_file(path() / "model.safetensors.index.json",
             R"({"metadata":{"total_size":13},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_NE(open(path()), nullptr);
}

TEST_F(SafetensorsTest, GivenOneFileUnderAnotherNameThenItIsTaken) {
  write_small_directory(path());
  fs::rename(path() / "model.safetensors", path() / "weights.safetensors");
  EXPECT_NE(open(path()), nullptr);
}

TEST_F(SafetensorsTest, GivenPicklesBesideSafetensorsThenTheyAreLeftAlone) {
  write_small_directory(path());
  write_file(path() / "pytorch_model.bin", "not to be read");
  write_file(path() / "config.json",
             R"({"auto_map": {"AutoModel": "modeling_x.XModel"}, "quantization_config": null})");
  EXPECT_NE(open(path()), nullptr);
}

TEST_F(SafetensorsTest, GivenHuggingFacesCacheLayoutThenLinksToItsBlobsAreFollowed) {
  const fs::path snapshot = path() / "models--a--b" / "snapshots" / "0123";
  const fs::path blobs = path() / "models--a--b" / "blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  write_sharded_directory(snapshot);
  for (const char* name : {"config.json", "one.safetensors", "two.safetensors", "model.safetensors.index.json"}) {
    fs::rename(snapshot / name, blobs / (std::string("blob-") + name));
    fs::create_symlink(std::string("../../blobs/blob-") + name, snapshot / name);
  }
  const auto checkpoint = open(snapshot);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(value_of<float>(*checkpoint, "b", 0), 8.0f);
}

TEST_F(SafetensorsTest, GivenAStoreThatTheRepositoriesOfACacheShareThenItsLinksAreFollowedAndNoOthers) {
  const fs::path snapshot = path() / "models--a--b" / "snapshots" / "0123";
  const fs::path blobs = path() / "models--a--b" / "blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  fs::create_directories(path() / "blobs" / "ab");
  write_small_directory(snapshot);
  fs::rename(snapshot / "model.safetensors", path() / "blobs" / "ab" / "abcd");
  fs::create_symlink("../../blobs/ab/abcd", blobs / "blob");
  fs::create_symlink("../../blobs/blob", snapshot / "model.safetensors");
  EXPECT_NE(open(snapshot), nullptr);

  fs::rename(path() / "blobs" / "ab" / "abcd", path() / "elsewhere");
  fs::remove(blobs / "blob");
  fs::create_symlink("../../elsewhere", blobs / "blob");
  EXPECT_EQ(Checkpoint::open(snapshot.string()).status().code(), StatusCode::kDataLoss);
}

TEST_F(SafetensorsTest, GivenLinksInsideTheDirectoryAndToItThenTheyAreFollowed) {
  fs::create_directory(path() / "model");
  write_small_directory(path() / "model");
  fs::rename(path() / "model" / "model.safetensors", path() / "model" / "weights");
  fs::create_symlink("weights", path() / "model" / "model.safetensors");
  fs::create_directory_symlink("model", path() / "link");
  EXPECT_NE(open(path() / "link"), nullptr);
}

TEST_F(SafetensorsTest, GivenTextFilesThenTheyAreRead) {
  write_small_directory(path());
  write_file(path() / "generation_config.json", R"({"eos_token_id": [1, 2]})");
  write_file(path() / "tokenizer.json", R"({"version": "1.0"})");
  write_file(path() / "tokenizer_config.json",
             R"({"bos_token": "<s>", "chat_template": [{"name": "tool_use", "template": "tools"},
                                                       {"name": "default", "template": "plain"}]})");
  auto checkpoint = open(path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->generation_config().at("eos_token_id").as_array().size(), 2u);
  EXPECT_EQ(checkpoint->tokenizer_json(), R"({"version": "1.0"})");
  EXPECT_EQ(checkpoint->tokenizer_config().at("bos_token"), "<s>");
  EXPECT_EQ(checkpoint->chat_template(), "plain");

  write_file(path() / "tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(open(path())->chat_template(), "one");
  write_file(path() / "chat_template.jinja", "from its own file");
  EXPECT_EQ(open(path())->chat_template(), "from its own file");
}

}  // namespace
}  // namespace quire::checkpoint
