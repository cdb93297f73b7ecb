// What a stranger's web page in the browser of somebody who reaches this server can make of it: nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/sites.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

using testing::HasSubstr;

constexpr const char* kAsk = R"({"prompt":"abc","max_tokens":1})";
constexpr const char* kAsJson = "Content-Type: application/json\r\n";

class CrossSiteTest : public ServerTest {
 protected:
  ClientResponse ask(std::string_view method, std::string_view path, std::string_view fields, std::string_view body) {
    return ask_at(port(), method, path, fields, body);
  }
  static ClientResponse ask_at(uint16_t port, std::string_view method, std::string_view path, std::string_view fields,
                               std::string_view body) {
    Client client(port);
    std::string text = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\n" + std::string(fields);
    if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    client.send(text + "\r\n" + std::string(body));
    return client.receive();
  }
};

TEST_F(CrossSiteTest, OnLoopbackOnlyLoopbacksNamesAreTaken) {
  start();
  for (const char* host : {"localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80"}) {
    EXPECT_EQ(ask("GET", "/v1/models", std::string("Host: ") + host + "\r\n", "").status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
                           "[::1].evil.example", "[::1", "x", ""}) {
    const auto refused = ask("GET", "/v1/models", std::string("Host: ") + host + "\r\n", "");
    EXPECT_EQ(refused.status, 403) << host;
    EXPECT_THAT(refused.body, HasSubstr("--allowed-hosts")) << host;
    EXPECT_THAT(refused.body, HasSubstr("PermissionDeniedError")) << host;
    EXPECT_EQ(ask("POST", "/v1/completions", std::string("Host: ") + host + "\r\n" + kAsJson, kAsk).status, 403)
        << host;
  }
}

// RFC 9112, section 3.2.2: the Host field is then not looked at.
TEST_F(CrossSiteTest, AWholeUrlsHostIsTheOneThatCounts) {
  start();
  EXPECT_EQ(ask("GET", "http://localhost/v1/models", "Host: evil.example\r\n", "").status, 200);
  EXPECT_EQ(ask("GET", "http://evil.example/v1/models", "Host: localhost\r\n", "").status, 403);
  EXPECT_EQ(ask("GET", "http://localhost/v1/models", "Host: localhost\r\nOrigin: http://evil.example\r\n", "").status,
            403);
}

TEST_F(CrossSiteTest, OtherNamesCanBeAllowed) {
  start({.allowed_hosts = {"chat.example", "2001:db8::1"}});
  for (const char* host : {"chat.example", "Chat.Example:443", "[2001:DB8::1]:80", "localhost"}) {
    EXPECT_EQ(ask("GET", "/v1/models", std::string("Host: ") + host + "\r\n", "").status, 200) << host;
  }
  EXPECT_EQ(ask("GET", "/v1/models", "Host: evil.example\r\n", "").status, 403);
  server_.reset();
  start({.allowed_hosts = {"*"}});
  EXPECT_EQ(ask("GET", "/v1/models", "Host: evil.example\r\n", "").status, 200);
  for (const char* bad : {"http://chat.example", "chat.example:80", "a b", "", "chat.example/"}) {
    EXPECT_FALSE(check_allowed_hosts({bad}).ok()) << bad;
  }
}

TEST_F(CrossSiteTest, OldClientsThatNameNoHostAreNoBrowsers) {
  start();
  Client client(port());
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(CrossSiteTest, RefusedOnTheOperatorsListenerToo) {
  start({.admin = {.port = 0}});
  const uint16_t admin = server_->admin_port();
  EXPECT_EQ(ask_at(admin, "GET", "/admin/flight_recorder", "Host: localhost\r\n", "").status, 200);
  EXPECT_EQ(ask_at(admin, "GET", "/admin/flight_recorder", "Host: evil.example\r\n", "").status, 403);
  const auto form =
      ask_at(admin, "PUT", "/admin/log_level", "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n",
             R"({"level":"info"})");
  EXPECT_EQ(form.status, 415);
}

TEST_F(CrossSiteTest, AForeignOriginIsRefusedWhereNobodyNeedsAKey) {
  start();
  const std::string here = "Host: localhost:8000\r\n";
  EXPECT_EQ(ask("POST", "/v1/completions", here + "Origin: http://localhost:8000\r\n" + kAsJson, kAsk).status, 200)
      << "the page that this server has";
  for (const char* origin : {"https://evil.example", "http://localhost:3000", "null", "http://localhost:8000.evil"}) {
    const std::string fields = here + "Origin: " + origin + "\r\n";
    const auto refused = ask("POST", "/v1/completions", fields + kAsJson, kAsk);
    EXPECT_EQ(refused.status, 403) << origin;
    EXPECT_THAT(refused.body, HasSubstr("--allowed-origins")) << origin;
    EXPECT_EQ(ask("GET", "/v1/models", fields, "").status, 403) << origin;
  }
}

TEST_F(CrossSiteTest, AnOriginThatIsAllowedIsNotForeign) {
  start({.cors = {.origins = {"https://chat.example"}}});
  const std::string here = "Host: localhost\r\n";
  EXPECT_EQ(ask("POST", "/v1/completions", here + "Origin: https://chat.example\r\n" + kAsJson, kAsk).status, 200);
  EXPECT_EQ(ask("POST", "/v1/completions", here + "Origin: https://evil.example\r\n" + kAsJson, kAsk).status, 403);
}

TEST_F(CrossSiteTest, AKeyIsEnoughWhateverTheOrigin) {
  start({.api_keys = {"k"}});
  const std::string fields = "Host: localhost\r\nOrigin: https://any.example\r\nAuthorization: Bearer k\r\n";
  EXPECT_EQ(ask("POST", "/v1/completions", fields + kAsJson, kAsk).status, 200);
}

TEST_F(CrossSiteTest, ABodyMustSayThatItIsJson) {
  start();
  const std::string here = "Host: localhost\r\n";
  for (const char* good : {"application/json", "application/json; charset=utf-8", "Application/JSON ;charset=UTF-8",
                           "application/vnd.api+json"}) {
    EXPECT_EQ(ask("POST", "/v1/completions", here + "Content-Type: " + good + "\r\n", kAsk).status, 200) << good;
  }
  for (const char* bad : {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"}) {
    const std::string field = *bad == '\0' ? "" : std::string("Content-Type: ") + bad + "\r\n";
    const auto refused = ask("POST", "/v1/completions", here + field, kAsk);
    EXPECT_EQ(refused.status, 415) << bad;
    EXPECT_THAT(refused.body, HasSubstr("-H 'Content-Type: application/json'")) << bad;
  }
  const auto chunked = ask("POST", "/v1/completions", here + "Transfer-Encoding: chunked\r\n", "");
  EXPECT_EQ(chunked.status, 415);
  EXPECT_EQ(ask("POST", "/ping", here + "Content-Length: 0\r\n", "").status, 200) << "there is no body";
  EXPECT_EQ(ask("GET", "/health", here, "").status, 200);
}

}  // namespace
}  // namespace quire::server
