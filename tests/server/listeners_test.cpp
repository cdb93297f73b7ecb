// Where the server listens: Unix sockets, TLS, pages of other origins, and the listener for operators.
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>

#include "base/log.h"
#include "server/cors.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using boost::system::error_code;
using testing::HasSubstr;
using testing::Not;

std::string bearer_header(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

class ListenersTest : public ServerTest {
 protected:
  std::string file(const char* name) const { return testing::TempDir() + name + std::to_string(::getpid()); }

  Status refusal(ServerConfig config) {
    config.served_model_names = {"alphabet"};
    config.host = "127.0.0.1";
    config.port = 0;
    const auto server = Server::start(config, *engine_);
    return server.ok() ? Status() : server.status();
  }
};

// ------------------------------------------------------------------------------------------------ Unix sockets

ClientResponse ask(Client& client, std::string_view method, std::string_view path, std::string_view body = "") {
  client.send(http_request(method, path, body));
  return client.receive();
}

TEST_F(ListenersTest, AUnixSocketServesItsOwnerAloneAndGoesWithTheServer) {
  const std::string path = file("socket");
  start({.uds = path});
  struct stat found {};
  ASSERT_EQ(::lstat(path.c_str(), &found), 0);
  EXPECT_TRUE(S_ISSOCK(found.st_mode));
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_EQ(server_->port(), 0);
  Client client(path);
  const auto answer = ask(client, "POST", "/v1/completions", R"({"prompt":"abc","max_tokens":4})");
  EXPECT_EQ(text_of(answer.json().at("choices").at(0).at("text")), letters(3, 4)) << answer.body;
  EXPECT_THAT(refusal({.uds = path}).message(), HasSubstr("Another process listens"));
  EXPECT_EQ(ask(client, "GET", "/health").status, 200);
  server_.reset();
  EXPECT_NE(::lstat(path.c_str(), &found), 0);
}

TEST_F(ListenersTest, AStaleUnixSocketIsReplacedAndAnythingElseIsNot) {
  const std::string path = file("stale");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(left);
  start({.uds = path, .uds_mode = 0660});
  Client client(path);
  EXPECT_EQ(ask(client, "GET", "/health").status, 200);
  struct stat found {};
  ASSERT_EQ(::lstat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0660u);

  const std::string plain = file("plain");
  std::ofstream(plain) << "mine";
  EXPECT_THAT(refusal({.uds = plain}).message(), HasSubstr("is no socket"));
  EXPECT_EQ(::unlink(plain.c_str()), 0) << "it is still there";
  EXPECT_THAT(refusal({.uds = std::string(200, 'x')}).message(), HasSubstr("at most"));
}

TEST_F(ListenersTest, ASocketThatAnotherPutInItsPlaceIsLeftAlone) {
  const std::string path = file("taken");
  start({.uds = path});
  ASSERT_EQ(::unlink(path.c_str()), 0);
  std::ofstream(path) << "another's";
  server_.reset();
  EXPECT_EQ(::unlink(path.c_str()), 0);
}

// ----------------------------------------------------------------------------------------------------------- TLS

// A certificate that signs itself, with its key, in one PEM file.
void write_certificate(const std::string& path, const char* name) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const std::unique_ptr<FILE, decltype(&std::fclose)> out(std::fopen(path.c_str(), "w"), std::fclose);
  ASSERT_EQ(PEM_write_X509(out.get(), certificate.get()), 1);
  ASSERT_EQ(PEM_write_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
}

struct TlsAnswer {
  error_code handshake;
  error_code end;
  std::string text;
};

// Connects with the certificate of `own` (none: empty), sends `bytes` and reads to the end.
TlsAnswer over_tls(uint16_t port, const std::string& trusted, std::string_view bytes, const std::string& own = "",
                   int highest = TLS1_3_VERSION) {
  ssl::context context(ssl::context::tls_client);
  SSL_CTX_set_max_proto_version(context.native_handle(), highest);
  context.load_verify_file(trusted);
  context.set_verify_mode(ssl::verify_peer);
  if (!own.empty()) {
    context.use_certificate_chain_file(own);
    context.use_private_key_file(own, ssl::context::pem);
  }
  asio::io_context io;
  ssl::stream<asio::ip::tcp::socket> stream(io, context);
  stream.lowest_layer().connect({asio::ip::address_v4::loopback(), port});
  TlsAnswer answer;
  stream.handshake(ssl::stream_base::client, answer.handshake);
  if (answer.handshake) return answer;
  asio::write(stream, asio::buffer(bytes), answer.end);
  asio::read(stream, asio::dynamic_buffer(answer.text), answer.end);
  return answer;
}

std::string last_request(std::string_view method, std::string_view path, std::string_view body = "") {
  return http_request(method, path, body, "Connection: close\r\n");
}

class TlsTest : public ListenersTest {
 protected:
  void SetUp() override {
    write_certificate(own_, "server");
    write_certificate(client_, "client");
  }
  void TearDown() override {
    ::unlink(own_.c_str());
    ::unlink(client_.c_str());
  }
  const std::string own_ = file("server.pem");
  const std::string client_ = file("client.pem");
};

TEST_F(TlsTest, WholeAndStreamedAnswersComeThroughAndEndInGoodOrder) {
  start({.tls = {.certfile = own_}});
  const auto whole =
      over_tls(port(), own_, last_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":200})"));
  EXPECT_FALSE(whole.handshake) << whole.handshake.message();
  EXPECT_EQ(whole.end, asio::error::eof) << "closed in TLS before the connection: " << whole.end.message();
  EXPECT_THAT(whole.text, HasSubstr(letters(3, 200)));
  const auto stream = over_tls(
      port(), own_, last_request("POST", "/v1/completions", R"({"prompt":"abc","max_tokens":9,"stream":true})"), "",
      TLS1_2_VERSION);
  EXPECT_EQ(stream.end, asio::error::eof);
  EXPECT_THAT(stream.text, HasSubstr("data: [DONE]"));
  const std::string large = R"({"prompt":")" + std::string(3 << 20, 'x') + "\"}";
  EXPECT_THAT(over_tls(port(), own_, last_request("POST", "/v1/completions", large)).text,
              HasSubstr("maximum context length"));
}

TEST_F(TlsTest, OldVersionsPlainBytesAndSilenceEndTheConnection) {
  start({.tls = {.certfile = own_}, .header_timeout = std::chrono::milliseconds(100)});
  EXPECT_TRUE(over_tls(port(), own_, "", "", TLS1_1_VERSION).handshake);
  Client plain(port());
  plain.send(http_request("GET", "/health"));
  EXPECT_TRUE(plain.closed_by_server());
  Client silent(port());
  EXPECT_TRUE(silent.closed_by_server());
  Client slow(port());
  slow.send(std::string("\x16\x03\x01\x02\x00\x01", 6));  // a hello that never goes on
  EXPECT_TRUE(slow.closed_by_server());
  EXPECT_THAT(over_tls(port(), own_, last_request("GET", "/health")).text, HasSubstr("200 OK"));
}

TEST_F(TlsTest, ClientsShowCertificatesWhereTheyAreAskedTo) {
  start({.tls = {.certfile = own_, .ca_certs = client_, .cert_reqs = 2}});
  const std::string request = last_request("GET", "/health");
  EXPECT_THAT(over_tls(port(), own_, request, client_).text, HasSubstr("200 OK"));
  EXPECT_THAT(over_tls(port(), own_, request).text, Not(HasSubstr("200")));
  EXPECT_THAT(over_tls(port(), own_, request, own_).text, Not(HasSubstr("200"))) << "not one that is believed";
  server_.reset();
  start({.tls = {.certfile = own_, .ca_certs = client_, .cert_reqs = 1}});
  EXPECT_THAT(over_tls(port(), own_, request).text, HasSubstr("200 OK"));
  EXPECT_THAT(over_tls(port(), own_, request, own_).text, Not(HasSubstr("200")));
}

TEST_F(TlsTest, AFileThatDoesNotFitIsToldAtStart) {
  start();
  const std::string empty = file("empty.pem");
  std::ofstream(empty) << "nothing\n";
  EXPECT_THAT(refusal({.tls = {.certfile = "/nowhere.pem"}}).message(), HasSubstr("--ssl-certfile /nowhere.pem"));
  EXPECT_THAT(refusal({.tls = {.certfile = empty}}).message(), HasSubstr("--ssl-certfile"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .keyfile = empty}}).message(), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .keyfile = client_}}).message(), HasSubstr("--ssl-keyfile"));
  EXPECT_THAT(refusal({.tls = {.keyfile = own_}}).message(), HasSubstr("need --ssl-certfile"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .ca_certs = empty, .cert_reqs = 2}}).message(),
              HasSubstr("--ssl-ca-certs"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .cert_reqs = 2}}).message(), HasSubstr("belong together"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .ca_certs = client_}}).message(), HasSubstr("belong together"));
  EXPECT_THAT(refusal({.tls = {.certfile = own_, .ca_certs = client_, .cert_reqs = 3}}).message(),
              HasSubstr("--ssl-cert-reqs is 3"));
  ::unlink(empty.c_str());
}

// ---------------------------------------------------------------------------------------------------------- CORS

constexpr const char* kPage = "Origin: https://chat.example\r\n";
constexpr const char* kAsks =
    "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n"
    "Access-Control-Request-Headers: authorization, content-type\r\n";

ClientResponse preflight(uint16_t port, std::string_view fields) {
  Client client(port);
  client.send(http_request("OPTIONS", "/v1/chat/completions", "", fields));
  return client.receive();
}

TEST_F(ListenersTest, WithoutOriginsNoAnswerMentionsThem) {
  start({.api_keys = {"k"}});
  for (const auto& response : {get(port(), "/health", kPage), preflight(port(), kAsks)}) {
    for (const auto& [name, value] : response.headers) EXPECT_THAT(name, Not(HasSubstr("access-control")));
  }
}

TEST_F(ListenersTest, ANamedOriginsPageMayAskWithoutAKeyWhetherItMay) {
  start({.api_keys = {"k"}, .cors = {.origins = {"https://chat.example", "https://b.example"}, .credentials = true}});
  const auto asked = preflight(port(), kAsks);
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(asked.headers.at("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(asked.headers.at("access-control-allow-credentials"), "true");
  EXPECT_THAT(asked.headers.at("access-control-allow-methods"), HasSubstr("POST"));
  for (const auto& response : {get(port(), "/v1/models", kPage), get(port(), "/v1/models", kPage + bearer_header("k")),
                               get(port(), "/none", kPage)}) {
    EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://chat.example") << response.status;
    EXPECT_EQ(response.headers.at("vary"), "Origin");
  }
  const auto stream = post(port(), "/v1/completions", R"({"prompt":"abc","max_tokens":2,"stream":true})",
                           "Origin: https://b.example\r\n" + bearer_header("k"));
  EXPECT_EQ(stream.headers.at("access-control-allow-origin"), "https://b.example");
  const auto other = get(port(), "/health", "Origin: https://evil.example\r\n");
  EXPECT_EQ(other.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(other.headers.at("vary"), "Origin");
  EXPECT_EQ(preflight(port(), "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n").status, 400);
  EXPECT_EQ(preflight(port(), kPage).status, 204) << "an OPTIONS of the old kind";
}

TEST_F(ListenersTest, MethodsAndHeadersCanBeNamedAndOriginsBeAll) {
  start({.cors = {.origins = {"*"}, .methods = {"GET", "POST"}, .headers = {"authorization"}}});
  const auto asked = preflight(port(), kAsks);
  EXPECT_EQ(asked.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(asked.headers.at("access-control-allow-methods"), "GET, POST");
  EXPECT_EQ(asked.headers.at("access-control-allow-headers"), "authorization");
  EXPECT_EQ(asked.headers.count("access-control-allow-credentials"), 0u);
  EXPECT_EQ(asked.headers.count("vary"), 0u);
}

TEST(CorsOptions, WhatIsUnsafeOrNoOriginIsRefused) {
  EXPECT_TRUE(check(CorsOptions{}).ok());
  EXPECT_TRUE(check(CorsOptions{.origins = {"*", "http://localhost:3000", "http://[::1]:80"}}).ok());
  for (const CorsOptions& bad :
       {CorsOptions{.origins = {"*"}, .credentials = true}, CorsOptions{.credentials = true},
        CorsOptions{.origins = {"chat.example"}}, CorsOptions{.origins = {"https://chat.example/"}},
        CorsOptions{.origins = {"https://*.example"}}, CorsOptions{.origins = {"https://a\r\nb"}},
        CorsOptions{.origins = {"*"}, .methods = {"GET POST"}}, CorsOptions{.origins = {"*"}, .headers = {"a: b"}}}) {
    EXPECT_FALSE(check(bad).ok());
  }
}

// ------------------------------------------------------------------------------------------- the operators' listener

TEST_F(ListenersTest, OperatorsHaveAListenerOfTheirOwn) {
  start({.api_keys = {"k"}, .admin = {.port = 0}});
  const uint16_t admin = server_->admin_port();
  ASSERT_NE(admin, 0);
  EXPECT_EQ(post(admin, "/reset_prefix_cache", "").status, 200);
  EXPECT_EQ(get(admin, "/admin/flight_recorder").status, 200);
  EXPECT_EQ(get(admin, "/admin/requests/nobody").status, 404);
  EXPECT_THAT(get(admin, "/metrics").body, HasSubstr("vllm:num_requests_running"));
  EXPECT_EQ(get(admin, "/health").status, 200);
  EXPECT_EQ(post(admin, "/v1/completions", "{}").status, 404);
  for (const char* path : {"/admin/flight_recorder", "/admin/log_level", "/reset_prefix_cache"}) {
    EXPECT_EQ(get(port(), path, bearer_header("k")).status, 404) << path << " is not where clients are";
  }
  EXPECT_EQ(post(admin, "/reset_prefix_cache", "", "Origin: https://evil.example\r\n").status, 403);
}

TEST_F(ListenersTest, WithoutBeingAskedForThereIsNone) {
  start();
  EXPECT_EQ(server_->admin_port(), 0);
}

TEST_F(ListenersTest, ItsKeysAreItsOwn) {
  start({.api_keys = {"client"}, .admin = {.port = 0, .api_keys = {"operator"}}});
  const uint16_t admin = server_->admin_port();
  EXPECT_EQ(get(admin, "/admin/log_level").status, 401);
  EXPECT_EQ(get(admin, "/admin/log_level", bearer_header("client")).status, 401);
  EXPECT_EQ(get(admin, "/admin/log_level", bearer_header("operator")).status, 200);
  EXPECT_EQ(get(port(), "/v1/models", bearer_header("operator")).status, 401);
}

TEST_F(ListenersTest, TheLogLevelIsShownAndChanged) {
  const std::string before(log_level());
  const std::string path = file("admin");
  start({.admin = {.uds = path}});
  Client client(path);
  EXPECT_EQ(ask(client, "PUT", "/admin/log_level", R"({"level":"error"})").status, 200);
  EXPECT_EQ(log_level(), "error");
  EXPECT_EQ(ask(client, "GET", "/admin/log_level").json().at("level"), "error");
  for (const char* bad : {"", "{}", R"({"level":"loud"})", R"({"level":1})", R"({"level":"info","x":1})", "[]"}) {
    EXPECT_EQ(ask(client, "PUT", "/admin/log_level", bad).status, 400) << bad;
  }
  EXPECT_EQ(log_level(), "error");
  EXPECT_EQ(ask(client, "POST", "/admin/log_level", "{}").status, 405);
  EXPECT_TRUE(set_log_level(before));
}

TEST_F(ListenersTest, ItIsNotOpenedToTheWorldWithoutAKey) {
  start();
  EXPECT_THAT(refusal({.admin = {.host = "0.0.0.0", .port = 0}}).message(), HasSubstr("--admin-api-key"));
  EXPECT_TRUE(refusal({.admin = {.host = "0.0.0.0", .port = 0, .api_keys = {"k"}}}).ok());
  EXPECT_THAT(refusal({.admin = {.port = 0, .uds = file("both")}}).message(), HasSubstr("not both"));
}

}  // namespace
}  // namespace quire::server
