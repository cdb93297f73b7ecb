// The bytes of one connection: TCP or a Unix socket, plain or inside TLS. Used on the socket's strand only.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace quire::server {

class Transport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // tls: nullptr for plain bytes; else it outlives this.
  Transport(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  Socket::executor_type get_executor() { return socket_.get_executor(); }
  bool secure() const { return tls_.has_value(); }

  // REQUIRES: secure(), and nothing read or written before.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }

  // One of each at a time.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

  // Tells the client that nothing more will come, and goes on reading. `keep_alive` lives until that is told.
  template <typename KeepAlive>
  void end_sending(KeepAlive keep_alive) {
    if (tls_) {
      tls_->async_shutdown([keep_alive = std::move(keep_alive)](boost::system::error_code) {});
    } else {
      boost::system::error_code ignored;
      socket_.shutdown(Socket::shutdown_send, ignored);
    }
  }
  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

// "192.0.2.1:5000", "[2001:db8::1]:5000", or "unix".
std::string peer_name(const Transport::Socket& socket);

}  // namespace quire::server
