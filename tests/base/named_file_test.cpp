// What a person may name that is no file: told by its name, before anything is read of it or waits for it.
#include "base/named_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;

class NamedFile : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ / "file") << "text";
    ASSERT_EQ(::mkfifo(pipe().c_str(), 0600), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string pipe() const { return folder_ / "pipe"; }
  std::string said(const std::string& path, FileUse use) const { return check_file(path, use).message(); }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("named_file_" + std::to_string(::getpid()));
};

TEST_F(NamedFile, AFileIsFine) {
  for (const FileUse use : {FileUse::kReadOnce, FileUse::kReadAgain, FileUse::kWrite}) {
    EXPECT_EQ(said(folder_ / "file", use), "");
  }
  EXPECT_EQ(said(folder_ / "new", FileUse::kWrite), "");
  EXPECT_EQ(said("new", FileUse::kWrite), "") << "in the directory at hand";
}

TEST_F(NamedFile, WhatIsNotThereIsToldByItsName) {
  for (const FileUse use : {FileUse::kReadOnce, FileUse::kReadAgain}) {
    const Status status = check_file(folder_ / "none", use);
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("there is no file"));
    EXPECT_THAT(status.message(), HasSubstr("none"));
  }
  EXPECT_THAT(said(folder_ / "none" / "new", FileUse::kWrite), HasSubstr("there is no directory"));
  EXPECT_THAT(said(folder_ / "file" / "new", FileUse::kWrite), HasSubstr("Not a directory"));
}

TEST_F(NamedFile, ADirectoryIsNone) {
  for (const FileUse use : {FileUse::kReadOnce, FileUse::kReadAgain, FileUse::kWrite}) {
    EXPECT_THAT(said(folder_, use), HasSubstr("is a directory, expected a file"));
  }
}

TEST_F(NamedFile, APipeIsForWhatIsReadOnce) {
  EXPECT_EQ(said(pipe(), FileUse::kReadOnce), "");
  EXPECT_THAT(said(pipe(), FileUse::kReadAgain), HasSubstr("read more than once"));
  EXPECT_THAT(said(pipe(), FileUse::kWrite), HasSubstr("no ordinary file"));
  EXPECT_THAT(said("/dev/null", FileUse::kWrite), HasSubstr("no ordinary file"));
}

TEST_F(NamedFile, WhatMayNotBeReadIsToldSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "everything may be read";
  std::filesystem::permissions(folder_ / "file", std::filesystem::perms::none);
  EXPECT_THAT(said(folder_ / "file", FileUse::kReadOnce), HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace quire
