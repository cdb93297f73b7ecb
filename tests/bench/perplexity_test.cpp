#include "bench/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/file_writers.h"

namespace quire::bench {
namespace {

std::unique_ptr<text::Tokenizer> tokenizer_of(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/tokenizers/" + name);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  auto made = text::Tokenizer::from_json(json);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

class CutText : public ::testing::Test {
 protected:
  CutText() {
    std::string words;
    for (int i = 0; i < 300; ++i) words += "the quiet harbour " + std::to_string(i) + " ";
    path_ = checkpoint::write_file(folder_.path() / "text.txt", words);
    text_ = words;
  }
  checkpoint::TemporaryDirectory folder_;
  std::string path_;
  std::string text_;
};

TEST_F(CutText, WindowsFollowEachOtherAndTheRestIsLeftOut) {
  const auto tokenizer = tokenizer_of("gpt2_style_bpe.json");
  const std::vector<TokenId> ids = tokenizer->encode(text_, true);
  const auto cut = cut_text({.text_path = path_, .window = 64}, *tokenizer);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_EQ(cut->text_tokens, std::ssize(ids));
  ASSERT_EQ(cut->windows.size(), ids.size() / 64);
  for (size_t i = 0; i < cut->windows.size(); ++i) {
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(64 * i);
    EXPECT_EQ(cut->windows[i], std::vector<TokenId>(begin, begin + 64)) << i;
  }
  EXPECT_EQ(cut_text({.text_path = path_, .window = 64, .most_windows = 3}, *tokenizer)->windows.size(), 3u);
}

TEST_F(CutText, EachWindowBeginsAsTextsDo) {
  const auto tokenizer = tokenizer_of("llama3_style_bpe.json");
  const std::vector<TokenId> ids = tokenizer->encode(text_, true);
  const TokenId first = ids.front();
  ASSERT_EQ(tokenizer->encode("a", true).front(), first) << "this one has a token that texts begin with";
  const auto cut = cut_text({.text_path = path_, .window = 32}, *tokenizer);
  ASSERT_TRUE(cut.ok());
  for (const auto& window : cut->windows) EXPECT_EQ(window.front(), first);
  EXPECT_EQ(cut->windows[1][1], ids[33]) << "in the place of a token, not before it";
}

TEST_F(CutText, WhatCannotBeReadIsNamed) {
  const auto tokenizer = tokenizer_of("gpt2_style_bpe.json");
  const auto refused = [&](const PerplexityOptions& options) {
    return cut_text(options, *tokenizer).status().message();
  };
  EXPECT_THAT(refused({.text_path = "/no/such/file"}),
              testing::HasSubstr("--text: there is no file \"/no/such/file\""));
  EXPECT_THAT(refused({.text_path = path_, .window = 3}), testing::HasSubstr("--window 3"));
  EXPECT_THAT(refused({.text_path = path_, .window = 1 << 20}), testing::HasSubstr("a window of 1048576"));
  EXPECT_THAT(refused({.text_path = path_, .most_windows = -1}), testing::HasSubstr("--num-windows -1"));
}

}  // namespace
}  // namespace quire::bench
