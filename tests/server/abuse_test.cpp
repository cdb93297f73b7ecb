// Clients that mean harm, each beside streams that must not notice: every one of those is, token by token, what it
// would have been alone, and when it is over nothing is left behind. The letters name kinds of attack: H of HTTP, P of
// parameters, G of structure, T of text.
#include <thread>

#include <sys/resource.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::AnyOf;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

// Streams of known answers, one after the other, until it is told to stop.
class StreamBeside {
 public:
  explicit StreamBeside(uint16_t port) : port_(port), thread_([this] { run(); }) {}
  ~StreamBeside() { stop(); }
  StreamBeside(const StreamBeside&) = delete;
  StreamBeside& operator=(const StreamBeside&) = delete;

  // Lets the present one end, and another come and go.
  void stop() {
    if (!thread_.joinable()) return;
    const int seen = done_;
    EXPECT_TRUE(eventually([&] { return done_ >= seen + 2 || failed_; }));
    stopping_ = true;
    thread_.join();
  }

 private:
  void run() {
    constexpr size_t kTokens = 200;
    while (!stopping_ && !failed_) {
      const size_t length = 3 + static_cast<size_t>(done_) % 20;
      const auto response = post(
          port_, kCompletions,
          R"({"stream":true,"max_tokens":200,"return_token_ids":true,"prompt":")" + std::string(length, 'x') + "\"}");
      std::string text;
      std::string tokens;
      for (const std::string& event : response.events()) {
        if (event == "[DONE]") continue;
        const json::value value = json::parse(event);
        const json::object& choice = value.at("choices").at(0).as_object();
        text += text_of(choice.at("text"));
        if (const json::value* ids = choice.if_contains("token_ids"); ids != nullptr && ids->is_array()) {
          for (const json::value& id : ids->as_array()) tokens.push_back(static_cast<char>(id.to_number<int>()));
        }
      }
      const std::string expected = letters(length, kTokens);
      EXPECT_EQ(response.status, 200) << response.body;
      EXPECT_EQ(text, expected);
      EXPECT_EQ(tokens, expected);
      if (text != expected) failed_ = true;
      ++done_;
    }
  }

  const uint16_t port_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> done_{0};
  std::thread thread_;
};

class AbuseTest : public ServerTest {
 protected:
  void begin(ServerConfig config = {}, EngineConfig engine = {}) {
    start(std::move(config), std::move(engine));
    executor_->step_microseconds = 200;
    beside_ = std::make_unique<StreamBeside>(port());
  }
  // The server as it was before.
  void end() {
    beside_->stop();
    expect_idle();
    EXPECT_TRUE(eventually([&] { return server_->num_connections() == 0; })) << server_->num_connections();
    EXPECT_EQ(complete(R"({"prompt":"abc","max_tokens":2})").status, 200);
  }
  void TearDown() override { beside_.reset(); }

  std::unique_ptr<StreamBeside> beside_;
};

// Both ends of so many connections are this process's.
bool may_open(rlim_t descriptors) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < descriptors) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, descriptors);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// H1
TEST_F(AbuseTest, TwoThousandConnectionsThatNeverFinishAHeader) {
  if (!may_open(4500)) GTEST_SKIP() << "too few descriptors";
  begin({.header_timeout = std::chrono::milliseconds(1500)});
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 2000; ++i) {
    slow.push_back(std::make_unique<Client>(port()));
    ASSERT_TRUE(slow.back()->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX"));
  }
  for (auto& client : slow) client->send("-");  // a byte more changes nothing
  for (auto& client : slow) EXPECT_EQ(client->receive().status, 408);
  slow.clear();
  end();
}

// H1
TEST_F(AbuseTest, AHundredThousandHeaderFields) {
  begin({.max_header_bytes = 4 << 20});
  std::string fields;
  for (int i = 0; i < 100'000; ++i) fields += "X-" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(get(port(), "/health", fields).status, 431) << "too many, though not too large";
  Client endless(port());
  endless.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 100 && endless.send(std::string(64 << 10, 'x') + ": 1\r\n"); ++i) {
  }
  EXPECT_THAT(endless.receive().status, AnyOf(400, 431, 0));
  endless.close();
  end();
}

// P6
TEST_F(AbuseTest, ABodyOfAGigabyteIsRefusedBeforeItIsSent) {
  begin();
  Client client(port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "1073741824\r\n\r\n");
  EXPECT_EQ(client.receive().status, 413);
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 1024 && client.send(piece); ++i) {  // what comes all the same is dropped, and not for long
  }
  EXPECT_TRUE(client.closed_by_server());
  client.close();
  Client expecting(port());
  expecting.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n"
      "Content-Length: 1073741824\r\n\r\n");
  EXPECT_EQ(expecting.receive().status, 413) << "not 100";
  expecting.close();
  end();
}

std::string chunked_head() {
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
         "chunked\r\n\r\n";
}

// H1
TEST_F(AbuseTest, ChunksThatNeverEnd) {
  begin({.max_body_bytes = 1 << 20});
  Client client(port());
  client.send(chunked_head());
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  for (int i = 0; i < 1000 && client.send(chunk); ++i) {
  }
  EXPECT_THAT(client.receive().status, AnyOf(413, 0));
  client.close();
  Client line(port());
  line.send(chunked_head());
  for (int i = 0; i < 1000 && line.send(std::string(4096, '0')); ++i) {  // a size whose digits never end
  }
  EXPECT_THAT(line.receive().status, AnyOf(400, 413, 0));
  line.close();
  Client trailer(port());
  trailer.send(chunked_head() + "0\r\n");
  for (int i = 0; i < 1000 && trailer.send("X-Trailer: " + std::string(4096, 'x') + "\r\n"); ++i) {
  }
  EXPECT_THAT(trailer.receive().status, AnyOf(400, 413, 431, 0));
  trailer.close();
  end();
}

// H2
TEST_F(AbuseTest, ThreeMegabytesInChunksOfSixBytes) {
  begin();
  std::string request = chunked_head();
  const std::string body = R"({"prompt":"abc","max_tokens":4,"user":")" + std::string(3 << 20, 'u') + "\"}";
  for (size_t at = 0; at < body.size(); at += 6) {
    const std::string piece = body.substr(at, 6);
    request += std::to_string(piece.size()) + "\r\n" + piece + "\r\n";
  }
  Client client(port());
  ASSERT_TRUE(client.send(request + "0\r\n\r\n"));
  const auto response = client.receive();
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(text_of(response.json().at("choices").at(0).at("text")), letters(3, 4));
  client.close();
  end();
}

// G7
TEST_F(AbuseTest, JsonAHundredThousandDeepInEveryPlace) {
  begin();
  const std::string lists = std::string(100'000, '[') + std::string(100'000, ']');
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  objects += "1" + std::string(100'000, '}');
  Client client(port());
  for (const std::string& deep : {lists, objects}) {
    for (const std::string& body :
         {deep, R"({"prompt":)" + deep + "}", R"({"prompt":"a","unheard_of":)" + deep + "}",
          R"({"prompt":"a","stop":)" + deep + "}", R"({"prompt":"a","logit_bias":)" + deep + "}"}) {
      ASSERT_TRUE(client.send(http_request("POST", kCompletions, body)));
      EXPECT_EQ(client.receive().status, 400);
    }
    for (const std::string& body :
         {R"({"messages":)" + deep + "}", R"({"messages":[{"role":"user","content":)" + deep + "}]}",
          R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":)" + deep + "}}"}) {
      ASSERT_TRUE(client.send(http_request("POST", kChat, body)));
      EXPECT_EQ(client.receive().status, 400);
    }
  }
  client.close();
  end();
}

// T5
TEST_F(AbuseTest, BytesThatAreNoTextInEveryPlace) {
  begin();
  Client client(port());
  for (const char* bytes :
       {"\xff\xfe", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xf8\x88\x80\x80\x80"}) {
    const std::string bad(bytes);
    for (const std::string& body :
         {R"({"prompt":"a)" + bad + "\"}", R"({"prompt":"a","stop":")" + bad + "\"}",
          R"({"prompt":"a","user":")" + bad + "\"}", R"({"prompt":"a","model":")" + bad + "\"}",
          R"({"prompt":"a",")" + bad + "\":1}", "{" + bad + "}"}) {
      ASSERT_TRUE(client.send(http_request("POST", kCompletions, body)));
      const auto response = client.receive();
      EXPECT_EQ(response.status, 400) << body;
      EXPECT_TRUE(response.json().is_object()) << "the answer is text";
    }
  }
  client.close();
  end();
}

// P1, P2, P3
TEST_F(AbuseTest, NumbersThatAreNoneOrTooLargeInEveryNumericField) {
  begin();
  const std::vector<const char*> integers = {"n",
                                             "best_of",
                                             "max_tokens",
                                             "min_tokens",
                                             "top_k",
                                             "seed",
                                             "logprobs",
                                             "mirostat",
                                             "prompt_logprobs",
                                             "priority",
                                             "beam_width",
                                             "dry_allowed_length",
                                             "dry_penalty_last_n",
                                             "truncate_prompt_tokens"};
  std::vector<const char*> fields = {"temperature",
                                     "top_p",
                                     "min_p",
                                     "typical_p",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "repetition_penalty",
                                     "top_n_sigma",
                                     "dynatemp_range",
                                     "dynatemp_exponent",
                                     "timeout",
                                     "xtc_probability",
                                     "xtc_threshold",
                                     "mirostat_tau",
                                     "mirostat_eta",
                                     "dry_multiplier",
                                     "dry_base",
                                     "length_penalty"};
  fields.insert(fields.end(), integers.begin(), integers.end());
  Client client(port());
  const auto status = [&](const std::string& field, const std::string& value) {
    client.send(http_request("POST", kCompletions, R"({"prompt":"ab",")" + field + "\":" + value + "}"));
    return client.receive().status;
  };
  for (const char* field : fields) {
    for (const char* none : {"NaN", "nan", "Infinity", "-Infinity", "1e400", "-1e400", "\"1\"", "\"NaN\"", "true", "{}",
                             "[1]", "0x10", "1.", "01", "+1"}) {
      EXPECT_EQ(status(field, none), 400) << field << " " << none;
    }
    for (const char* huge : {"1e39", "-1e39", "1e308", "340282366920938463463374607431768211456",
                             "99999999999999999999999999999999999999999999"}) {
      EXPECT_EQ(status(field, huge), 400) << field << " " << huge;
    }
  }
  for (const char* field : integers) {
    for (const char* huge : {"9223372036854775808", "-9223372036854775809", "1.5"}) {
      EXPECT_EQ(status(field, huge), 400) << field << " " << huge;
    }
  }
  EXPECT_EQ(status("n", "1000000"), 400);
  EXPECT_EQ(status("best_of", "1000000"), 400);
  EXPECT_EQ(status("max_tokens", "9223372036854775807"), 400);
  EXPECT_EQ(status("n", "-1"), 400);
  client.close();
  end();
}

TEST_F(AbuseTest, TenThousandClientsThatComeAndGo) {
  begin();
  const std::string request = http_request("POST", kCompletions, R"({"prompt":"abc","max_tokens":200,"stream":true})");
  for (int i = 0; i < 10'000; ++i) {
    Client client(port());
    if (i % 4 == 1) client.send(request.substr(0, static_cast<size_t>(i) % request.size()));
    if (i % 40 == 2) client.send(request);
    ASSERT_TRUE(client.connected());
    if (i % 8 != 0) client.reset();
  }
  end();
}

TEST_F(AbuseTest, AReaderThatTakesAByteNowAndThenAndThenNone) {
  begin({.write_timeout = std::chrono::milliseconds(1000)});
  Client slow(port(), 4096);
  slow.send(
      http_request("POST", kCompletions, R"({"prompt":"abc","max_tokens":250,"n":64,"logprobs":5,"stream":true})"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(slow.receive_byte().empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // More than the kernel's buffers hold: the server waits for it, as long as write_timeout, and nothing else does.
  EXPECT_TRUE(eventually([&] { return server_->num_connections() <= 1; }));
  slow.close();
  end();
}

}  // namespace
}  // namespace quire::server
