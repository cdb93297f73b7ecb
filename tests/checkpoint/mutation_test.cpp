// Valid small files, damaged at random: opening them must end in a checkpoint or in a Status. What opens must be
// readable from the first byte of every tensor to the last.
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kMutations = 3000;

// One to eight damages: a random byte, a flipped bit, an extreme 64-bit number, a cut, bytes removed or repeated.
std::string damaged(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  const size_t damages = 1 + below(8);
  for (size_t i = 0; i < damages && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size());
    switch (below(8)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.erase(at, below(16));
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, below(64)));
        break;
      case 3: {
        constexpr uint64_t kExtremes[] = {0, 1, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};
        std::string extreme;
        put(extreme, kExtremes[below(std::size(kExtremes))]);
        bytes.replace(at, std::min(extreme.size(), bytes.size() - at), extreme);
        break;
      }
      case 4:
      case 5:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      default:
        bytes[at] = static_cast<char>(random());
        break;
    }
  }
  return bytes;
}

// Whether it opens; reads all of what does.
bool open_and_read(const std::string& path, uint64_t& checksum) {
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint.ok()) {
    EXPECT_FALSE(checkpoint.status().message().empty());
    return false;
  }
  for (const CheckpointTensor& tensor : (*checkpoint)->tensors()) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.view.data);
    for (int64_t i = 0; i < tensor.view.bytes(); ++i) checksum = checksum * 31 + bytes[i];
  }
  if (const auto vocabulary = (*checkpoint)->vocabulary()) checksum += vocabulary->tokens.size();
  return true;
}

class MutationTest : public testing::Test {
 protected:
  // Damages the file `name` in the directory again and again, and opens `model`.
  void run(const fs::path& file, const fs::path& model, uint64_t seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::string original;
    {
      std::ifstream in(file, std::ios::binary);
      original.assign(std::istreambuf_iterator<char>(in), {});
    }
    uint64_t checksum = 0;
    ASSERT_TRUE(open_and_read(model.string(), checksum)) << "the file is right before it is damaged";
    std::mt19937_64 random(seed);
    int opened = 0;
    for (int i = 0; i < kMutations; ++i) {
      fs::remove(file);  // a new file each time: truncating an old one makes some file systems wait for the disk
      write_file(file, damaged(original, random));
      opened += open_and_read(model.string(), checksum) ? 1 : 0;
    }
    EXPECT_LT(opened, kMutations) << "no damage was noticed";
    RecordProperty("opened", opened);
    RecordProperty("checksum", std::to_string(checksum));
  }
  const fs::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST_F(MutationTest, GivenDamagedGgufThenNothingCrashes) {
  write_file(path() / "model.gguf", small_gguf().build());
  run(path() / "model.gguf", path() / "model.gguf", 20260101);
}

TEST_F(MutationTest, GivenDamagedGgufHeaderThenNothingCrashes) {
  // Without tensor data nearly every damage hits a length, a type or a count.
  GgufWriter writer = small_gguf();
  write_file(path() / "model.gguf", writer.without_tensors().tensor("x", {8}, 0, std::string(32, 'x')).build());
  run(path() / "model.gguf", path() / "model.gguf", 20260102);
}

TEST_F(MutationTest, GivenDamagedSafetensorsThenNothingCrashes) {
  write_small_directory(path());
  write_file(path() / "model.safetensors",
             safetensors("{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F32", "[2]", 0, 8) + "," +
                             entry("b", "BF16", "[1,4]", 8, 16) + "}",
                         std::string(16, '\x01')));
  run(path() / "model.safetensors", path(), 20260103);
}

TEST_F(MutationTest, GivenADamagedIndexThenNothingCrashes) {
  write_sharded_directory(path());
  run(path() / "model.safetensors.index.json", path(), 20260104);
}

TEST_F(MutationTest, GivenADamagedConfigThenNothingCrashes) {
  write_small_directory(path());
  run(path() / "config.json", path(), 20260105);
}

}  // namespace
}  // namespace quire::checkpoint
