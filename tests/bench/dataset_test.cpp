#include "bench/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "bench/sharegpt.h"

namespace quire::bench {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::SizeIs;

std::unique_ptr<text::Tokenizer> tokenizer() {
  std::ifstream file(QUIRE_TEST_DATA "/e2e/tokenizers/llama3_style_bpe.tokenizer.json", std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto made = text::Tokenizer::from_json(json);
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

std::vector<int64_t> lengths(const std::vector<Sample>& samples) {
  std::vector<int64_t> all;
  for (const Sample& sample : samples) all.push_back(sample.prompt_len());
  return all;
}

TEST(RandomDataset, PromptsHaveTheLengthAskedFor) {
  const PromptMaker maker = PromptMaker::of_ids(100, nullptr);
  DatasetOptions options{.num_prompts = 5, .random_input_len = 7, .random_output_len = 3, .random_prefix_len = 2};
  const auto samples = make_samples(options, maker, 1);
  ASSERT_TRUE(samples.ok());
  EXPECT_THAT(lengths(*samples), AllOf(SizeIs(5), Each(9)));
  for (const Sample& sample : *samples) {
    EXPECT_EQ(sample.output_len, 3);
    EXPECT_EQ(sample.prompt_ids[0], samples->front().prompt_ids[0]);  // of the prefix
    EXPECT_THAT(sample.prompt_ids, Each(AllOf(Ge(0), Le(99))));
  }
  EXPECT_NE((*samples)[0].prompt_ids, (*samples)[1].prompt_ids);
}

TEST(RandomDataset, LengthsVaryWithinTheirRange) {
  const PromptMaker maker = PromptMaker::of_ids(100, nullptr);
  const DatasetOptions options{.num_prompts = 200, .random_input_len = 100, .random_range_ratio = 0.5};
  const auto samples = make_samples(options, maker, 2);
  ASSERT_TRUE(samples.ok());
  const std::vector<int64_t> all = lengths(*samples);
  EXPECT_THAT(all, Each(AllOf(Ge(50), Le(150))));
  EXPECT_GT(std::set<int64_t>(all.begin(), all.end()).size(), 50u);
}

TEST(RandomDataset, TheSameSeedGivesTheSamePrompts) {
  const PromptMaker maker = PromptMaker::of_ids(1000, nullptr);
  const DatasetOptions options{.num_prompts = 3, .random_input_len = 10};
  const auto ids = [&](uint64_t seed) { return (*make_samples(options, maker, seed)).back().prompt_ids; };
  EXPECT_EQ(ids(3), ids(3));
  EXPECT_NE(ids(3), ids(4));
}

TEST(RandomDataset, TextsEncodeToTheLengthAskedFor) {
  const auto words = tokenizer();
  const auto maker = PromptMaker::of_text(*words);
  ASSERT_TRUE(maker.ok()) << maker.status().message();
  for (const int64_t length : {1, 2, 17, 500}) {
    const auto samples = make_samples({.num_prompts = 4, .random_input_len = length}, *maker, 5);
    ASSERT_TRUE(samples.ok());
    for (const Sample& sample : *samples) {
      EXPECT_EQ(sample.prompt_len(), length);
      EXPECT_EQ(words->encode(sample.prompt, /*add_special_tokens=*/false), sample.prompt_ids);
    }
  }
}

TEST(PrefixRepetition, EveryPrefixComesAsOftenAndSuffixesDiffer) {
  const PromptMaker maker = PromptMaker::of_ids(5000, nullptr);
  DatasetOptions options{.name = "prefix_repetition", .num_prompts = 12};
  options.prefix_repetition_prefix_len = 8;
  options.prefix_repetition_suffix_len = 4;
  options.prefix_repetition_num_prefixes = 3;
  const auto samples = make_samples(options, maker, 6);
  ASSERT_TRUE(samples.ok());
  std::multiset<std::vector<TokenId>> prefixes;
  std::set<std::vector<TokenId>> prompts;
  for (const Sample& sample : *samples) {
    EXPECT_EQ(sample.prompt_len(), 12);
    prefixes.emplace(sample.prompt_ids.begin(), sample.prompt_ids.begin() + 8);
    prompts.insert(sample.prompt_ids);
  }
  EXPECT_EQ(prompts.size(), 12u);
  for (const auto& prefix : prefixes) EXPECT_EQ(prefixes.count(prefix), 4u);
}

TEST(Dataset, WhatMakesNoSenseIsRefusedByTheFlagsName) {
  const auto message = [](const DatasetOptions& options) { return validate(options).message(); };
  EXPECT_THAT(message({.name = "sonnet"}), HasSubstr("--dataset-name"));
  EXPECT_THAT(message({.num_prompts = 0}), HasSubstr("--num-prompts"));
  EXPECT_THAT(message({.random_input_len = 0}), HasSubstr("--random-input-len"));
  EXPECT_THAT(message({.random_range_ratio = 1}), HasSubstr("--random-range-ratio"));
  EXPECT_THAT(message({.name = "sharegpt"}), HasSubstr("--dataset-path"));
}

std::vector<std::string> elements_of(const std::string& text) {
  std::istringstream in(text);
  const auto elements = find_list_elements(in);
  std::vector<std::string> found;
  if (!elements.ok()) return {elements.status().message()};
  for (const JsonElement& element : *elements) {
    found.push_back(text.substr(static_cast<size_t>(element.offset), static_cast<size_t>(element.bytes)));
  }
  return found;
}

TEST(ShareGpt, TheElementsOfAListAreFoundWhereverTheFileEnds) {
  const std::string one = R"({"a": "]}\"\\", "b": [1, {"c": 2}]})";
  const std::string two = R"({"d": "[{"})";
  const std::string whole = " [" + one + ",\n " + two + "]\n trailing [{}]";
  EXPECT_EQ(elements_of(whole), (std::vector<std::string>{one, two}));
  for (size_t end = whole.find('[') + 1; end < whole.size(); ++end) {
    std::vector<std::string> expected;
    if (end >= 2 + one.size()) expected.push_back(one);
    if (end >= whole.find(two) + two.size()) expected.push_back(two);
    EXPECT_EQ(elements_of(whole.substr(0, end)), expected) << end;
  }
}

TEST(ShareGpt, AFileThatIsNoListIsRefused) {
  for (const char* text : {"", "  ", "{\"a\": []}", "hello [{}]"}) {
    EXPECT_THAT(elements_of(text), Each(HasSubstr("expected a JSON list"))) << text;
  }
}

TEST(ShareGpt, AConversationNeedsTwoTurnsOfText) {
  const auto turn =
      first_turn(R"({"conversations": [{"from": "human", "value": "q"}, {"value": "a"}, {"value": "b"}]})");
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->question, "q");
  EXPECT_EQ(turn->answer, "a");
  for (const char* odd : {"{", "[]", "{}", R"({"conversations": []})", R"({"conversations": [{"value": "q"}]})",
                          R"({"conversations": [{"value": "q"}, {"value": 5}]})", R"({"conversations": [1, 2]})"}) {
    EXPECT_FALSE(first_turn(odd).has_value()) << odd;
  }
}

TEST(ShareGpt, LengthsAreFilteredAsVllmDoes) {
  EXPECT_TRUE(has_usable_lengths(4, 4, false));
  EXPECT_FALSE(has_usable_lengths(3, 4, false));
  EXPECT_FALSE(has_usable_lengths(4, 3, false));
  EXPECT_TRUE(has_usable_lengths(4, 1, true));
  EXPECT_TRUE(has_usable_lengths(1024, 1024, false));
  EXPECT_FALSE(has_usable_lengths(1025, 4, false));
  EXPECT_FALSE(has_usable_lengths(1024, 1025, false));
}

class ShareGptFile : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(path_);
    file
        << R"([{"id": "1", "conversations": [{"value": "how are you today my friend"}, {"value": "very well and you my friend"}]},)"
        << R"({"id": "2", "conversations": [{"value": "x"}, {"value": "too short a question"}]},)"
        << R"({"id": "3", "conversations": [{"value": "only one turn in this conversation"}]},)"
        << R"({"id": "4", "conversations": [{"value": "the last one is cut short in the mid)";
  }
  void TearDown() override { std::remove(path_.c_str()); }
  // Tests run beside each other.
  const std::string path_ =
      testing::TempDir() + "quire-sharegpt-" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

TEST_F(ShareGptFile, UsableConversationsAreRepeatedUntilThereAreEnough) {
  const auto words = tokenizer();
  const auto maker = PromptMaker::of_text(*words);
  ASSERT_TRUE(maker.ok());
  const auto samples = make_samples({.name = "sharegpt", .path = path_, .num_prompts = 3}, *maker, 1);
  ASSERT_TRUE(samples.ok()) << samples.status().message();
  ASSERT_THAT(*samples, SizeIs(3));
  for (const Sample& sample : *samples) {
    EXPECT_EQ(sample.prompt, "how are you today my friend");
    EXPECT_EQ(sample.output_len,
              static_cast<int64_t>(words->encode("very well and you my friend", /*add_special_tokens=*/false).size()));
  }
  const auto forced =
      make_samples({.name = "sharegpt", .path = path_, .num_prompts = 1, .sharegpt_output_len = 64}, *maker, 1);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->front().output_len, 64);
}

TEST_F(ShareGptFile, WhatCannotBeReadIsAnError) {
  const auto words = tokenizer();
  const auto maker = PromptMaker::of_text(*words);
  ASSERT_TRUE(maker.ok());
  EXPECT_THAT(make_samples({.name = "sharegpt", .path = "/no/such/file"}, *maker, 1).status().message(),
              HasSubstr("/no/such/file"));
  const PromptMaker without = PromptMaker::of_ids(10, nullptr);
  EXPECT_THAT(make_samples({.name = "sharegpt", .path = path_}, without, 1).status().message(),
              HasSubstr("no tokenizer"));
}

}  // namespace
}  // namespace quire::bench
