// How tokens are drawn where nobody says: the makers' advice, the model's card, and what any other model gets.
#include "server/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

SamplingDefaults advised(std::string_view config) {
  auto read = read_sampling_defaults(config, "");
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? *read : SamplingDefaults{};
}

std::string chat(std::string_view config, std::string_view chat_template = "") {
  return to_string(chat_sampling(advised(config), chat_template).values);
}

constexpr const char* kSmolLm2 = R"({{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>' }})";

TEST(ChatSampling, OfAModelWhoseFilesAdviseIsThatAdvice) {
  EXPECT_EQ(chat(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": true})"),
            "temperature=0.6 top_p=0.95 top_k=20");
  EXPECT_EQ(chat(R"({"top_k": 64})", kSmolLm2), "top_k=64");
}

TEST(ChatSampling, OfAModelThatItsTemplateShowsIsWhatItsCardSays) {
  EXPECT_EQ(chat("", kSmolLm2), "temperature=0.2 top_p=0.9");
  EXPECT_EQ(chat(R"({"eos_token_id": [2]})", kSmolLm2), "temperature=0.2 top_p=0.9");
}

TEST(ChatSampling, OfAnyOtherModelIsCoolWithoutTheUnlikely) {
  EXPECT_EQ(chat(""), "temperature=0.7 min_p=0.05");
  EXPECT_EQ(chat("", "You are a helpful AI assistant named SmolLM, trained by Hugging Face.\n"),
            "temperature=0.7 min_p=0.05");
}

TEST(ChatSampling, KeepsWhatIsAdvisedBesideTheDistribution) {
  EXPECT_EQ(chat(R"({"repetition_penalty": 1.1, "max_new_tokens": 64})"),
            "temperature=0.7 min_p=0.05 repetition_penalty=1.1 max_new_tokens=64");
}

TEST(SamplingDefaults, OverridesGoOverTheConfiguration) {
  const auto read = read_sampling_defaults(R"({"temperature": 0.6, "top_p": 0.95})", R"({"temperature": 0.1})");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(to_string(*read), "temperature=0.1 top_p=0.95");
}

TEST(SamplingDefaults, OutOfRangeOrNoObjectAreRefusedByName) {
  EXPECT_THAT(read_sampling_defaults(R"({"temperature": 3})", "").status().message(), HasSubstr("temperature"));
  EXPECT_THAT(read_sampling_defaults("[1]", "").status().message(), HasSubstr("generation_config.json"));
  EXPECT_THAT(read_sampling_defaults("", "[1]").status().message(), HasSubstr("--override-generation-config"));
}

TEST(SamplingDefaults, AreJsonAsTheyWereWritten) {
  EXPECT_EQ(json::serialize(to_json(advised(R"({"temperature": 0.2, "top_k": 5, "max_new_tokens": 9})"))),
            json::serialize(json::parse(R"({"temperature": 0.2, "top_k": 5})")));
}

class ListedModelTest : public ServerTest {
 protected:
  json::value chat_sampling_of_the_first() {
    return json::parse(get(port(), "/v1/models").body).at("data").at(0).at("chat_sampling");
  }
};

TEST_F(ListedModelTest, SaysWhatSuitsConversationsWithIt) {
  start();
  EXPECT_EQ(chat_sampling_of_the_first(), json::parse(R"({"temperature": 0.7, "min_p": 0.05})"));
}

TEST_F(ListedModelTest, SaysWhatItsOperatorAdvises) {
  start({.override_generation_config = R"({"temperature": 0.3})"});
  EXPECT_EQ(chat_sampling_of_the_first(), json::parse(R"({"temperature": 0.3})"));
}

}  // namespace
}  // namespace quire::server
