// The HTTP layer alone, under handlers that misbehave.
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "server/http_server.h"
#include "tests/server/http_client.h"

namespace quire::server {
namespace {

class Handler final : public HttpHandler {
 public:
  std::optional<HttpResponse> screen(HttpRequest& head) override {
    if (head.path == "/screen-throws") throw std::runtime_error("thrown while screening");
    return std::nullopt;
  }
  void handle(std::shared_ptr<Exchange> exchange) override {
    const std::string& path = exchange->request().path;
    if (path == "/handle-throws") throw std::runtime_error("thrown while handling");
    if (path == "/stream-throws") {
      exchange->post([exchange] {
        exchange->watch([exchange] {}, [exchange] {});
        exchange->begin_stream({});
        exchange->write("beginning", [] { throw std::runtime_error("thrown while streaming"); });
      });
    } else if (path == "/stream-dropped") {
      exchange->post([exchange] {
        exchange->begin_stream({});
        exchange->write("beginning", [] {});  // and nobody goes on
      });
    } else if (path == "/hold") {
      held.set_value(std::move(exchange));
    } else {
      exchange->respond({200, "text/plain", {}, "fine"});
    }
  }
  void answered(const HttpRequest&, int, double) override {}

  std::promise<std::shared_ptr<Exchange>> held;
};

class HttpLayerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.host = "127.0.0.1";
    options.port = 0;
    auto server = HttpServer::start(options, handler_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  Handler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpLayerTest, WhatAHandlerThrowsCostsItsOwnConnectionAlone) {
  start();
  Client other(server_->port());
  for (const char* path : {"/screen-throws", "/stream-throws", "/stream-dropped"}) {
    SCOPED_TRACE(path);
    Client client(server_->port());
    client.send(http_request("GET", path));
    EXPECT_TRUE(client.closed_by_server());
    other.send(http_request("GET", "/"));
    EXPECT_EQ(other.receive().status, 200);
  }
  EXPECT_EQ(get(server_->port(), "/handle-throws").status, 500);
  EXPECT_EQ(get(server_->port(), "/").status, 200);
}

TEST_F(HttpLayerTest, AnAnswerThatBeginsAfterTheDrainsDeadlineIsAskedToEndToo) {
  start();
  Client client(server_->port());
  client.send(http_request("GET", "/hold"));
  const std::shared_ptr<Exchange> exchange = handler_.held.get_future().get();
  server_->drain(std::chrono::milliseconds(1), std::chrono::milliseconds(1));
  std::promise<void> aborted;
  exchange->post([&] { exchange->watch([] {}, [&] { aborted.set_value(); }); });
  EXPECT_EQ(aborted.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  exchange->respond({});
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(HttpLayerTest, DrainingAndStoppingAgainChangeNothing) {
  start();
  server_->drain(std::chrono::seconds(1), std::chrono::seconds(1));
  server_->stop();
  server_->drain(std::chrono::seconds(1), std::chrono::seconds(1));
  server_->stop();
  EXPECT_EQ(server_->num_connections(), 0);
}

TEST_F(HttpLayerTest, AFloodBeyondTheRefusedIsNotEvenAnswered) {
  start({.max_connections = 2});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(std::make_unique<Client>(server_->port()));
  for (int i = 0; i < 2; ++i) {
    clients[static_cast<size_t>(i)]->send(http_request("GET", "/"));
    EXPECT_EQ(clients[static_cast<size_t>(i)]->receive().status, 200);
  }
  for (size_t i = 2; i < 4; ++i) EXPECT_EQ(clients[i]->receive().status, 503);
  EXPECT_EQ(clients[4]->receive().status, 0);
}

}  // namespace
}  // namespace quire::server
