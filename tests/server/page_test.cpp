// The page's files: who gets them, with which headers, and what else lies under their paths (nothing).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/static_files.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

using testing::HasSubstr;
using testing::Not;

const StaticFile& file_named(std::string_view name) {
  for (const StaticFile& file : static_files()) {
    if (file.name == name) return file;
  }
  ADD_FAILURE() << "there is no file " << name;
  return static_files().front();
}

TEST(StaticFiles, EachHasATypeContentAndATagOfItsOwn) {
  std::set<std::string_view> names;
  std::set<std::string_view> tags;
  for (const StaticFile& file : static_files()) {
    EXPECT_FALSE(file.bytes.empty()) << file.name;
    EXPECT_EQ(file.etag.size(), 34u) << file.name;
    EXPECT_TRUE(file.etag.starts_with('"') && file.etag.ends_with('"')) << file.name;
    const bool svg = file.name.ends_with(".svg");
    EXPECT_THAT(std::string(file.content_type), HasSubstr(svg ? "image/svg+xml" : "; charset=utf-8")) << file.name;
    names.insert(file.name);
    tags.insert(file.etag);
  }
  EXPECT_EQ(names.size(), static_files().size());
  EXPECT_EQ(tags.size(), static_files().size());
  EXPECT_EQ(file_named("theme.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_THAT(std::string(file_named("index.html").bytes), HasSubstr("</html>\n"));
}

// What the policy would stop, and so would break the page without a word.
TEST(StaticFiles, NoneHasInlineCodeOrStylesOrAnotherHost) {
  for (const StaticFile& file : static_files()) {
    const std::string text(file.bytes);
    EXPECT_THAT(text, Not(HasSubstr("innerHTML"))) << file.name;
    if (!file.name.ends_with(".html")) continue;
    for (const char* forbidden : {"<script>", "<style", " style=", " onclick=", " onload=", "javascript:", "src=\"http",
                                  "href=\"http", "src=\"//", "href=\"//"}) {
      EXPECT_THAT(text, Not(HasSubstr(forbidden))) << file.name;
    }
  }
}

TEST(StaticFiles, ATagInTheRequestSavesTheBody) {
  const StaticFile file{"x.js", "text/javascript", "\"abc\"", "content"};
  for (const char* same : {"\"abc\"", "W/\"abc\"", "\"no\", \"abc\"", "\"no\",W/\"abc\" ,\"neither\"", "*"}) {
    const HttpResponse response = static_response(file, same);
    EXPECT_EQ(response.status, 304) << same;
    EXPECT_EQ(response.body, "") << same;
  }
  for (const char* other : {"", "\"abcd\"", "abc", "\"no\"", ",", "\"ab\",\"c\"", "W/"}) {
    const HttpResponse response = static_response(file, other);
    EXPECT_EQ(response.status, 200) << other;
    EXPECT_EQ(response.body, "content") << other;
  }
}

TEST_F(ServerTest, ThePageComesWithAPolicyThatAllowsThisServerOnly) {
  start();
  const std::string policy =
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  for (const StaticFile& file : static_files()) {
    const std::string name(file.name);
    const std::string path = name == "index.html" ? "/" : name == "dashboard.html" ? "/dashboard" : "/page/" + name;
    ClientResponse response = get(port(), path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_TRUE(response.body == file.bytes) << path;
    EXPECT_EQ(response.headers["content-type"], file.content_type) << path;
    EXPECT_TRUE(response.headers["content-security-policy"].starts_with(policy)) << path;
    EXPECT_EQ(response.headers["x-content-type-options"], "nosniff") << path;
    EXPECT_EQ(response.headers["referrer-policy"], "no-referrer") << path;
    EXPECT_EQ(response.headers["cache-control"], "no-cache") << path;
    EXPECT_EQ(response.headers["etag"], file.etag) << path;
  }
}

TEST_F(ServerTest, ThePageIsSentAgainOnlyWhenItChanged) {
  start();
  Client client(port());
  const std::string tag(file_named("index.html").etag);
  client.send(http_request("GET", "/", "", "If-None-Match: " + tag + "\r\n"));
  ClientResponse same = client.receive();
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.headers["etag"], tag);
  EXPECT_EQ(same.headers.count("content-length"), 0u);
  EXPECT_EQ(same.headers.count("content-type"), 0u);
  // The connection goes on, and the next answer is not mistaken for a body.
  client.send(http_request("GET", "/", "", "If-None-Match: \"of another version\"\r\n"));
  EXPECT_TRUE(client.receive().body == file_named("index.html").bytes);
}

TEST_F(ServerTest, HeadOfThePageIsItsHeadersAlone) {
  start();
  Client client(port());
  client.send(http_request("HEAD", "/dashboard"));
  ClientResponse head = client.receive(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers["content-length"], std::to_string(file_named("dashboard.html").bytes.size()));
  EXPECT_EQ(head.headers["etag"], file_named("dashboard.html").etag);
  client.send(http_request("GET", "/version"));
  EXPECT_EQ(client.receive().json().at("version"), "0.1.0");
}

TEST_F(ServerTest, OtherMethodsThanReadingThePageAreRefused) {
  start();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    Client client(port());
    client.send(http_request(method, "/dashboard"));
    ClientResponse response = client.receive();
    EXPECT_EQ(response.status, 405) << method;
    EXPECT_EQ(response.headers["allow"], "OPTIONS, GET, HEAD") << method;
  }
}

// Paths are compared, never joined to a folder's, so nothing leads out of it; and no other spelling leads in.
TEST_F(ServerTest, NothingButThePageLiesUnderItsPaths) {
  start();
  for (const char* path : {"/page", "/page/", "/page/../page/chat.js", "/page/./chat.js", "/page//chat.js", "//",
                           "/page/%63hat.js", "/page/..%2f..%2fetc%2fpasswd", "/page/../../../../etc/passwd",
                           "/page/chat.js/", "/page/chat.js%00", "/page/CHAT.JS", "/page/index.html", "/index.html",
                           "/dashboard/", "/page\\chat.js", "/page/chat.js;x", "/anything", "/anything/else"}) {
    EXPECT_EQ(get(port(), path).status, 404) << path;
  }
  EXPECT_EQ(get(port(), "/page/chat.js?v=1").status, 200);
}

TEST_F(ServerTest, ThePageNeedsNoKeyAndWhatItAsksForDoes) {
  start({.api_keys = {"secret"}});
  EXPECT_EQ(get(port(), "/").status, 200);
  EXPECT_EQ(get(port(), "/dashboard").status, 200);
  EXPECT_EQ(get(port(), "/page/chat.js").status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/page/", "/page/none.js", "/page/../metrics"}) {
    EXPECT_EQ(get(port(), path).status, 401) << path;
  }
  EXPECT_EQ(get(port(), "/metrics", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(ServerTest, WithoutThePageItsPathsAreNotThere) {
  start({.enable_page = false});
  for (const char* path : {"/", "/dashboard", "/page/chat.js"}) EXPECT_EQ(get(port(), path).status, 404) << path;
  EXPECT_EQ(get(port(), "/health").status, 200);
}

}  // namespace
}  // namespace quire::server
