#include "engine/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace quire::engine {
namespace {

// One byte a token: token id = byte.
class ByteTokenizer final : public text::Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, bool) const override {
    std::vector<TokenId> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<TokenId> encode(std::span<const text::TextPiece> pieces, bool special) const override {
    std::vector<TokenId> ids;
    for (const text::TextPiece& piece : pieces) {
      for (TokenId id : encode(std::string_view(piece.text), special)) ids.push_back(id);
    }
    return ids;
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string text;
    for (TokenId id : ids) text += token_bytes(id);
    return text;
  }
  std::string token_bytes(TokenId id) const override { return std::string(1, static_cast<char>(id)); }
  std::optional<std::string> id_to_token(TokenId id) const override { return token_bytes(id); }
  std::optional<TokenId> token_to_id(std::string_view token) const override { return token[0]; }
  bool is_special(TokenId) const override { return false; }
  int64_t vocab_size() const override { return 256; }
  std::string description() const override { return "bytes"; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::vector<TokenId> eos_ids() const override { return {}; }
};

struct Answer {
  std::string text;
  size_t num_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  std::variant<std::monostate, std::string, TokenId> stop_reason;
};

// Feeds `text` in events of the given sizes; the last one ends by length.
Answer feed(const std::string& text, const SamplingParams& params, const std::vector<size_t>& sizes) {
  const ByteTokenizer tokenizer;
  OutputProcessor processor(&tokenizer, params);
  Answer answer;
  size_t at = 0;
  for (size_t i = 0; answer.finish == FinishReason::kNone; ++i) {
    const size_t size = std::min(sizes[i % sizes.size()], text.size() - at);
    TokenEvent event;
    event.tokens = tokenizer.encode(std::string_view(text).substr(at, size), false);
    at += size;
    if (at == text.size()) event.finish = FinishReason::kLength;
    OutputDelta delta = processor.process(std::move(event));
    answer.text += delta.text;
    answer.num_tokens += delta.tokens.size();
    answer.finish = delta.finish;
    answer.stop_reason = delta.stop_reason;
  }
  return answer;
}

TEST(Output, AStopStringEndsTheAnswerBeforeItHoweverTheTokensCome) {
  const SamplingParams params{.stop = {"END", "\n\n"}};
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{1}, {2}, {3, 1}, {100}}) {
    const Answer answer = feed("one two EN three END four", params, sizes);
    EXPECT_EQ(answer.text, "one two EN three ");
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_EQ(std::get<std::string>(answer.stop_reason), "END");
    EXPECT_EQ(answer.num_tokens, std::string("one two EN three END").size());
  }
}

TEST(Output, AStopStringMayBeKeptInTheText) {
  const SamplingParams params{.stop = {"END"}, .include_stop_str_in_output = true};
  EXPECT_EQ(feed("abENDcd", params, {1}).text, "abEND");
}

TEST(Output, HeldTextIsGivenOutAtTheEnd) {
  const SamplingParams params{.stop = {"END"}};
  const Answer answer = feed("abcEN", params, {1});
  EXPECT_EQ(answer.text, "abcEN");
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST(Output, NothingThatMayBeginAStopStringLeavesEarly) {
  const ByteTokenizer tokenizer;
  OutputProcessor processor(&tokenizer, {.stop = {"aab"}});
  std::string out;
  for (char c : std::string("xaaab")) {
    TokenEvent event;
    event.tokens = {static_cast<TokenId>(c)};
    out += processor.process(std::move(event)).text;
    EXPECT_THAT((std::vector<std::string>{"", "x", "xa"}), testing::Contains(out));
  }
  EXPECT_EQ(out, "xa");
}

TEST(Output, StopStringsDoNotCountBeforeMinTokens) {
  const SamplingParams params{.min_tokens = 4, .stop = {"b"}};
  EXPECT_EQ(feed("abababab", params, {1}).text, "ababa");
}

TEST(Output, AStopStringThatEndsBehindMinTokensMayBeginBefore) {
  for (const size_t at_once : {1, 3, 8}) {
    EXPECT_EQ(feed("xyxyzxy", {.min_tokens = 4, .stop = {"xyz"}}, {at_once}).text, "xy") << at_once;
    EXPECT_EQ(feed("xyzxyzq", {.min_tokens = 3, .stop = {"xyz"}}, {at_once}).text, "xyz") << "none ends within them";
  }
}

TEST(Output, TheStopTokenItselfIsNotPartOfTheText) {
  const ByteTokenizer tokenizer;
  for (const bool include : {false, true}) {
    OutputProcessor processor(&tokenizer, {.include_stop_str_in_output = include});
    TokenEvent event;
    event.tokens = {'h', 'i', '!'};
    event.finish = FinishReason::kStop;
    event.stop_token = '!';
    const OutputDelta delta = processor.process(std::move(event));
    EXPECT_EQ(delta.text, include ? "hi!" : "hi");
    EXPECT_EQ(delta.tokens.size(), 3u);
    EXPECT_EQ(std::get<TokenId>(delta.stop_reason), '!');
  }
}

// Passes what has no '!' in it.
class NoMark final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return nullptr; }
  Status check(std::string_view text) const override {
    return text.find('!') == std::string_view::npos ? Status() : data_loss("a mark in {}", text);
  }
  bool whole_only() const override { return true; }
};

// The end token's text, where it is asked for, is no part of a structured output; that of another stop token is.
TEST(Output, TheEndTokensTextIsNoPartOfAStructuredOutput) {
  const ByteTokenizer tokenizer;
  for (const bool is_eos : {true, false}) {
    for (const bool skip : {true, false}) {
      OutputProcessor processor(&tokenizer, {.include_stop_str_in_output = true, .skip_special_tokens = skip}, false,
                                nullptr, std::make_shared<const NoMark>());
      TokenEvent event;
      event.tokens = {'h', 'i', '!'};
      event.finish = FinishReason::kStop;
      event.stop_token = '!';
      event.stopped_by_eos = is_eos;
      const OutputDelta delta = processor.process(std::move(event));
      EXPECT_EQ(delta.text, "hi!");
      EXPECT_EQ(delta.finish, is_eos ? FinishReason::kStop : FinishReason::kError);
    }
  }
}

TEST(Output, RandomCutsOfRandomTextGiveTheSameAnswer) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "ab\xC3\xA9"[random() % 4];
    const SamplingParams params{.stop = {"abba", "aab", "\xC3\xA9\xC3\xA9"}};
    const Answer whole = feed(text, params, {1000});
    const Answer cut = feed(text, params, {1 + random() % 3, 1 + random() % 5});
    EXPECT_EQ(cut.text, whole.text);
    EXPECT_EQ(cut.num_tokens, whole.num_tokens);
    EXPECT_EQ(cut.finish, whole.finish);
  }
}

// WordPiece puts a space before each word, and before special tokens too.
TEST(OutputProcessor, SpacesBetweenSpecialTokensAreLeftOutWhereTheRequestSaysSo) {
  const auto tokenizer = text::Tokenizer::from_json(R"({"model":{"type":"WordPiece","unk_token":"[UNK]",
      "continuing_subword_prefix":"##","max_input_chars_per_word":100,
      "vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"the":3,"cat":4,"##s":5}},
      "added_tokens":[{"id":1,"content":"[CLS]","special":true,"single_word":false,"lstrip":false,"rstrip":false,
      "normalized":false},{"id":2,"content":"[SEP]","special":true,"single_word":false,"lstrip":false,"rstrip":false,
      "normalized":false}],"decoder":{"type":"WordPiece","prefix":"##","cleanup":false}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto text = [&](bool skip, bool spaces) {
    SamplingParams params;
    params.skip_special_tokens = skip;
    params.spaces_between_special_tokens = spaces;
    OutputProcessor processor(tokenizer->get(), params);
    TokenEvent event;
    event.tokens = {1, 2, 3, 1, 2, 1, 4, 5, 2};
    event.finish = FinishReason::kLength;
    return processor.process(std::move(event)).text;
  };
  EXPECT_EQ(text(false, true), "[CLS] [SEP] the [CLS] [SEP] [CLS] cats [SEP]");
  EXPECT_EQ(text(false, false), "[CLS][SEP] the [CLS][SEP][CLS] cats [SEP]");
  EXPECT_EQ(text(true, false), text(true, true));
}

}  // namespace
}  // namespace quire::engine
