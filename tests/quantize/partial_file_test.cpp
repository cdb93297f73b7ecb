#include "quantize/partial_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/file_writers.h"

namespace quire::quantize {
namespace {

constexpr uint8_t kBytes[] = {1, 2, 3, 4, 5, 6, 7, 8};

std::string written_at(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PartialFile, HasItsNameOnlyWhenItIsWhole) {
  const checkpoint::TemporaryDirectory folder;
  const auto path = folder.path() / "out";
  {
    auto file = PartialFile::open(path, 7, 8);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->write(0, std::span(kBytes).first(4)).ok());
    ASSERT_TRUE(file->finish_piece().ok());
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  auto again = PartialFile::open(path, 7, 8);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->pieces_done(), 1);
  ASSERT_TRUE(again->write(4, std::span(kBytes).last(4)).ok());
  uint8_t read[8] = {};
  ASSERT_TRUE(again->read(0, read).ok());
  EXPECT_TRUE(std::equal(std::begin(read), std::end(read), std::begin(kBytes)));
  ASSERT_TRUE(again->finish_piece().ok());
  ASSERT_TRUE(again->finish().ok());
  EXPECT_EQ(written_at(path), std::string(reinterpret_cast<const char*>(kBytes), 8));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing is left beside it";
}

TEST(PartialFile, OfAnotherPurposeOrSizeIsBegunAnew) {
  const checkpoint::TemporaryDirectory folder;
  const auto path = folder.path() / "out";
  for (const auto& [purpose, bytes] : {std::pair<uint64_t, int64_t>{1, 8}, {2, 8}, {2, 16}}) {
    auto file = PartialFile::open(path, purpose, bytes);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->pieces_done(), 0) << purpose << " " << bytes;
    ASSERT_TRUE(file->finish_piece().ok());
  }
  // A state without its file says nothing.
  std::filesystem::resize_file(path.string() + ".partial", 3);
  EXPECT_EQ(PartialFile::open(path, 2, 16)->pieces_done(), 0);
}

TEST(PartialFile, NeverTakesThePlaceOfAnother) {
  const checkpoint::TemporaryDirectory folder;
  const auto path = folder.path() / "out";
  std::ofstream(path) << "mine";
  const auto file = PartialFile::open(path, 1, 8);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("exists already"), std::string::npos) << file.status().message();
  EXPECT_EQ(written_at(path), "mine");
  EXPECT_FALSE(PartialFile::open(folder.path() / "no" / "such", 1, 8).ok());
}

TEST(PartialFile, HasOneWriter) {
  const checkpoint::TemporaryDirectory folder;
  const auto path = folder.path() / "out";
  auto first = PartialFile::open(path, 1, 8);
  ASSERT_TRUE(first.ok());
  const auto second = PartialFile::open(path, 2, 16);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("being written by another process"), std::string::npos);
  ASSERT_TRUE(first->write(0, kBytes).ok());
  ASSERT_TRUE(first->finish().ok());
  EXPECT_EQ(written_at(path).size(), 8u);
}

}  // namespace
}  // namespace quire::quantize
