// The connection: what it withstands, whom it lets in, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <thread>

#include "server/chunked_body.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

constexpr const char* kShort = R"({"prompt":"abc","max_tokens":3})";
constexpr const char* kLong = R"({"prompt":"abc","max_tokens":200,"stream":true,"n":8})";

TEST_F(ServerTest, OneConnectionTakesRequestAfterRequest) {
  start();
  Client client(port());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client.send(http_request("POST", "/v1/completions", kShort)));
    EXPECT_EQ(client.receive().status, 200);
    ASSERT_TRUE(client.send(http_request("GET", "/nowhere")));
    EXPECT_EQ(client.receive().status, 404);
  }
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(port());
  std::string all;
  for (int i = 1; i <= 30; ++i) {
    all += http_request("POST", "/v1/completions", R"({"max_tokens":2,"prompt":")" + std::string(i, 'x') + "\"}");
    all += http_request("GET", "/health");
  }
  ASSERT_TRUE(client.send(all));
  for (int i = 1; i <= 30; ++i) {
    EXPECT_EQ(client.receive().json().at("usage").at("prompt_tokens"), i);
    EXPECT_EQ(client.receive().json().at("status"), "ok");
  }
}

TEST_F(ServerTest, ARequestMayComeByteByByteAndInChunks) {
  start();
  Client client(port());
  for (char byte : http_request("GET", "/version")) client.send(std::string_view(&byte, 1));
  EXPECT_EQ(client.receive().status, 200);
  std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n";
  for (const char* byte = kShort; *byte != '\0'; ++byte) chunked += std::string("1;ext=\"v\"\r\n") + *byte + "\r\n";
  chunked += "0\r\nTrailer: x\r\n\r\n";
  client.send(chunked);
  EXPECT_EQ(client.receive().status, 200);
  for (char byte : chunked) client.send(std::string_view(&byte, 1));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(ChunkedDecoder, SplitsAnywhereGiveTheSameBody) {
  const std::string coded = "5\r\nhello\r\n00a;x=y\r\n, world!!!\r\n0\r\nA: b\r\n\r\nnext";
  for (size_t step = 1; step <= coded.size(); ++step) {
    ChunkedDecoder decoder(100);
    std::string body;
    size_t used = 0;
    while (used < coded.size() && !decoder.done()) {
      const auto taken = decoder.decode(std::string_view(coded).substr(used, step), body);
      ASSERT_TRUE(taken.ok()) << taken.status().message();
      used += *taken;
    }
    EXPECT_EQ(body, "hello, world!!!");
    EXPECT_EQ(coded.substr(used), "next");
  }
}

TEST(ChunkedDecoder, WhatIsMalformedOrTooLargeIsRefused) {
  const auto code = [](std::string_view coded) {
    ChunkedDecoder decoder(10);
    std::string body;
    const auto taken = decoder.decode(coded, body);
    return taken.ok() ? StatusCode::kOk : taken.status().code();
  };
  for (const char* bad :
       {"x\r\n", "-5\r\n", "\r\n", "5\n", "5\r\nhelloXX", "ffffffffffffffffffff\r\n", "5\rX", " 5\r\n"}) {
    EXPECT_EQ(code(bad), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(code("5;" + std::string(1000, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("0\r\n" + std::string(20000, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("b\r\n"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("6\r\n123456\r\n5\r\n"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code("fffffffffffffff\r\n"), StatusCode::kResourceExhausted);
}

struct BadHttp {
  std::string bytes;
  int status;
};

TEST_F(ServerTest, WhatIsNotHttpIsAnsweredAndTheConnectionEnds) {
  start({.max_body_bytes = 1 << 20});
  const std::string host = "Host: localhost\r\n";
  const std::string posted = host + "Content-Type: application/json\r\n";
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "A: b\r\n";
  std::string flood;
  for (int i = 0; i < 100000; ++i) flood += "A: b\r\n";
  const std::vector<BadHttp> cases = {
      {"nonsense\r\n\r\n", 400},
      {std::string("\0\1\2\3\r\n\r\n", 8), 400},
      {"GET / HTTP/9.9\r\n\r\n", 505},
      {"GET /health HTTP/1.1\r\n\r\n", 400},  // no host
      {"GET /health HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"GET http://localhost/health HTTP/1.1\r\n\r\n", 400},  // no Host field, whatever the target says
      {"GET http:///health HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET http://user@localhost/health HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET ftp://localhost/health HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET health HTTP/1.1\r\n" + host + "\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /health HTTP/1.1\r\n" + host + "Bad Header: x\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n" + host + many + "\r\n", 431},
      {"GET /health HTTP/1.1\r\n" + host + flood + "\r\n", 431},
      {"GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 431},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Content-Length: -1\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Content-Length: 5000000000\r\n\r\n", 413},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding:\r\nContent-Length: 2\r\n\r\n{}", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Transfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"POST /v1/completions HTTP/1.1\r\n" + posted + "Expect: a-miracle\r\nContent-Length: 2\r\n\r\n", 417},
  };
  for (const BadHttp& bad : cases) {
    SCOPED_TRACE(bad.bytes.substr(0, 120));
    Client client(port());
    client.send(bad.bytes);
    const ClientResponse response = client.receive();
    EXPECT_EQ(response.status, bad.status) << response.body;
    EXPECT_TRUE(response.json().is_object());
    EXPECT_TRUE(client.closed_by_server());
  }
  EXPECT_EQ(get(port(), "/health").status, 200);
}

// RFC 9112, section 3.2.2: as a proxy sends it.
TEST_F(ServerTest, ATargetMayBeAWholeUrl) {
  start();
  Client client(port());
  for (const char* url : {"http://localhost/v1/models", "http://127.0.0.1:8000/v1/models",
                          "HTTPS://localhost/v1/models", "http://[::1]:1/v1/models?a=http://b/c"}) {
    SCOPED_TRACE(url);
    client.send(std::string("GET ") + url + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const ClientResponse response = client.receive();
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.json().at("object"), "list");
  }
  for (const char* url : {"http://localhost", "http://localhost?a=b", "/"}) {  // all of them the page
    SCOPED_TRACE(url);
    client.send(std::string("GET ") + url + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.receive().status, get(port(), "/").status);
  }
  client.send("GET http://localhost/nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.receive().status, 404);
}

TEST_F(ServerTest, ABodyOfTinyChunksIsTakenUpToTheLimit) {
  start({.max_body_bytes = 200000});
  std::string flood =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n";
  for (int i = 0; i < 300000; ++i) flood += "1\r\n \r\n";
  Client client(port());
  client.send(flood);
  EXPECT_EQ(client.receive().status, 413);
}

TEST_F(ServerTest, AllBodiesTogetherAreBounded) {
  start({.max_buffered_bytes = 100000});
  const std::string padding(60000, ' ');
  const std::string large = padding + R"({"prompt":"abc","max_tokens":200,"stream":true})";
  executor_->step_microseconds = 1000;
  Client running(port());  // its body is read and gone, however long its answer takes
  running.send(http_request("POST", "/v1/completions", large));
  EXPECT_THAT(running.receive_some(), testing::HasSubstr("200 OK"));
  // One that is read only when the request behind it has its place is refused itself: then the next one holds it.
  std::list<Client> unfinished;
  ClientResponse refused;
  for (int i = 0; i < 100 && refused.status != 503; ++i) {
    unfinished.emplace_back(port()).send(http_request("POST", "/v1/completions", large).substr(0, 60000));
    refused = complete(padding + kShort);
  }
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(complete(kShort).status, 200);
  for (Client& client : unfinished) client.close();
  ClientResponse taken;
  for (int i = 0; i < 2000 && taken.status != 200; ++i) taken = complete(padding + kShort);
  EXPECT_EQ(taken.status, 200);
}

TEST_F(ServerTest, SlowClientsAreSentAway) {
  start({.header_timeout = std::chrono::milliseconds(150),
         .body_timeout = std::chrono::milliseconds(150),
         .idle_timeout = std::chrono::milliseconds(150),
         .linger_timeout = std::chrono::milliseconds(50)});
  Client silent(port());
  Client half_a_head(port());
  half_a_head.send("GET /health HT");
  Client half_a_body(port());
  half_a_body.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "100\r\n\r\n{");
  EXPECT_EQ(half_a_head.receive().status, 408);
  EXPECT_EQ(half_a_body.receive().status, 408);
  EXPECT_TRUE(silent.closed_by_server());
  EXPECT_TRUE(half_a_body.closed_by_server());
}

TEST_F(ServerTest, ContinueIsSentToThoseWhoWaitForIt) {
  start();
  Client client(port());
  const std::string body = kShort;
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: "
      "100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.receive().status, 100);
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(ServerTest, OldClientsAreSentNoContinue) {
  start();
  Client client(port());
  const std::string body = kShort;
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a server that sent it would have done so by now
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(ServerTest, OldClientsGetTheirStreamUntilTheConnectionEnds) {
  start();
  Client client(port());
  const std::string body = R"({"prompt":"abc","max_tokens":5,"stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const auto response = client.receive();
  EXPECT_EQ(response.headers.count("transfer-encoding"), 0u);
  ASSERT_FALSE(response.events().empty());
  EXPECT_EQ(response.events().back(), "[DONE]");
}

TEST_F(ServerTest, MethodsAndPathsAreExact) {
  start();
  EXPECT_EQ(get(port(), "/v1/completions").status, 405);
  EXPECT_EQ(get(port(), "/v1/completions").headers.at("allow"), "OPTIONS, POST");
  EXPECT_EQ(post(port(), "/health", "{}").status, 405);
  for (const char* path :
       {"/v1", "/v1/models/../../health", "//v1/models", "/V1/models", "/v1/models%2f", "/v1/models/"}) {
    EXPECT_EQ(get(port(), path).status, 404) << path;
  }
  EXPECT_EQ(get(port(), "/health?probe=1").status, 200);
  for (const char* path : {"/\xff\xfe", "/v1/models/%ff", "/v1/models/\xc3"}) {
    const auto odd = get(port(), path);
    EXPECT_TRUE(odd.status == 404 || odd.status == 400) << odd.status;
    EXPECT_TRUE(odd.json().is_object()) << "not UTF-8: " << odd.body;
  }
  Client client(port());
  client.send(http_request("HEAD", "/v1/models"));
  const auto head = client.receive(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  client.send(http_request("OPTIONS", "/v1/models"));
  const auto options = client.receive();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.count("content-length"), 0u);
  EXPECT_EQ(options.headers.count("content-type"), 0u);
  client.send(http_request("GET", "/health"));
  EXPECT_EQ(client.receive().status, 200);
  const auto form = post(port(), "/v1/completions", "", "Content-Type: application/x-www-form-urlencoded\r\n");
  EXPECT_EQ(form.status, 415);
}

TEST_F(ServerTest, WithKeysOnlyTheirHoldersGetIn) {
  start({.api_keys = {"first-key", "second-key"}});
  for (const char* path : {"/v1/models", "/metrics", "/nowhere", "//health", "/health/", "/v1/models/abc"}) {
    EXPECT_EQ(get(port(), path).status, 401) << path;
  }
  for (const char* path : {"/health", "/ready", "/ping", "/version"}) EXPECT_EQ(get(port(), path).status, 200) << path;
  const auto refused = post(port(), "/v1/completions", kShort, "Authorization: Bearer wrong\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json().at("error").at("code"), "invalid_api_key");
  for (const char* field :
       {"Authorization: first-key\r\n", "Authorization: Bearer \r\n", "Authorization: Basic first-key\r\n",
        "Authorization: Bearer first-ke\r\n", "Authorization: Bearer first-keyy\r\n"}) {
    EXPECT_EQ(get(port(), "/v1/models", field).status, 401) << field;
  }
  EXPECT_EQ(get(port(), "/v1/models", "Authorization: Bearer first-key\r\nAuthorization: Bearer x\r\n").status, 400);
  EXPECT_EQ(get(port(), "/v1/models", "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(post(port(), "/v1/completions", kShort, "authorization: bearer first-key\r\n").status, 200);
}

TEST_F(ServerTest, AClientThatGoesCancelsItsWork) {
  start();
  executor_->step_microseconds = 3000;
  for (const char* body :
       {R"({"prompt":"abc","max_tokens":250,"stream":true,"n":8})", R"({"prompt":"abc","max_tokens":250,"n":8})"}) {
    Client client(port());
    client.send(http_request("POST", "/v1/completions", body));
    for (int i = 0; i < 2000 && engine_->stats().num_running < 8; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(engine_->stats().num_running, 8);
    client.close();
    const int64_t steps = engine_->stats().num_steps;
    expect_idle();
    EXPECT_LT(engine_->stats().num_steps - steps, 200) << "it ran to its end";
  }
}

TEST_F(ServerTest, ASlowReaderHoldsUpNobody) {
  start();
  Client slow(port());  // reads nothing: a thousand answers wait in its connection and in the engine
  std::string many;
  for (int i = 0; i < 40; ++i) many += http_request("POST", "/v1/completions", kLong);
  slow.send(many);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(complete(kShort).status, 200);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(slow.receive().events().back(), "[DONE]");
  expect_idle();
}

TEST_F(ServerTest, AReaderThatStopsIsDroppedAndItsWorkCancelled) {
  start({.write_timeout = std::chrono::milliseconds(200)});
  Client stuck(port());
  std::string many;
  for (int i = 0; i < 200; ++i) {
    many += http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":250,"n":64,"logprobs":20})");
  }
  std::thread sender([&] { stuck.send(many); });  // until the connection is reset
  for (int i = 0; i < 5000 && server_->num_connections() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 20000 && server_->num_connections() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server_->num_connections(), 0);
  sender.join();
  expect_idle();
}

TEST_F(ServerTest, HundredsOfIdleConnectionsCostNoThread) {
  start();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 500; ++i) idle.push_back(std::make_unique<Client>(port()));
  EXPECT_EQ(complete(kShort).status, 200);
  for (auto& client : idle) ASSERT_TRUE(client->send(http_request("GET", "/health")));
  for (auto& client : idle) EXPECT_EQ(client->receive().status, 200);
}

TEST_F(ServerTest, OneConnectionTooManyIsTurnedAway) {
  start({.max_connections = 3});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(http_request("GET", "/health"));
    EXPECT_EQ(clients.back()->receive().status, 200);
  }
  Client extra(port());
  EXPECT_EQ(extra.receive().status, 503);
  EXPECT_TRUE(extra.closed_by_server());
}

TEST_F(ServerTest, ManyClientsAtOnceGetTheirOwnAnswers) {
  start();
  std::vector<std::thread> threads;
  for (int t = 1; t <= 16; ++t) {
    threads.emplace_back([&, t] {
      const std::string prompt(t, 'x');
      for (int i = 0; i < 10; ++i) {
        const auto response = complete(R"({"max_tokens":20,"prompt":")" + prompt + "\"}");
        EXPECT_EQ(text_of(response.json().at("choices").at(0).at("text")), letters(t, 20));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_idle();
}

TEST_F(ServerTest, DrainingFinishesWhatRunsAndRefusesWhatIsNew) {
  start();
  executor_->step_microseconds = 2000;
  Client running(port());
  Client idle(port());
  idle.send(http_request("GET", "/health"));
  EXPECT_EQ(idle.receive().status, 200);
  running.send(http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":100,"stream":true})"));
  const std::string beginning = running.receive_some();
  EXPECT_THAT(beginning, testing::HasSubstr("200 OK"));
  std::thread stopper([&] { server_->drain_and_stop(); });
  std::string all = beginning;
  for (std::string some = running.receive_some(); !some.empty(); some = running.receive_some()) all += some;
  stopper.join();
  EXPECT_THAT(all, testing::HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(all, testing::HasSubstr("[DONE]"));
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_EQ(server_->num_connections(), 0);
  EXPECT_EQ(get(port(), "/health").status, 0);
}

TEST_F(ServerTest, ARequestThatComesWhileDrainingIsToldToGoElsewhere) {
  start();
  executor_->step_microseconds = 2000;
  Client running(port());
  Client late(port());
  const std::string request = http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":2})");
  late.send(request.substr(0, 30));  // under way when the drain begins
  running.send(http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":200,"stream":true})"));
  EXPECT_FALSE(running.receive_some().empty());
  std::thread stopper([&] { server_->drain_and_stop(); });
  while (get(port(), "/version").status != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  late.send(request.substr(30));
  const auto refused = late.receive();
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(refused.json().at("error").at("type"), "ServiceUnavailableError");
  while (!running.receive_some().empty()) {
  }
  stopper.join();
}

TEST_F(ServerTest, ADrainPastItsDeadlineEndsAnswersInGoodOrder) {
  start({.drain_deadline = std::chrono::milliseconds(50)});
  executor_->step_microseconds = 20000;
  Client stream(port());
  Client whole(port());
  stream.send(http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":250,"stream":true})"));
  whole.send(http_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":250})"));
  const std::string beginning = stream.receive_some();
  for (int i = 0; i < 2000 && engine_->stats().num_running < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread stopper([&] { server_->drain_and_stop(); });
  std::string all = beginning;
  for (std::string some = stream.receive_some(); !some.empty(); some = stream.receive_some()) all += some;
  EXPECT_THAT(all, testing::HasSubstr("\"finish_reason\":\"abort\""));
  EXPECT_THAT(all, testing::HasSubstr("[DONE]"));
  EXPECT_EQ(whole.receive().json().at("choices").at(0).at("finish_reason"), "abort");
  stream.close();
  whole.close();
  stopper.join();
  expect_idle();
}

TEST_F(ServerTest, StoppingWhileEverythingRunsLeavesNothingBehind) {
  start();
  executor_->step_microseconds = 1000;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(http_request("POST", "/v1/completions", kLong));
  }
  clients.front()->receive_some();
  server_.reset();
  for (auto& client : clients) EXPECT_TRUE(client->closed_by_server());
  expect_idle();
}

TEST_F(ServerTest, APortInUseOrAHostUnknownIsAnError) {
  start();
  const auto taken = Server::start({.host = "127.0.0.1", .port = port(), .served_model_names = {"m"}}, *engine_);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.status().message(), testing::HasSubstr("--port"));
  EXPECT_FALSE(Server::start({.host = "999.1.2.3", .port = 0, .served_model_names = {"m"}}, *engine_).ok());
}

}  // namespace
}  // namespace quire::server
