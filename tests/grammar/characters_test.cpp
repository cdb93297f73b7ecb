// Tokens that cut characters, and work that nothing bounds.
#include <gtest/gtest.h>

#include <string>

#include "base/leavable_thread.h"
#include "grammar/answer_reading.h"
#include "grammar/open_character.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using testing::Constraint;
using testing::mask_of;

// With marks, which are special tokens.
const testing::Text& qwen() {
  static const testing::Text text = [] {
    testing::Text made;
    made.tokenizer = text::Tokenizer::from_json(testing::read_file("tokenizers/qwen_style_bpe_nfc.json")).value();
    made.end = made.tokenizer->token_to_id("<|im_end|>").value();
    made.vocab_size = made.tokenizer->vocab_size();
    made.vocabulary =
        std::make_shared<const GrammarVocabulary>(*made.tokenizer, made.vocab_size, std::vector{made.end}, true);
    return made;
  }();
  return text;
}

TokenId byte_token(char byte) {
  for (TokenId id = 0; id < qwen().vocab_size; ++id) {
    if (!qwen().tokenizer->is_special(id) && qwen().tokenizer->token_bytes(id) == std::string(1, byte)) return id;
  }
  ADD_FAILURE() << "no token of byte " << int{byte};
  return 0;
}

Constraint constraint_of_reading(const AnswerReading& reading, const std::optional<StructuredOutput>& said = {}) {
  const auto output = constraint_of(reading, said, GrammarLimits{});
  EXPECT_TRUE(output.ok() && output->has_value()) << output.status().message();
  const auto done = compile_constraint(**output, GrammarLimits{}, qwen().vocabulary);
  EXPECT_TRUE(done.ok()) << done.status().message();
  return done->constraint;
}

TEST(Characters, AreFollowedThroughTheirBytes) {
  OpenCharacter open;
  EXPECT_TRUE(open.push("a\xF0\x9F"));
  EXPECT_TRUE(open.is_open());
  OpenCharacter wrong = open;
  EXPECT_FALSE(wrong.push("\x41"));
  EXPECT_FALSE(wrong.is_open());
  wrong = open;
  EXPECT_FALSE(wrong.push("\xE2\x82")) << "another one begins within it";
  EXPECT_TRUE(wrong.is_open());
  EXPECT_TRUE(open.push("\x98\x80"));
  EXPECT_FALSE(open.is_open());
  OpenCharacter narrow;
  EXPECT_TRUE(narrow.push("\xED"));
  EXPECT_FALSE(OpenCharacter(narrow).push("\xA0")) << "half of a pair";
  EXPECT_TRUE(narrow.push("\x9F"));
}

TEST(Characters, OfTextAroundCallsAreGoneOnWith) {
  AnswerReading reading;
  reading.tools = ToolFormat::kHermes;
  reading.choice = ToolChoice::kAuto;
  reading.functions = {{"f", boost::json::object{{"type", "object"}}, false}};
  const auto state = constraint_of_reading(reading)->start();
  for (const char byte : std::string("\xE6\x97")) {
    ASSERT_TRUE(state->accept(byte_token(byte)));
    const auto mask = mask_of(*state, qwen());
    int allowed = 0;
    for (TokenId id = 0; id < qwen().vocab_size; ++id) {
      if (!testing::is_set(mask, id)) continue;
      ++allowed;
      ASSERT_TRUE(state->clone()->accept(id)) << qwen().tokenizer->token_bytes(id);
    }
    EXPECT_GT(allowed, 60);
  }
  ASSERT_TRUE(state->accept(byte_token('\xA5')));
}

TEST(Characters, ThatABudgetOfReasoningEndsWithinAreCompleted) {
  AnswerReading reading;
  reading.reasoning = ReasoningFormat::kThink;
  reading.begun = true;
  for (const int32_t budget : {1, 2, 3, 4}) {
    reading.reasoning_budget = budget;
    const Constraint constraint =
        constraint_of_reading(reading, testing::schema_output(R"({"type":"integer","minimum":1,"maximum":3})"));
    const auto state = constraint->start();
    for (const char byte : std::string("\xF0\x9F\x98\x80")) {
      ASSERT_TRUE(testing::is_set(mask_of(*state, qwen()), byte_token(byte))) << budget;
      ASSERT_TRUE(state->accept(byte_token(byte))) << budget;
    }
    EXPECT_FALSE(state->clone()->accept(byte_token('\x98'))) << "no further one";
    for (const TokenId id : qwen().tokenizer->encode("</think>\n2", false)) ASSERT_TRUE(state->accept(id)) << budget;
    EXPECT_TRUE(testing::is_set(mask_of(*state, qwen()), qwen().end));
  }
}

TEST(Characters, MasksThatAreKeptAreThoseOfTheBudgetToo) {
  AnswerReading reading;
  reading.reasoning = ReasoningFormat::kThink;
  reading.begun = true;
  reading.reasoning_budget = 5;
  const auto output = constraint_of(reading, std::nullopt, GrammarLimits{});
  ASSERT_TRUE(output.ok() && output->has_value());
  GrammarLimits keeps;
  keeps.kept_mask_seconds = 0;
  GrammarLimits keeps_none;
  keeps_none.kept_mask_seconds = 1e9;
  const auto kept = compile_constraint(**output, keeps, qwen().vocabulary);
  const auto fresh = compile_constraint(**output, keeps_none, qwen().vocabulary);
  ASSERT_TRUE(kept.ok() && fresh.ok());
  const auto tokens = qwen().tokenizer->encode("one two three four five</think>\n\nThe answer is\n\n\n\nthis.", false);
  for (int round = 0; round < 3; ++round) {
    const auto a = kept->constraint->start();
    const auto b = fresh->constraint->start();
    std::vector<uint32_t> of_a((static_cast<size_t>(qwen().vocab_size) + 31) / 32);
    std::vector<uint32_t> of_b = of_a;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool some_a = a->allowed(of_a);
      const bool some_b = b->allowed(of_b);
      ASSERT_EQ(some_a, some_b) << round << " " << i;
      if (!some_a) std::ranges::copy(of_b, of_a.begin());
      ASSERT_EQ(of_a, of_b) << round << " " << i << " " << qwen().tokenizer->token_bytes(tokens[i]);
      const bool accepted = a->accept(tokens[i]);
      ASSERT_EQ(accepted, b->accept(tokens[i])) << round << " " << i;
      if (!accepted) break;
    }
  }
}

// Case G4, where nothing shows how long it takes until the answer is far enough.
TEST(Characters, WhatTakesTooLongInOneStepKeepsNobodyWaiting) {
  const std::string begin = "the quick brown fox jumps over it and 1234567890 %& the quick brown fox jumps over it";
  const StructuredOutput output{.kind = StructuredOutput::Kind::kRegex, .text = begin + "(?:(?:[^z]|){2,}|b){0,10}1a"};
  const auto done = compile_constraint(output, GrammarLimits{}, qwen().vocabulary);
  if (!done.ok()) GTEST_SKIP() << "it is refused before: " << done.status().message();
  std::vector<uint32_t> mask((static_cast<size_t>(qwen().vocab_size) + 31) / 32);
  // Where the threads are kept waiting, what all steps took together may end the answer before one of them is left to
  // itself: that is of this answer alone, and another may be begun.
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    const auto state = done->constraint->start();
    const int num_left = LeavableThread::num_left();
    for (const TokenId id : qwen().tokenizer->encode(begin + " and on it goes", false)) {
      static_cast<void>(state->allowed(mask));
      if (!state->trouble().ok() || !state->accept(id)) break;
    }
    const bool was_left = LeavableThread::num_left() > num_left;
    if (state->trouble().ok()) GTEST_SKIP() << "it was quick";
    EXPECT_FALSE(state->clone()->trouble().ok());
    if (!was_left) continue;
    EXPECT_FALSE(state->accept(byte_token('x')));
    const auto again = done->constraint->start();
    EXPECT_FALSE(again->trouble().ok()) << "nor is it begun again";
    return;
  }
  FAIL() << "no step was left to itself in " << kTries << " answers";
}

}  // namespace
}  // namespace quire::grammar
