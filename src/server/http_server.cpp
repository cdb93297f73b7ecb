#include "server/http_server.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/strand.hpp>

#include "base/log.h"
#include "server/http_connection.h"
#include "server/tls.h"
#include "server/unix_socket.h"

namespace quire::server {
namespace asio = boost::asio;
using boost::asio::ip::tcp;
using boost::system::error_code;
using Stream = boost::asio::generic::stream_protocol;
using Socket = Transport::Socket;

bool is_loopback(const std::string& host) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  return error ? host == "localhost" : address.is_loopback();
}

struct HttpServer::State {
  State(HttpOptions given, HttpHandler& given_handler)
      : options(std::move(given)),
        handler(given_handler),
        registry(options),
        io(options.io_threads),
        work(io.get_executor()),
        strand(asio::make_strand(io)),
        acceptor(strand),
        retry(strand) {}

  Status listen();
  Status listen_on_port();
  Status listen_on_file();
  void run();
  void accept();
  void accepted(error_code error, Socket socket);
  void admit(Socket socket);
  void stop_accepting();

  HttpOptions options;
  HttpHandler& handler;
  std::unique_ptr<asio::ssl::context> tls;  // nullptr: plain
  UnixSocketFile socket_file;
  ConnectionRegistry registry;  // outlives io: handlers that io destroys may hold connections
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::strand<asio::io_context::executor_type> strand;  // of the acceptor
  asio::basic_socket_acceptor<Stream> acceptor;
  asio::steady_timer retry;
  uint16_t port = 0;
  uint64_t next_connection = 0;
  std::vector<std::thread> threads;
};

Status HttpServer::State::listen() {
  if (options.tls.on()) {
    QUIRE_ASSIGN_OR_RETURN(tls, make_tls_context(options.tls));
  }
  return options.uds.empty() ? listen_on_port() : listen_on_file();
}

Status HttpServer::State::listen_on_port() {
  error_code error;
  tcp::resolver resolver(io);
  const auto endpoints = resolver.resolve(options.host, std::to_string(options.port),
                                          tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || endpoints.empty()) {
    return invalid_argument("The host to listen on, {}, is neither an address of this machine nor a known name: {}.",
                            options.host, error.message())
        .with_param("host");
  }
  const tcp::endpoint endpoint = endpoints.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return unavailable("Cannot listen on {} port {}: {}. Choose another with --host and --port.", options.host,
                       options.port, error.message());
  }
  tcp::endpoint bound;
  const auto local = acceptor.local_endpoint(error);
  std::memcpy(bound.data(), local.data(), std::min(local.size(), bound.capacity()));
  port = bound.port();
  return {};
}

// Nobody can connect before listen(), so that the file has its permissions before they matter.
Status HttpServer::State::listen_on_file() {
  QUIRE_RETURN_IF_ERROR(remove_stale_socket(options.uds));
  error_code error;
  acceptor.open(asio::local::stream_protocol(), error);
  if (!error) acceptor.bind(asio::local::stream_protocol::endpoint(options.uds), error);
  if (error) return unavailable("Cannot listen on {}: {}.", options.uds, error.message());
  QUIRE_RETURN_IF_ERROR(socket_file.adopt(options.uds, options.uds_mode));
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return unavailable("Cannot listen on {}: {}.", options.uds, error.message());
  return {};
}

// Connections catch what is thrown on their own strands; what is left is the ends of connections and the acceptor.
void HttpServer::State::run() {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& error) {
      log_error("the HTTP server: {}", error.what());
    }
  }
}

void HttpServer::State::accept() {
  acceptor.async_accept(asio::make_strand(io),
                        [this](error_code error, Socket socket) { accepted(error, std::move(socket)); });
}

void HttpServer::State::accepted(error_code error, Socket socket) {
  if (!acceptor.is_open()) return;
  if (error) {  // out of descriptors, most likely: wait for some to come back
    retry.expires_after(std::chrono::milliseconds(100));
    retry.async_wait([this](error_code) {
      if (acceptor.is_open()) accept();
    });
    return;
  }
  try {
    admit(std::move(socket));
  } catch (const std::exception& failure) {  // no memory: one connection less, and on with the next
    log_error("a connection was not taken: {}", failure.what());
  }
  accept();
}

// Those past the limit are told so, as long as there are no more of them than of the others: then they are dropped.
void HttpServer::State::admit(Socket socket) {
  const size_t open = registry.size();
  if (open >= 2 * options.max_connections) return;
  error_code ignored;
  if (options.uds.empty()) socket.set_option(tcp::no_delay(true), ignored);
  const uint64_t id = next_connection++;
  const auto connection = std::make_shared<Connection>(std::move(socket), tls.get(), options, handler, registry, id);
  registry.add(id, connection);
  if (open >= options.max_connections) {
    connection->refuse();
  } else {
    connection->start();
  }
}

// Returns when it is done, on the acceptor's strand: no connection is born after that, so whoever goes over the
// registry next misses none. Not from an I/O thread.
void HttpServer::State::stop_accepting() {
  const auto closed = std::make_shared<std::promise<void>>();  // shared: set_value may outlast the wait
  asio::post(strand, [this, closed] {
    error_code ignored;
    acceptor.close(ignored);
    retry.cancel();
    closed->set_value();
  });
  closed->get_future().wait();
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler& handler) {
  if (options.io_threads < 1)
    return invalid_argument("The server needs at least one I/O thread, got {}.", options.io_threads);
  auto state = std::make_unique<State>(std::move(options), handler);
  QUIRE_RETURN_IF_ERROR(state->listen());
  asio::post(state->strand, [raw = state.get()] { raw->accept(); });
  for (int i = 0; i < state->options.io_threads; ++i) {
    state->threads.emplace_back([raw = state.get()] { raw->run(); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  return state_->port;
}
int64_t HttpServer::num_connections() const {
  return static_cast<int64_t>(state_->registry.size());
}

void HttpServer::drain(std::chrono::milliseconds deadline, std::chrono::milliseconds grace) {
  if (state_->threads.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  ConnectionRegistry& registry = state_->registry;
  registry.draining = true;
  state_->stop_accepting();
  registry.for_each([](Connection& connection) { connection.drain(); });
  if (registry.wait_empty(now + deadline)) return;
  registry.for_each([](Connection& connection) { connection.abort(); });
  registry.wait_empty(std::chrono::steady_clock::now() + grace);
}

void HttpServer::stop() {
  if (state_->threads.empty()) return;
  ConnectionRegistry& registry = state_->registry;
  registry.draining = true;
  state_->stop_accepting();
  registry.for_each([](Connection& connection) { connection.close(); });
  registry.wait_empty();
  state_->work.reset();
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
}

}  // namespace quire::server
