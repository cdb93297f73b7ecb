// What the client adds to the downloads' needs, which tests/hub has: bodies that are sent, and an end for all waits.
#include "net/http_client.h"

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

namespace quire::net {
namespace {

using boost::asio::ip::tcp;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// One connection after the other, each given to `serve`.
class TinyServer {
 public:
  explicit TinyServer(int connections, std::function<void(tcp::socket&)> serve)
      : acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}),
        thread_([this, connections, serve = std::move(serve)] {
          for (int i = 0; i < connections; ++i) {
            tcp::socket socket = acceptor_.accept();
            serve(socket);
          }
        }) {}
  ~TinyServer() { thread_.join(); }
  Url url() const {
    return *parse_url("http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()) + "/v1/traces");
  }

 private:
  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  std::thread thread_;
};

// A head, and so many bytes behind it.
std::string request_from(tcp::socket& socket, size_t body) {
  std::string text;
  const size_t head = boost::asio::read_until(socket, boost::asio::dynamic_buffer(text), "\r\n\r\n");
  if (text.size() < head + body) {
    boost::asio::read(socket, boost::asio::dynamic_buffer(text),
                      boost::asio::transfer_exactly(head + body - text.size()));
  }
  return text;
}

HttpClient client_with(HttpTimeouts timeouts) {
  return HttpClient(*TlsTrust::make("", ""), timeouts);
}

TEST(HttpClient, APostBringsItsBodyAndItsLength) {
  std::vector<std::string> requests;
  {
    TinyServer server(1, [&](tcp::socket& socket) {
      for (const size_t size : {5, 0}) {
        requests.push_back(request_from(socket, size));
        boost::asio::write(socket, boost::asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")));
      }
    });
    HttpClient client = client_with({});
    const auto head =
        client.send("POST", server.url(), {{"Content-Type", "application/json"}}, std::string_view("a\0b\r\n", 5));
    ASSERT_TRUE(head.ok()) << head.status().message();
    EXPECT_EQ(head->status, 200);
    EXPECT_EQ(*client.read_all(100), "{}");
    EXPECT_TRUE(client.send("POST", server.url(), {}).ok()) << "over the same connection";
  }
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_THAT(requests[0], StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(requests[0], HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(requests[0], testing::EndsWith(std::string_view("\r\n\r\na\0b\r\n", 9)));
  EXPECT_THAT(requests[1], HasSubstr("Content-Length: 0\r\n"));
}

TEST(HttpClient, AnAnswerThatDripsEndsWithTheTimeForAllOfIt) {
  TinyServer server(1, [](tcp::socket& socket) {
    request_from(socket, 1);
    boost::system::error_code error;
    boost::asio::write(socket, boost::asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")),
                       error);
    for (int i = 0; i < 999 && !error; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
      boost::asio::write(socket, boost::asio::buffer("x", 1), error);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  {
    HttpClient client = client_with({.whole = milliseconds(300)});
    ASSERT_TRUE(client.send("POST", server.url(), {}, "x").ok());
    const auto body = client.read_all(10'000);
    ASSERT_FALSE(body.ok());
    EXPECT_EQ(body.status().code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(HttpClient, TheTimeBeginsAnewWithEachRequest) {
  TinyServer server(1, [](tcp::socket& socket) {
    for (int i = 0; i < 4; ++i) {
      request_from(socket, 1);
      std::this_thread::sleep_for(milliseconds(200));
      boost::asio::write(socket, boost::asio::buffer(std::string("HTTP/1.1 204 No Content\r\n\r\n")));
    }
  });
  HttpClient client = client_with({.whole = milliseconds(600)});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(client.send("POST", server.url(), {}, "x").ok()) << i;
}

}  // namespace
}  // namespace quire::net
