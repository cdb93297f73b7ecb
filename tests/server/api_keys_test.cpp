// Keys from a file, and the quotas that come with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_keys.h"
#include "server/tenants.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kKeyedPath = "/v1/completions";

std::string bearer(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

TEST(ApiKeys, AFileHasALineAKey) {
  const auto keys = parse_api_keys(
      "# who may ask\n\nalice  sk-1\n  \t\nbob\tsk-2 weight=2.5   tokens-per-minute=600 \r\n   # indented\ncarol "
      "#sk=3");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys->size(), 3u);
  EXPECT_EQ((*keys)[0].name, "alice");
  EXPECT_EQ((*keys)[0].key, "sk-1");
  EXPECT_EQ((*keys)[0].weight, 1);
  EXPECT_EQ((*keys)[0].tokens_per_minute, 0);
  EXPECT_EQ((*keys)[1].weight, 2.5);
  EXPECT_EQ((*keys)[1].tokens_per_minute, 600);
  EXPECT_EQ((*keys)[2].key, "#sk=3");
}

TEST(ApiKeys, ABadLineIsNamedByItsNumberAndShowsNoKey) {
  for (const char* line : {"secret-alone", "bob secret wait=1", "bob secret weight=", "bob secret weight=x",
                           "bob secret tokens-per-minute=0", "bob secret tokens-per-minute=1.5",
                           "bob secret tokens-per-minute=99999999999999999999", "bob secret secret"}) {
    const auto keys = parse_api_keys(std::string("# first\nalice sk-1\n") + line + "\n");
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_THAT(keys.status().message(), HasSubstr("line 3: "));
    EXPECT_THAT(keys.status().message(), Not(HasSubstr("secret")));
  }
}

TEST(ApiKeys, NamesAndKeysAreUniqueAcrossFlagsAndFile) {
  const std::vector<ApiKey> good = {{.name = "bob", .key = "b"}};
  const auto all = all_api_keys({"a"}, {2}, good);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)[0].name, "key-1");
  EXPECT_EQ((*all)[0].weight, 2);
  EXPECT_EQ((*all)[1].name, "bob");
  for (const ApiKey& bad :
       {ApiKey{.name = "key-1", .key = "c"}, ApiKey{.name = "c", .key = "a"}, ApiKey{.name = "c", .key = ""},
        ApiKey{.name = "a b", .key = "c"}, ApiKey{.name = "\"", .key = "c"}, ApiKey{.name = "", .key = "c"},
        ApiKey{.name = std::string(65, 'c'), .key = "c"}, ApiKey{.name = "c", .key = "c", .weight = 0},
        ApiKey{.name = "c", .key = "c", .tokens_per_minute = -1}}) {
    EXPECT_FALSE(all_api_keys({"a"}, {}, {bad}).ok()) << bad.name;
  }
}

TEST(TokenQuota, FillsAtASteadyPaceAndTellsWhenToComeBack) {
  const TokenQuota::Clock::time_point start;
  TokenQuota quota(600, start);  // 10 a second
  EXPECT_EQ(quota.admit(600, start), std::nullopt);
  EXPECT_EQ(quota.admit(100, start), 10);
  EXPECT_EQ(quota.admit(100, start + seconds(9)), 1);
  EXPECT_EQ(quota.admit(100, start + seconds(10)), std::nullopt);
  EXPECT_EQ(quota.admit(1, start + seconds(10)), 1);
  EXPECT_EQ(quota.admit(600, start + seconds(10'000)), std::nullopt) << "no more than a minute's worth is kept";
  EXPECT_EQ(quota.admit(600, start + seconds(10'000)), 60);
}

TEST(TokenQuota, WhatWasGeneratedIsPaidByWhoComesNext) {
  const TokenQuota::Clock::time_point start;
  TokenQuota quota(600, start);
  EXPECT_EQ(quota.admit(10, start), std::nullopt);
  quota.charge(1190, start);
  EXPECT_EQ(quota.admit(1, start), 61);
  quota.charge(-1190, start);
  EXPECT_EQ(quota.admit(590, start), std::nullopt);
}

TEST(TokenQuota, APromptOfMoreThanAMinutesWorthNeedsAFullBucket) {
  const TokenQuota::Clock::time_point start;
  TokenQuota quota(60, start);
  EXPECT_EQ(quota.admit(90, start), std::nullopt);
  EXPECT_EQ(quota.admit(90, start), 90);
  EXPECT_EQ(quota.admit(90, start + seconds(90)), std::nullopt);
}

TEST_F(ServerTest, AKeyBeyondItsQuotaIsToldWhenToComeBackAndOthersGoOn) {
  start({.named_api_keys = {{.name = "small", .key = "s", .tokens_per_minute = 20}, {.name = "free", .key = "f"}},
         .admin = {.port = 0}});
  const auto ask = [&](const char* key, int max_tokens) {
    return post(port(), kKeyedPath, R"({"prompt":"abcde","max_tokens":)" + std::to_string(max_tokens) + "}",
                bearer(key));
  };
  EXPECT_EQ(ask("s", 250).status, 200) << "5 of the prompt are there; the 250 are owed";
  const auto refused = ask("s", 1);
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.json().at("error").at("code"), "rate_limit_exceeded");
  EXPECT_EQ(refused.json().at("error").at("type"), "RateLimitError");
  EXPECT_THAT(std::stoi(refused.headers.at("retry-after")), testing::AllOf(testing::Gt(60), testing::Le(721)));
  EXPECT_EQ(ask("f", 1).status, 200);
  const std::string metrics = get(server_->admin_port(), "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("vllm:admission_rejections_total{model_name=\"alphabet\",reason=\"quota\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("quire:api_key_prompt_tokens_total{api_key=\"small\"} 5"));
  EXPECT_THAT(metrics, HasSubstr("quire:api_key_generation_tokens_total{api_key=\"small\"} 250"));
  EXPECT_THAT(metrics, HasSubstr("quire:api_key_generation_tokens_total{api_key=\"free\"} 1"));
  expect_idle();
}

// What is asked for in the background is refused as it is asked for, and not found to have failed later.
TEST_F(ServerTest, ABackgroundResponseThatIsLargerThanWhatIsLeftOfTheQuotaIsRefused) {
  start({.named_api_keys = {{.name = "small", .key = "s", .tokens_per_minute = 20}}});
  const auto ask = [&](std::string_view text) {  // 7 tokens more
    return post(port(), "/v1/responses",
                R"({"background":true,"max_output_tokens":1,"input":")" + std::string(text) + R"("})", bearer("s"));
  };
  EXPECT_EQ(ask("abc").status, 200);
  const auto refused = ask("abcdefghi");  // 10 tokens are left, but for what was generated
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.json().at("error").at("code"), "rate_limit_exceeded");
  EXPECT_THAT(std::stoi(refused.headers.at("retry-after")), testing::AllOf(testing::Gt(10), testing::Le(30)));
  EXPECT_EQ(ask("a").status, 200) << "a smaller one fits";
  expect_idle();
}

TEST_F(ServerTest, ARequestWhoseConstraintCannotBeCompiledCostsNothingOfTheQuota) {
  start({.named_api_keys = {{.name = "small", .key = "s", .tokens_per_minute = 20}}});
  for (int i = 0; i < 5; ++i) {
    const auto refused =
        post(port(), kKeyedPath, R"({"prompt":"abcdefghijklmno","max_tokens":1,"structured_outputs":{"regex":"("}})",
             bearer("s"));
    EXPECT_EQ(refused.status, 400) << refused.body;
  }
  EXPECT_EQ(post(port(), kKeyedPath, R"({"prompt":"abcdefghijklmno","max_tokens":1})", bearer("s")).status, 200);
}

TEST_F(ServerTest, ARequestThatTheEngineRefusesCostsNothingOfTheQuota) {
  start({.named_api_keys = {{.name = "small", .key = "s", .tokens_per_minute = 20}}});
  for (int i = 0; i < 5; ++i) {
    const auto refused =
        post(port(), kKeyedPath, R"({"prompt":"abcdefghijklmno","max_tokens":1,"logprobs":21})", bearer("s"));
    EXPECT_EQ(refused.status, 400) << refused.body;
  }
  EXPECT_EQ(post(port(), kKeyedPath, R"({"prompt":"abcdefghijklmno","max_tokens":1})", bearer("s")).status, 200);
}

TEST_F(ServerTest, KeysOfAFileAreAskedForEverywhereButWhereItIsOpen) {
  start({.named_api_keys = {{.name = "alice", .key = "sk-1"}}});
  for (const char* path : {"/metrics", "/v1/models", "/nothing", "/v1/models/abc"}) {
    EXPECT_EQ(get(port(), path).status, 401) << path;
    EXPECT_EQ(get(port(), path, bearer("alice")).status, 401) << "the name is not the key";
    EXPECT_NE(get(port(), path, bearer("sk-1")).status, 401) << path;
  }
  for (const char* path : {"/health", "/ready", "/ping", "/version"}) EXPECT_EQ(get(port(), path).status, 200) << path;
}

}  // namespace
}  // namespace quire::server
