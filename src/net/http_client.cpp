#include "net/http_client.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "base/check.h"

namespace quire::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kMostHeadBytes = 64 << 10;
constexpr int kMostInterimAnswers = 8;        // 1xx, before the real one
constexpr size_t kMostThrownAway = 64 << 10;  // of a body, so that a connection may be kept
constexpr size_t kMostConnections = 4;

using Clock = std::chrono::steady_clock;
using Request = http::request<http::string_body>;

std::string bare_host(const Url& url) {
  return url.host.front() == '[' ? url.host.substr(1, url.host.size() - 2) : url.host;
}

}  // namespace

struct TlsTrust::Context {
  // OpenSSL counts its uses from several threads itself.
  mutable ssl::context native{ssl::context::tls_client};
  bool of_system = false;
  std::once_flag read;
};

// The system's authorities are read when the first server is met that needs them: they take a tenth of a second.
const TlsTrust::Context& TlsTrust::context() const {
  std::call_once(context_->read, [this] {
    if (!context_->of_system) return;
    error_code ignored;
    // Where the OpenSSL in this binary would look, and where the distributions have theirs.
    context_->native.set_default_verify_paths(ignored);
    for (const char* bundle : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                               "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
      std::error_code missing;
      if (!std::filesystem::exists(bundle, missing)) continue;
      context_->native.load_verify_file(bundle, ignored);
      break;
    }
  });
  return *context_;
}

TlsTrust::TlsTrust() : context_(std::make_unique<Context>()) {}
TlsTrust::~TlsTrust() = default;

Result<std::shared_ptr<const TlsTrust>> TlsTrust::make(const std::string& ca_file, const std::string& ca_folder) {
  std::shared_ptr<TlsTrust> trust(new TlsTrust);
  ssl::context& context = trust->context_->native;
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  error_code error;
  context.set_verify_mode(ssl::verify_peer, error);
  if (error) return internal_error("TLS: {}", error.message());
  if (!ca_file.empty()) {
    context.load_verify_file(ca_file, error);
    if (error) return invalid_argument("the certificates in {} cannot be read: {}", ca_file, error.message());
  }
  if (!ca_folder.empty()) {
    context.add_verify_path(ca_folder, error);
    if (error) return invalid_argument("the certificates in {} cannot be read: {}", ca_folder, error.message());
  }
  trust->context_->of_system = ca_file.empty() && ca_folder.empty();
  return std::shared_ptr<const TlsTrust>(std::move(trust));
}

std::string_view HttpHead::field(std::string_view name) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) {
    return beast::iequals(beast::string_view(field.first.data(), field.first.size()),
                          beast::string_view(name.data(), name.size()));
  });
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

namespace {

using Parser = http::response_parser<http::buffer_body>;

// One connection to one server.
class Connection {
 public:
  Connection(Url server, const TlsTrust& trust, const HttpTimeouts& timeouts)
      : server_(std::move(server)), trust_(trust), timeouts_(timeouts) {}

  bool has_carried() const { return carried_; }
  // The server has not said that it will close, and nothing of an answer is left.
  bool is_reusable() const { return open_ && (!parser_ || (parser_->is_done() && parser_->keep_alive())); }
  bool is_done() const { return parser_ && parser_->is_done(); }

  Status open();
  Result<HttpHead> exchange(const Request& request);
  // No wait of what follows ends later.
  void end_by(std::optional<Clock::time_point> deadline) { deadline_ = deadline; }
  Result<size_t> read(char* data, size_t size);
  // False: there was more than is worth it.
  bool throw_away_rest();

 private:
  beast::tcp_stream& lowest() { return secure_ ? secure_->next_layer() : *plain_; }

  Clock::time_point end_of(std::chrono::milliseconds time) const {
    const Clock::time_point end = Clock::now() + time;
    return deadline_ ? std::min(*deadline_, end) : end;
  }
  // Runs one asynchronous operation to its end, or to the time's.
  template <typename Start>
  error_code run(Clock::time_point end, Start start) {
    error_code outcome = asio::error::operation_aborted;
    lowest().expires_at(end);
    start([&outcome](error_code error, auto&&...) { outcome = error; });
    io_.restart();
    io_.run();
    lowest().expires_never();
    return outcome;
  }
  template <typename Start>
  size_t run_piece(Clock::time_point end, error_code& error, Start start);
  size_t read_piece(Clock::time_point end, asio::mutable_buffer to, error_code& error);
  size_t write_piece(Clock::time_point end, const std::vector<asio::const_buffer>& from, error_code& error);

  // What HTTP is read from and written to, whichever stream it is: Beast's operations on both of them would be most of
  // what there is to compile here.
  class Wire {
   public:
    Wire(Connection& connection, std::chrono::milliseconds time)
        : connection_(connection), end_(connection.end_of(time)) {}
    template <typename Buffers>
    size_t read_some(const Buffers& buffers, error_code& error) {
      error = {};
      for (auto at = asio::buffer_sequence_begin(buffers); at != asio::buffer_sequence_end(buffers); ++at) {
        const asio::mutable_buffer buffer(*at);
        if (buffer.size() > 0) return connection_.read_piece(end_, buffer, error);
      }
      return 0;
    }
    template <typename Buffers>
    size_t write_some(const Buffers& buffers, error_code& error) {
      return connection_.write_piece(end_, {asio::buffer_sequence_begin(buffers), asio::buffer_sequence_end(buffers)},
                                     error);
    }
    // Beast asks for these too, and does not call them.
    template <typename Buffers>
    size_t read_some(const Buffers& buffers);
    template <typename Buffers>
    size_t write_some(const Buffers& buffers);

   private:
    Connection& connection_;
    Clock::time_point end_;
  };

  Status handshake();
  Status broken(error_code error, const char* doing) {
    open_ = false;
    if (error == beast::error::timeout) {
      return deadline_exceeded("{} did not answer in time ({})", server_.origin(), doing);
    }
    return unavailable("the connection to {} broke ({}): {}", server_.origin(), doing, error.message());
  }

  Url server_;
  const TlsTrust& trust_;
  HttpTimeouts timeouts_;
  asio::io_context io_{1};
  std::optional<beast::tcp_stream> plain_;
  std::optional<ssl::stream<beast::tcp_stream>> secure_;
  beast::flat_buffer buffer_{256 << 10};
  std::optional<Parser> parser_;
  std::optional<Clock::time_point> deadline_;
  bool open_ = false;
  bool carried_ = false;
};

Status Connection::open() {
  error_code error;
  // The system's resolver has time limits of its own.
  tcp::resolver resolver(io_);
  const auto addresses = resolver.resolve(bare_host(server_), std::to_string(server_.port), error);
  if (error == asio::error::host_not_found) {  // for sure: no second try
    return not_found("the host {} has no address. Is there a network?", server_.host);
  }
  if (error) return unavailable("the address of {} cannot be found: {}", server_.host, error.message());
  if (server_.https) {
    secure_.emplace(beast::tcp_stream(io_), trust_.context().native);
  } else {
    plain_.emplace(io_);
  }
  error = run(end_of(timeouts_.connect),
              [&](auto done) { lowest().async_connect(addresses, [done](error_code e, const auto&) { done(e); }); });
  if (error) return broken(error, "while connecting");
  lowest().socket().set_option(tcp::no_delay(true), error);
  if (secure_) QUIRE_RETURN_IF_ERROR(handshake());
  open_ = true;
  return {};
}

// The bytes that an operation has moved.
template <typename Start>
size_t Connection::run_piece(Clock::time_point end, error_code& error, Start start) {
  size_t count = 0;
  error = run(end, [&](auto done) {
    start([done, &count](error_code e, size_t bytes) {
      count = bytes;
      done(e);
    });
  });
  return count;
}

size_t Connection::read_piece(Clock::time_point end, asio::mutable_buffer to, error_code& error) {
  return run_piece(
      end, error, [&](auto done) { secure_ ? secure_->async_read_some(to, done) : plain_->async_read_some(to, done); });
}

size_t Connection::write_piece(Clock::time_point end, const std::vector<asio::const_buffer>& from, error_code& error) {
  return run_piece(end, error, [&](auto done) {
    secure_ ? secure_->async_write_some(from, done) : plain_->async_write_some(from, done);
  });
}

Status Connection::handshake() {
  const std::string host = bare_host(server_);
  error_code error;
  asio::ip::make_address(host, error);
  const bool is_name = static_cast<bool>(error);
  SSL* native = secure_->native_handle();
  if (is_name && SSL_set_tlsext_host_name(native, host.c_str()) != 1) return internal_error("TLS: no server name");
  secure_->set_verify_callback(ssl::host_name_verification(host), error);
  if (error) return internal_error("TLS: {}", error.message());
  error = run(end_of(timeouts_.connect), [&](auto done) { secure_->async_handshake(ssl::stream_base::client, done); });
  if (!error) return {};
  const long verified = SSL_get_verify_result(native);
  if (error == beast::error::timeout || error.category() != asio::error::get_ssl_category()) {
    return broken(error, "during the TLS handshake");
  }
  if (verified != X509_V_OK) {
    return invalid_argument(
        "the certificate of {} is not to be trusted: {}. SSL_CERT_FILE names other authorities (a PEM file)",
        server_.origin(), X509_verify_cert_error_string(verified));
  }
  const std::string reason = error.message();
  if (reason.find("certificate") != reason.npos) {  // the callback's verdict on the name leaves no other trace
    return invalid_argument("the certificate of {} is not to be trusted: it is not of that host ({})", server_.origin(),
                            reason);
  }
  return broken(error, "during the TLS handshake");
}

Result<HttpHead> Connection::exchange(const Request& request) {
  error_code error;
  Wire to_send(*this, timeouts_.head);
  http::write(to_send, request, error);
  if (error) return broken(error, "while sending");
  for (int interim = 0; interim < kMostInterimAnswers; ++interim) {
    parser_.emplace();
    parser_->header_limit(kMostHeadBytes);
    parser_->body_limit(boost::none);
    parser_->skip(request.method() == http::verb::head);
    Wire wire(*this, timeouts_.head);
    http::read_header(wire, buffer_, *parser_, error);
    if (error && error.category() == make_error_code(http::error::bad_line_ending).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      open_ = false;
      return data_loss("the answer of {} is no HTTP that can be read: {}", server_.origin(), error.message());
    }
    if (error) return broken(error, "while waiting for an answer");
    carried_ = true;
    if (parser_->get().result_int() >= 200) break;
  }
  HttpHead head;
  head.status = static_cast<int>(parser_->get().result_int());
  if (head.status < 200) return data_loss("{} sends nothing but interim answers", server_.origin());
  for (const auto& field : parser_->get()) {
    head.fields.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  if (const auto length = parser_->content_length()) {
    if (*length > static_cast<uint64_t>(INT64_MAX)) return data_loss("{}: a length beyond reason", server_.origin());
    head.content_length = static_cast<int64_t>(*length);
  }
  return head;
}

Result<size_t> Connection::read(char* data, size_t size) {
  while (!parser_->is_done()) {
    auto& body = parser_->get().body();
    body.data = data;
    body.size = size;
    body.more = true;
    error_code error;
    Wire wire(*this, timeouts_.read);
    http::read_some(wire, buffer_, *parser_, error);
    const size_t got = size - body.size;
    if (error && error != http::error::need_buffer) {
      if (error == http::error::partial_message || error == http::error::end_of_stream) {
        open_ = false;
        return unavailable("{} ended the connection in the middle of an answer", server_.origin());
      }
      return broken(error, "in the middle of an answer");
    }
    if (got > 0) return got;
  }
  return size_t{0};
}

bool Connection::throw_away_rest() {
  if (!open_) return false;  // broken: it would be waited for in vain
  if (!parser_) return true;
  char rest[4096];
  for (size_t thrown = 0; !parser_->is_done() && thrown <= kMostThrownAway;) {
    if (parser_->content_length_remaining().value_or(0) > kMostThrownAway) return false;
    const auto got = read(rest, sizeof rest);
    if (!got.ok()) return false;
    thrown += *got;
  }
  return is_reusable();
}

}  // namespace

struct HttpClient::Impl {
  std::shared_ptr<const TlsTrust> trust;
  HttpTimeouts timeouts;
  std::map<std::string, std::unique_ptr<Connection>> connections;  // by origin
  Connection* current = nullptr;
};

HttpClient::HttpClient(std::shared_ptr<const TlsTrust> trust, HttpTimeouts timeouts) : impl_(std::make_unique<Impl>()) {
  impl_->trust = std::move(trust);
  impl_->timeouts = timeouts;
}
HttpClient::~HttpClient() = default;

Result<HttpHead> HttpClient::send(std::string_view method, const Url& url, const HttpFields& fields,
                                  std::string_view body) {
  const http::verb verb = http::string_to_verb(beast::string_view(method.data(), method.size()));
  QUIRE_CHECK(verb == http::verb::get || verb == http::verb::head || verb == http::verb::post);
  Request request(verb, beast::string_view(url.target.data(), url.target.size()), 11);
  request.set(http::field::host, url.origin().substr(url.https ? 8 : 7));
  request.set(http::field::accept_encoding, "identity");  // offsets and sizes are those of the file itself
  for (const auto& [name, value] : fields) request.set(name, value);
  if (verb == http::verb::post) {
    request.body() = body;
    request.content_length(body.size());
  }
  std::optional<Clock::time_point> deadline;
  if (impl_->timeouts.whole.count() > 0) deadline = Clock::now() + impl_->timeouts.whole;

  auto& connections = impl_->connections;
  std::erase_if(connections, [](const auto& entry) { return !entry.second->throw_away_rest(); });
  if (connections.size() >= kMostConnections && !connections.contains(url.origin())) connections.clear();
  for (int attempt = 0;; ++attempt) {
    auto& connection = connections[url.origin()];
    const bool kept = connection != nullptr;
    if (!kept) {
      connection = std::make_unique<Connection>(url, *impl_->trust, impl_->timeouts);
      connection->end_by(deadline);
      if (const Status status = connection->open(); !status.ok()) {
        connections.erase(url.origin());
        return status;
      }
    }
    connection->end_by(deadline);
    impl_->current = connection.get();
    auto head = connection->exchange(request);
    if (head.ok()) return head;
    connections.erase(url.origin());
    impl_->current = nullptr;
    // A kept connection may have been closed while it was idle: nobody's fault.
    if (!kept || attempt > 0 || head.status().code() != StatusCode::kUnavailable) return head;
  }
}

Result<size_t> HttpClient::read(char* data, size_t size) {
  QUIRE_CHECK(impl_->current != nullptr);
  return impl_->current->read(data, size);
}

Result<std::string> HttpClient::read_all(size_t most_bytes) {
  std::string all;
  char part[16 << 10];
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const size_t got, read(part, sizeof part));
    if (got == 0) return all;
    if (all.size() + got > most_bytes) return resource_exhausted("an answer has more than {} bytes", most_bytes);
    all.append(part, got);
  }
}

}  // namespace quire::net
