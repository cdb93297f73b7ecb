#include "bench/load.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

namespace quire::bench {
namespace {

// An IPv6 address has brackets there.
std::string host_field(const Url& url) {
  const bool is_address = url.host.find(':') != std::string::npos;
  return (is_address ? "[" + url.host + "]" : url.host) + ":" + url.port;
}

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr size_t kPieceBytes = 16 * 1024;
constexpr size_t kMostOfErrorBody = 300;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Connection {
  explicit Connection(asio::io_context& context) : stream(context) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  bool used = false;  // has carried a request before
};

// One run of a load. Everything happens on the thread that runs the context.
class Run {
 public:
  Run(asio::io_context& context, const Load& load, tcp::resolver::results_type addresses,
      const std::function<void(int64_t)>& progress)
      : context_(context),
        load_(load),
        addresses_(std::move(addresses)),
        progress_(progress),
        outcomes_(load.requests.size()) {}

  void start() {
    start_ = Clock::now();
    const auto all = static_cast<int64_t>(load_.requests.size());
    const int64_t workers = std::min(all, load_.max_concurrency.value_or(all));
    for (int64_t i = 0; i < workers; ++i) asio::co_spawn(context_, work(), asio::detached);
  }
  LoadResult take_result() { return {.outcomes = std::move(outcomes_), .duration = last_end_}; }

 private:
  // Takes the requests that are due, one after the other.
  asio::awaitable<void> work() {
    while (next_ < load_.requests.size()) {
      const size_t index = next_++;
      co_await wait_until(load_.requests[index].send_at);
      RequestOutcome& outcome = outcomes_[index];
      co_await answer(load_.requests[index].body, outcome);
      last_end_ = seconds_since(start_);
      progress_(++done_);
    }
  }

  asio::awaitable<void> wait_until(double seconds) {
    const Clock::time_point due =
        start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (due <= Clock::now()) co_return;
    asio::steady_timer timer(context_, due);
    boost::system::error_code error;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }

  asio::awaitable<void> answer(const std::string& body, RequestOutcome& outcome) {
    const Clock::time_point begin = Clock::now();
    outcome.start = std::chrono::duration<double>(begin - start_).count();
    std::unique_ptr<Connection> connection = take_connection();
    bool sent_again = false;
    if (!co_await exchange(*connection, body, begin, outcome) && connection->used) {
      // The server closed it while it was idle; nobody's fault, but not hidden either.
      sent_again = true;
      connection = std::make_unique<Connection>(context_);
      outcome = RequestOutcome{.start = outcome.start};
      (void)co_await exchange(*connection, body, begin, outcome);
    }
    outcome.retried = sent_again;
    if (connection->stream.socket().is_open()) {
      connection->used = true;
      idle_.push_back(std::move(connection));
    }
  }

  std::unique_ptr<Connection> take_connection() {
    if (idle_.empty()) return std::make_unique<Connection>(context_);
    std::unique_ptr<Connection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  http::request<http::string_body> make_request(const std::string& body) const {
    http::request<http::string_body> request{http::verb::post, load_.server.url.path + load_.path, 11};
    request.set(http::field::host, host_field(load_.server.url));
    request.set(http::field::content_type, "application/json");
    request.set(http::field::accept, "text/event-stream");
    for (const auto& [name, value] : load_.server.headers) request.set(name, value);
    request.body() = body;
    request.prepare_payload();
    return request;
  }

  void expect_something(Connection& connection) const {
    connection.stream.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(load_.server.timeout_seconds)));
  }

  // One request and its answer over a connection, which stays open when it may be used again. False when it broke
  // before a byte of an answer came; outcome says how in any case.
  asio::awaitable<bool> exchange(Connection& connection, const std::string& body, Clock::time_point begin,
                                 RequestOutcome& outcome) {
    boost::system::error_code error;
    outcome.success = false;
    expect_something(connection);
    if (!connection.used) {
      co_await connection.stream.async_connect(addresses_, asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        fail(connection, error, FailureKind::kConnection, outcome);
        co_return false;
      }
      boost::system::error_code ignored;
      connection.stream.socket().set_option(tcp::no_delay(true), ignored);
    }
    http::request<http::string_body> request = make_request(body);
    co_await http::async_write(connection.stream, request, asio::redirect_error(asio::use_awaitable, error));
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    // Also after a failed write: a server that refuses early has said why.
    const bool written = !error;
    boost::system::error_code read_error;
    co_await http::async_read_header(connection.stream, connection.buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, read_error));
    if (read_error) {
      const bool is_bad_http = read_error.category() == make_error_code(http::error::bad_version).category() &&
                               read_error != http::error::end_of_stream && read_error != http::error::partial_message;
      fail(connection, written ? read_error : error, is_bad_http ? FailureKind::kMalformed : FailureKind::kConnection,
           outcome);
      co_return is_bad_http || parser.got_some() || read_error == beast::error::timeout;
    }
    co_await read_answer(connection, parser, begin, outcome);
    co_return true;
  }

  asio::awaitable<void> read_answer(Connection& connection, http::response_parser<http::buffer_body>& parser,
                                    Clock::time_point begin, RequestOutcome& outcome) {
    const bool is_ok = parser.get().result() == http::status::ok;
    AnswerReader reader(load_.is_chat);
    std::string error_body;
    std::vector<char> piece(kPieceBytes);
    boost::system::error_code error;
    while (!parser.is_done() && !error) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      parser.get().body().more = true;
      expect_something(connection);
      co_await http::async_read_some(connection.stream, connection.buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
      if (error == http::error::need_buffer) error = {};
      const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
      if (is_ok) {
        reader.feed(bytes, seconds_since(begin));
      } else if (error_body.size() < kMostOfErrorBody) {
        error_body += bytes.substr(0, kMostOfErrorBody - error_body.size());
      }
    }
    if (!is_ok) {
      outcome.failure = FailureKind::kStatus;
      outcome.error = "status " + std::to_string(parser.get().result_int()) + ": " + error_body;
    } else if (error == beast::error::timeout) {
      outcome.failure = FailureKind::kTimeout;
      outcome.error = "nothing came for too long";
    } else {
      reader.finish(static_cast<bool>(error), outcome);
      if (!outcome.success && error && !reader.failed()) outcome.error += " (" + error.message() + ")";
    }
    if (error || !parser.is_done() || !parser.keep_alive()) close(connection);
  }

  static void fail(Connection& connection, const boost::system::error_code& error, FailureKind kind,
                   RequestOutcome& outcome) {
    const bool timeout = error == beast::error::timeout;
    outcome.failure = timeout ? FailureKind::kTimeout : kind;
    outcome.error = error.message();
    close(connection);
  }
  static void close(Connection& connection) {
    boost::system::error_code ignored;
    connection.stream.socket().close(ignored);
  }

  asio::io_context& context_;
  const Load& load_;
  tcp::resolver::results_type addresses_;
  const std::function<void(int64_t)>& progress_;
  std::vector<RequestOutcome> outcomes_;
  std::vector<std::unique_ptr<Connection>> idle_;
  Clock::time_point start_;
  size_t next_ = 0;
  int64_t done_ = 0;
  double last_end_ = 0;
};

Result<tcp::resolver::results_type> resolve(asio::io_context& context, const Url& url) {
  tcp::resolver resolver(context);
  boost::system::error_code error;
  auto addresses = resolver.resolve(url.host, url.port, error);
  if (error) return not_found("--base-url: \"{}\" has no address: {}", url.host, error.message());
  return addresses;
}

}  // namespace

Result<LoadResult> put_load(const Load& load, const std::function<void(int64_t)>& progress) {
  asio::io_context context(1);
  QUIRE_ASSIGN_OR_RETURN(tcp::resolver::results_type addresses, resolve(context, load.server.url));
  Run run(context, load, std::move(addresses), progress);
  run.start();
  context.run();
  return run.take_result();
}

Result<std::string> get(const ServerAddress& server, const std::string& path, std::chrono::milliseconds timeout) {
  asio::io_context context(1);
  QUIRE_ASSIGN_OR_RETURN(const tcp::resolver::results_type addresses, resolve(context, server.url));
  beast::tcp_stream stream(context);
  http::request<http::empty_body> request{http::verb::get, server.url.path + path, 11};
  request.set(http::field::host, host_field(server.url));
  request.set(http::field::connection, "close");
  for (const auto& [name, value] : server.headers) request.set(name, value);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  boost::system::error_code error;
  stream.expires_after(timeout);
  stream.async_connect(addresses, [&](boost::system::error_code failed, const tcp::endpoint& /*peer*/) {
    if ((error = failed)) return;
    http::async_write(stream, request, [&](boost::system::error_code not_written, size_t /*bytes*/) {
      if ((error = not_written)) return;
      http::async_read(stream, buffer, response, [&](boost::system::error_code not_read, size_t) { error = not_read; });
    });
  });
  context.run();
  if (error) return unavailable("http://{}:{}{}: {}", server.url.host, server.url.port, path, error.message());
  if (response.result() != http::status::ok) {
    return unavailable("http://{}:{}{}: status {}: {}", server.url.host, server.url.port, path, response.result_int(),
                       response.body().substr(0, kMostOfErrorBody));
  }
  return std::move(response.body());
}

}  // namespace quire::bench
