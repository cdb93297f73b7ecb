// Texts that need not be tokenized to the end, and those that need not be tokenized at all.
#include "tests/text/tokenizer_support.h"

#include <random>

#include <gmock/gmock.h>

namespace quire::text {
namespace {

using namespace testing;  // NOLINT

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(EncodeLimits, AnEncodingEndsSoonAfterTheLastIdThatIsWanted) {
  const auto tokenizer = load(small_bpe());
  const std::vector<TextPiece> pieces = {{repeated(" word", 10'000), true}};
  const auto all = tokenizer->encode(pieces, false);
  const auto some = tokenizer->encode_within(pieces, false, {.max_ids = 10});
  ASSERT_TRUE(some.ok());
  EXPECT_GT(some->size(), 10u);
  EXPECT_LT(some->size(), 30u);
  EXPECT_TRUE(std::equal(some->begin(), some->end(), all.begin()));
  EXPECT_EQ(*tokenizer->encode_within(pieces, false, {.max_ids = all.size()}), all);
}

TEST(EncodeLimits, AnEncodingEndsWhenItIsToldTo) {
  const auto tokenizer = load(small_bpe());
  const std::vector<TextPiece> pieces = {{repeated(" word", 100'000), true}};
  int questions = 0;
  const auto ended = tokenizer->encode_within(pieces, false, {.is_over = [&] { return ++questions == 3; }});
  EXPECT_EQ(ended.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(questions, 3);
  EXPECT_TRUE(tokenizer->encode_within(pieces, false, {.is_over = [] { return false; }}).ok());
}

TEST(EncodeLimits, NoTokenIsShorterThanTheBoundSays) {
  boost::json::object composing = small_bpe();
  composing["normalizer"] = {{"type", "NFC"}};
  boost::json::object replacing = small_bpe();
  replacing["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "abc"}}}, {"content", "d"}};
  std::mt19937 random(1);
  for (const boost::json::object& json : {small_bpe(), composing, replacing}) {
    const auto tokenizer = load(json);
    const size_t most = tokenizer->most_bytes_per_token();
    ASSERT_GT(most, 0u);
    for (const char* part : {" ", "a", "abc", " the", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xE2\x84\xAA",
                             "<|endoftext|>", "\xF0\x9F\x98\x80", "\xFF"}) {
      for (const size_t count : {1u, 100u, 3000u}) {
        const std::string text = repeated(part, count + random() % 7);
        EXPECT_GE(tokenizer->encode(text, false).size() * most, text.size()) << part;
      }
    }
  }
}

TEST(EncodeLimits, ThereIsNoBoundWhereTextMayVanish) {
  const auto bound_with = [](const char* field, const boost::json::value& what) {
    boost::json::object json = small_bpe();
    json[field] = what;
    return load(json)->most_bytes_per_token();
  };
  EXPECT_EQ(bound_with("normalizer", {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}), 0u);
  EXPECT_EQ(bound_with("normalizer", {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", ""}}), 0u);
  EXPECT_EQ(bound_with("pre_tokenizer", {{"type", "WhitespaceSplit"}}), 0u);
  boost::json::array added = small_bpe()["added_tokens"].as_array();
  added.at(0).as_object()["lstrip"] = true;
  EXPECT_EQ(bound_with("added_tokens", added), 0u) << "it takes all the white space before it";
}

}  // namespace
}  // namespace quire::text
