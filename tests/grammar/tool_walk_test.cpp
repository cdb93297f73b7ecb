// Calls that a model without a mind would make: random tokens of those that a format's grammar allows, read again by
// the format's parser.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "grammar/answer_reading.h"
#include "grammar/compiler.h"
#include "tests/grammar/grammar_support.h"
#include "text/tokenizer.h"

namespace quire::grammar {
namespace {

namespace json = boost::json;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

class ToolWalk : public ::testing::TestWithParam<ToolFormat> {
 protected:
  static void SetUpTestSuite() {
    auto tokenizer = text::Tokenizer::from_json(read_file(QUIRE_TEST_DATA "/tokenizers/qwen_style_bpe_nfc.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(*tokenizer);
    end_ = *tokenizer_->token_to_id("<|endoftext|>");
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }

  // Until the end token; empty: it took too long.
  static std::string walk(const TokenConstraint& constraint, std::mt19937& random) {
    const auto state = constraint.start();
    const auto vocab = static_cast<size_t>(tokenizer_->vocab_size());
    std::vector<uint32_t> mask((vocab + 31) / 32);
    std::string out;
    for (int step = 0; step < 2000; ++step) {
      std::vector<TokenId> allowed;
      std::vector<TokenId> closing;  // what brings an end nearer
      if (!state->allowed(mask)) std::fill(mask.begin(), mask.end(), ~0U);
      for (size_t id = 0; id < vocab; ++id) {
        if ((mask[id / 32] >> (id % 32) & 1) == 0) continue;
        allowed.push_back(static_cast<TokenId>(id));
        const std::string bytes = tokenizer_->token_bytes(static_cast<TokenId>(id));
        if (static_cast<TokenId>(id) == end_ || bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "</" ||
            bytes == ")" || bytes == "<") {
          closing.push_back(static_cast<TokenId>(id));
        }
      }
      if (allowed.empty()) return "no token is left behind: " + out;
      const std::vector<TokenId>& from = !closing.empty() && random() % 3 != 0 ? closing : allowed;
      const TokenId id = from[random() % from.size()];
      if (!state->accept(id)) continue;  // a mask may allow a token too many
      if (id == end_) return out;
      out += tokenizer_->token_bytes(id);
    }
    return {};
  }

  static inline std::unique_ptr<text::Tokenizer> tokenizer_;
  static inline TokenId end_ = 0;
};

// Of get_weather, or none of get_time.
void expect_arguments(const std::string& text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  ASSERT_FALSE(error) << text;
  ASSERT_TRUE(value.is_object()) << text;
  const json::object& object = value.get_object();
  if (object.empty()) return;
  ASSERT_TRUE(object.contains("city") && object.at("city").is_string()) << text;
  ASSERT_TRUE(object.contains("unit")) << text;
  EXPECT_TRUE(object.at("unit") == "c" || object.at("unit") == "f") << text;
  EXPECT_TRUE(!object.contains("days") || object.at("days").is_number()) << text;
}

TEST_P(ToolWalk, WhatTheGrammarAllowsTheParserReads) {
  AnswerReading reading;
  reading.tools = GetParam();
  reading.choice = ToolChoice::kRequired;
  const json::value schema = json::parse(R"({"type":"object","properties":{
      "city":{"type":"string","pattern":"^[A-Za-z <>]{1,12}$"},"unit":{"enum":["c","f"]},"days":{"type":"integer"}},
      "required":["city","unit"]})");
  reading.functions = {{"get_weather", schema, true},
                       {"get_time", json::parse(R"({"type":"object","properties":{},"required":[]})"), true}};
  for (const bool mistral_args : {true, false}) {
    reading.mistral_args = mistral_args;
    const auto output = constraint_of(reading, std::nullopt, GrammarLimits{});
    ASSERT_TRUE(output.ok()) << output.status().message();
    ASSERT_TRUE(output->has_value());
    Compiler compiler(*tokenizer_, tokenizer_->vocab_size(), {end_}, CompilerOptions{});
    const auto constraint = compiler.compile(**output);
    ASSERT_TRUE(constraint.ok()) << constraint.status().message() << " " << (*output)->text;
    std::mt19937 random(7);
    int finished = 0;
    for (int i = 0; i < 20; ++i) {
      const std::string text = walk(**constraint, random);
      if (text.empty()) continue;
      SCOPED_TRACE(text);
      ++finished;
      AnswerPiece piece;
      const auto parser = make_answer_parser(reading);
      for (const char c : text) parser->push(std::string_view(&c, 1), piece);
      parser->finish(piece);
      EXPECT_EQ(piece.content.find_first_not_of(" \n"), std::string::npos) << piece.content;
      ASSERT_FALSE(piece.calls.empty());
      std::vector<std::string> arguments;
      for (const ToolCallPiece& call : piece.calls) {
        arguments.resize(static_cast<size_t>(call.index) + 1);
        arguments.back() += call.arguments;
        EXPECT_TRUE(call.name.empty() || call.name == "get_weather" || call.name == "get_time") << call.name;
      }
      for (const std::string& one : arguments) expect_arguments(one);
    }
    EXPECT_GE(finished, 10);
    if (GetParam() != ToolFormat::kMistral) break;
  }
}

// Schemas that say nothing of a type, or of several, and parameters none of which is required.
TEST_P(ToolWalk, ArgumentsAreAnObjectAndOptionalOnesMayBeThereOrNot) {
  AnswerReading reading;
  reading.tools = GetParam();
  reading.choice = ToolChoice::kRequired;
  reading.parallel = false;
  const auto of = [&reading](const char* schema, int walks) {
    reading.functions = {{"look", json::parse(schema), true}};
    const auto output = constraint_of(reading, std::nullopt, GrammarLimits{});
    EXPECT_TRUE(output.ok()) << output.status().message();
    const auto constraint =
        Compiler(*tokenizer_, tokenizer_->vocab_size(), {end_}, CompilerOptions{}).compile(**output);
    EXPECT_TRUE(constraint.ok()) << constraint.status().message();
    std::mt19937 random(11);
    std::vector<json::object> all;
    for (int i = 0; i < walks; ++i) {
      const std::string text = walk(**constraint, random);
      if (text.empty()) continue;
      AnswerPiece piece;
      const auto parser = make_answer_parser(reading);
      parser->push(text, piece);
      parser->finish(piece);
      std::string arguments;
      for (const ToolCallPiece& call : piece.calls) arguments += call.arguments;
      boost::system::error_code error;
      const json::value value = json::parse(arguments, error);
      EXPECT_TRUE(!error && value.is_object()) << text << " " << arguments;
      if (!error && value.is_object()) all.push_back(value.get_object());
    }
    EXPECT_FALSE(all.empty());
    return all;
  };
  for (const char* schema : {"true", R"({"properties":{"a":{"enum":["x"]}},"required":["a"]})",
                             R"({"type":["null","object","string"],"additionalProperties":{"enum":[1]}})"}) {
    SCOPED_TRACE(schema);
    of(schema, 6);
  }
  // None and each alone; both are rare in walks to the end.
  bool seen[2][2] = {};
  for (const json::object& one :
       of(R"({"type":"object","properties":{"a":{"enum":["x"]},"b":{"enum":[1]}},"additionalProperties":false})", 40)) {
    EXPECT_EQ(one.size(), one.count("a") + one.count("b")) << json::serialize(one);
    seen[one.count("a")][one.count("b")] = true;
  }
  EXPECT_TRUE(seen[0][0] && seen[0][1] && seen[1][0]) << seen[0][0] << seen[0][1] << seen[1][0];
}

// Values as JSON has them: the parser takes both spellings.
TEST(PythonicCalls, OptionalParametersComeInTheirOrder) {
  AnswerReading reading;
  reading.tools = ToolFormat::kPythonic;
  reading.choice = ToolChoice::kRequired;
  reading.functions = {{"look", json::parse(R"({"type":"object","properties":{"a":{"enum":["x"]},"b":{"enum":[1]},
      "c":{"enum":[true]}},"additionalProperties":false})"),
                        true}};
  const auto output = constraint_of(reading, std::nullopt, GrammarLimits{});
  ASSERT_TRUE(output.ok()) << output.status().message();
  const auto constraint = testing::compiled(**output);
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  for (const char* text : {"[look()]", "[look(a=\"x\")]", "[look(b=1)]", "[look(c=true)]", "[look(a=\"x\", b=1)]",
                           "[look(a=\"x\", c=true)]", "[look(b=1, c=true)]", "[look(a=\"x\", b=1, c=true)]"}) {
    EXPECT_TRUE(testing::accepts(**constraint, text)) << text;
  }
  for (const char* text :
       {"[look(, b=1)]", "[look(a=\"x\",)]", "[look(b=1, a=\"x\")]", "[look(a=\"x\", a=\"x\")]", "[look(d=1)]", "[]"}) {
    EXPECT_FALSE(testing::accepts(**constraint, text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ToolWalk,
                         ::testing::Values(ToolFormat::kHermes, ToolFormat::kLlama3Json, ToolFormat::kMistral,
                                           ToolFormat::kQwen3Coder, ToolFormat::kPythonic, ToolFormat::kDeepseekV3,
                                           ToolFormat::kGlm, ToolFormat::kGranite, ToolFormat::kKimiK2,
                                           ToolFormat::kMinimaxM2, ToolFormat::kLlama4Pythonic,
                                           ToolFormat::kDeepseekV31, ToolFormat::kInternlm, ToolFormat::kJamba,
                                           ToolFormat::kPhi4Mini, ToolFormat::kStep3, ToolFormat::kGptOss,
                                           ToolFormat::kGemma4, ToolFormat::kNemotron, ToolFormat::kSeedOss,
                                           ToolFormat::kLfm2, ToolFormat::kOlmo3),
                         [](const auto& param) {
                           std::string name(to_string(param.param));
                           std::erase_if(name, [](char c) { return c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace quire::grammar
