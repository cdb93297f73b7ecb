// What keys share and must not take from each other or tell each other: memory of bodies and answers, the disk of
// batches, stored responses, cached prefixes, metrics.
#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http_server.h"
#include "server/response_store.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kSharesCompletions = "/v1/completions";

std::string key_field(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

// ---------------------------------------------------------------------------------------------- what keys can learn

class SharesTest : public ServerTest {
 protected:
  // Of a prompt of 100 letters, asked with this key.
  int cached_tokens(const std::string& key, const std::string& more = "") {
    const auto response =
        post(port(), kSharesCompletions, R"({"prompt":")" + std::string(100, 'x') + R"(","max_tokens":2)" + more + "}",
             key_field(key));
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int>();
  }
};

// I2
TEST_F(SharesTest, OneKeyDoesNotLearnFromThePrefixCacheWhatAnotherAsked) {
  start({.api_keys = {"one", "two"}});
  EXPECT_EQ(cached_tokens("one"), 0);
  EXPECT_EQ(cached_tokens("one"), 96);
  EXPECT_EQ(cached_tokens("two"), 0);
  EXPECT_EQ(cached_tokens("two"), 96);
  const std::string salt = R"(,"cache_salt":"the same")";
  EXPECT_EQ(cached_tokens("one", salt), 0);
  EXPECT_EQ(cached_tokens("one", salt), 96);
  EXPECT_EQ(cached_tokens("two", salt), 0) << "a salt that both know shares nothing either";
}

TEST_F(SharesTest, NoSaltIsAnotherKeys) {
  start({.api_keys = {"one", "two"}});
  EXPECT_EQ(cached_tokens("two"), 0);
  for (const char* salt : {"1", "1:", ":", "0:1:"}) {
    EXPECT_EQ(cached_tokens("one", std::string(R"(,"cache_salt":")") + salt + "\""), 0) << salt;
  }
}

TEST_F(SharesTest, KeysThatAreOnePartysShareCachedPrefixesWhereAFlagSaysSo) {
  start({.api_keys = {"one", "two"}, .share_prefix_cache_across_keys = true});
  EXPECT_EQ(cached_tokens("one"), 0);
  EXPECT_EQ(cached_tokens("two"), 96);
  EXPECT_EQ(cached_tokens("two", R"(,"cache_salt":"mine")"), 0);
}

TEST_F(SharesTest, MetricsNameKeysToOperatorsAlone) {
  start({.named_api_keys = {{.name = "alice", .key = "a"}, {.name = "bob", .key = "b"}}, .admin = {.port = 0}});
  EXPECT_EQ(post(port(), kSharesCompletions, R"({"prompt":"abc","max_tokens":2})", key_field("a")).status, 200);
  const std::string clients = get(port(), "/metrics", key_field("b")).body;
  EXPECT_THAT(clients, HasSubstr("vllm:generation_tokens_total"));
  EXPECT_THAT(clients, Not(HasSubstr("alice")));
  EXPECT_THAT(clients, Not(HasSubstr("api_key")));
  const std::string operators = get(server_->admin_port(), "/metrics").body;
  EXPECT_THAT(operators, HasSubstr("vllm:generation_tokens_total"));
  EXPECT_THAT(operators, HasSubstr("quire:api_key_generation_tokens_total{api_key=\"alice\"} 2"));
}

// --------------------------------------------------------------------------------------------------- answers' size

std::string scored(int n, int tokens, const std::string& more = "") {
  std::string ids;
  for (int i = 0; i < 200; ++i) ids += (i == 0 ? "" : ",") + std::to_string('a' + i % 26);
  return R"({"prompt":[)" + ids + R"(],"max_tokens":)" + std::to_string(tokens) + R"(,"n":)" + std::to_string(n) +
         R"(,"prompt_logprobs":20)" + more + "}";
}

// P5
TEST_F(SharesTest, AnAnswerWhoseTextWouldBeTooLargeIsRefusedBeforeItIsMade) {
  start({.max_answer_bytes = 4 << 20});
  EXPECT_EQ(complete(scored(1, 1)).status, 200);
  const auto refused = complete(scored(128, 1));
  EXPECT_EQ(refused.status, 400) << refused.body.substr(0, 300);
  EXPECT_EQ(refused.json().at("error").at("param"), "prompt_logprobs");
  EXPECT_THAT(text_of(refused.json().at("error").at("message")), HasSubstr("4 MiB"));
  const auto repeated =
      complete(R"({"prompt":")" + std::string(200, 'x') + R"(","max_tokens":50,"n":128,"logprobs":20})");
  EXPECT_EQ(repeated.status, 400) << repeated.body.substr(0, 300);
  EXPECT_EQ(repeated.json().at("error").at("param"), "logprobs");
  expect_idle();
}

TEST_F(SharesTest, AnswersUnderWayAreCountedByWhatTheyMayBecomeAndByKey) {
  start({.api_keys = {"flood", "other"}, .max_answer_bytes = 4 << 20});
  executor_->blocked = true;
  const auto ask = [this](const char* key) {
    return std::async(std::launch::async,
                      [this, key] { return post(port(), kSharesCompletions, scored(2, 8), key_field(key)); });
  };
  std::vector<std::future<ClientResponse>> flood;
  for (int i = 0; i < 12; ++i) flood.push_back(ask("flood"));
  const auto done = [](std::future<ClientResponse>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(eventually([&] { return std::ranges::count_if(flood, done) >= 6; })) << "what has no room is told so";
  auto other = ask("other");
  EXPECT_TRUE(eventually([&] { return engine_->stats().num_running + engine_->stats().num_waiting > 0; }));
  executor_->blocked = false;
  executor_->blocked.notify_all();
  EXPECT_EQ(other.get().status, 200);
  std::map<int, int> codes;
  for (auto& one : flood) ++codes[one.get().status];
  EXPECT_GE(codes[200], 1);
  EXPECT_GE(codes[429], 6);
  EXPECT_EQ(codes[200] + codes[429], 12);
  expect_idle();
}

// ------------------------------------------------------------------------------------------------ bodies and readers

// "/1/..." is of tenant 1. "/N/large" is answered with eight megabytes, "/N/..." with the body's size.
class SharesHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> screen(HttpRequest& head) override {
    head.tenant = head.path.at(1) - '0';
    return std::nullopt;
  }
  void handle(std::shared_ptr<Exchange> exchange) override {
    const bool large = exchange->request().path.ends_with("/large");
    exchange->respond(
        {200, "text/plain", {}, large ? std::string(8 << 20, 'x') : std::to_string(exchange->request().body.size())});
  }
  void answered(const HttpRequest&, int, double) override {}
};

class SharedRoomTest : public testing::Test {
 protected:
  void start(HttpOptions options) {
    options.host = "127.0.0.1";
    options.port = 0;
    auto server = HttpServer::start(options, handler_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  // A client that sends all of a body of this size but the last byte.
  std::unique_ptr<Client> stalled(const std::string& path, size_t bytes) {
    auto client = std::make_unique<Client>(server_->port());
    client->send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(bytes + 1) + "\r\n\r\n" +
                 std::string(bytes, 'x'));
    return client;
  }
  ClientResponse send_body(const std::string& path, size_t bytes) {
    return post(server_->port(), path, std::string(bytes, 'y'));
  }
  std::unique_ptr<Client> reader(const std::string& path) {
    auto client = std::make_unique<Client>(server_->port(), 4096);
    client->send(http_request("GET", path));
    return client;
  }

  SharesHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

void wait_a_little() {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

TEST_F(SharedRoomTest, BodiesThatStallMakeRoomForOneThatComes) {
  start({.max_buffered_bytes = 4 << 20, .pace_window = std::chrono::milliseconds(1)});
  std::vector<std::unique_ptr<Client>> held;
  for (int i = 0; i < 4; ++i) held.push_back(stalled("/0/", (1 << 20) - 100));
  wait_a_little();
  const auto response = send_body("/0/", 1 << 20);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.body, std::to_string(1 << 20));
  // It took the place of one; the others may still end.
  int refused = 0;
  for (auto& client : held) {
    client->send("x");
    if (client->receive().status != 200) ++refused;
  }
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 2);
}

TEST_F(SharedRoomTest, OneKeysStalledBodiesPayForAnothersWithTheirPlace) {
  start({.max_buffered_bytes = 4 << 20, .tenant_weights = {1, 1}, .pace_window = std::chrono::milliseconds(1)});
  std::vector<std::unique_ptr<Client>> held;
  for (int i = 0; i < 8; ++i) held.push_back(stalled("/0/", (1 << 20) - 100));
  wait_a_little();
  for (int i = 0; i < 3; ++i) {
    const auto response = send_body("/1/", 1 << 20);
    EXPECT_EQ(response.status, 200) << response.body;
  }
  int served = 0;
  for (auto& client : held) {
    client->send("x");
    if (client->receive().status == 200) ++served;
  }
  EXPECT_LE(served, 2) << "half of the room is what one key may hold";
}

TEST_F(SharedRoomTest, AnswersThatNobodyReadsAreBoundedForAllAndByKey) {
  start({.max_unsent_bytes = 40 << 20, .tenant_weights = {1, 1}, .pace_window = std::chrono::milliseconds(1)});
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 10; ++i) {
    idle.push_back(reader("/0/large"));
    wait_a_little();
  }
  EXPECT_TRUE(eventually([&] { return server_->num_connections() <= 3; })) << server_->num_connections();
  Client other(server_->port());
  other.send(http_request("GET", "/1/large"));
  const auto response = other.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body.size(), size_t{8} << 20);
}

TEST_F(SharedRoomTest, AReaderUnderTheLeastRateIsCutThoughItTakesAByteNowAndThen) {
  start({.write_timeout = std::chrono::milliseconds(300), .min_read_rate = 100 << 20});
  const auto slow = reader("/0/large");
  // Steady, so that there is never a pause of write_timeout, but far slower than it must be.
  size_t taken = slow->receive_some().size();
  EXPECT_EQ(server_->num_connections(), 1u);
  for (int i = 0; i < 100 && server_->num_connections() > 0; ++i) {
    taken += slow->receive_some().size();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(server_->num_connections(), 0u);
  EXPECT_LT(taken, size_t{8} << 20) << "it was cut before it had all";
}

// ------------------------------------------------------------------------------------------------- stored responses

StoredResponse response_of(const std::string& id, int32_t tenant, bool in_progress = false) {
  StoredResponse response;
  response.id = id;
  response.tenant = tenant;
  response.body = std::string(10, 'x');
  response.in_progress = in_progress;
  return response;
}

TEST(SharedResponseStore, OneKeysFloodDrivesOutItsOwnResponses) {
  ResponseStore store(10, 10000);
  ASSERT_TRUE(store.add(response_of("mine", 1)).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(store.add(response_of("f" + std::to_string(i), 0)).ok());
  EXPECT_TRUE(store.find("mine", 1).ok());
  EXPECT_EQ(store.size(), 10u);
  EXPECT_TRUE(store.find("f99", 0).ok()) << "the last of its own are kept";
  EXPECT_FALSE(store.find("f0", 0).ok());
}

TEST(SharedResponseStore, OneKeysBackgroundLeavesRoomForAnothers) {
  ResponseStore store(10, 10000, {1, 1, 1});
  int taken = 0;
  for (int i = 0; i < 20; ++i) taken += store.add(response_of("f" + std::to_string(i), 0, true)).ok() ? 1 : 0;
  EXPECT_GE(taken, 5);
  EXPECT_TRUE(store.add(response_of("mine", 1, true)).ok());
  EXPECT_TRUE(store.add(response_of("other", 2)).ok());
  EXPECT_TRUE(store.find("other", 2).ok());
}

}  // namespace
}  // namespace quire::server
