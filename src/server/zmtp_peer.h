// One connection of ZeroMQ's protocol, ZMTP 3.0 with the NULL mechanism, from the side that was connected to: the
// greeting, the handshake, then messages of frames in both directions. https://rfc.zeromq.org/spec/23
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

// Of one thread: the one that runs the socket's context.
class ZmtpPeer : public std::enable_shared_from_this<ZmtpPeer> {
 public:
  using Message = std::vector<std::string>;  // its frames
  struct Handlers {
    std::function<void(ZmtpPeer&, const Message&)> message;
    std::function<void(ZmtpPeer&)> closed;   // once
    std::function<void(ZmtpPeer&)> drained;  // all that was sent is written
  };

  static constexpr size_t kMostFrame = 64 << 10;  // bytes that a peer may send in a frame
  static constexpr size_t kMostFrames = 8;        // of a message
  static constexpr std::chrono::seconds kHandshakeTime{10};

  // socket_type: "PUB", "ROUTER".
  ZmtpPeer(boost::asio::ip::tcp::socket socket, std::string socket_type, Handlers handlers);

  void start();
  // False, and nothing is sent, when `most` messages wait already.
  bool send(std::shared_ptr<const std::string> wire, size_t most);
  void close();

  // A message as it goes over the wire.
  static std::string wire_of(const Message& message);

 private:
  void read(size_t bytes, void (ZmtpPeer::*then)(std::string_view));
  void take_greeting(std::string_view bytes);
  void take_flags(std::string_view bytes);
  void take_size(std::string_view bytes);
  void take_body(std::string_view bytes);
  void take_command(std::string_view body);
  void write_next();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer handshake_;  // who says nothing until then is closed
  const std::string socket_type_;
  Handlers handlers_;
  std::string buffer_;
  uint8_t flags_ = 0;
  bool ready_ = false;  // the peer's handshake has come
  bool writing_ = false;
  bool closed_ = false;
  Message message_;
  std::deque<std::shared_ptr<const std::string>> outgoing_;
};

}  // namespace quire::server
