#include "server/zmtp_peer.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace quire::server {
namespace {

constexpr size_t kGreetingBytes = 64;
constexpr uint8_t kMoreFlag = 1;
constexpr uint8_t kLongFlag = 2;
constexpr uint8_t kCommandFlag = 4;

std::string greeting() {
  std::string bytes(kGreetingBytes, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = 3;  // version 3.0: then subscriptions come as messages
  bytes.replace(12, 4, "NULL");
  return bytes;
}

void append_frame(uint8_t flags, std::string_view body, std::string& wire) {
  if (body.size() < 256) {
    wire.push_back(static_cast<char>(flags));
    wire.push_back(static_cast<char>(body.size()));
  } else {
    wire.push_back(static_cast<char>(flags | kLongFlag));
    for (int shift = 56; shift >= 0; shift -= 8) wire.push_back(static_cast<char>(uint64_t{body.size()} >> shift));
  }
  wire.append(body);
}

std::string ready_command(const std::string& socket_type) {
  std::string body = "\x05READY";
  const std::string name = "Socket-Type";
  body.push_back(static_cast<char>(name.size()));
  body += name;
  body.append(3, '\0');
  body.push_back(static_cast<char>(socket_type.size()));
  body += socket_type;
  std::string wire;
  append_frame(kCommandFlag, body, wire);
  return wire;
}

// A peer whose host went away without a word is never written to where it asks for nothing.
void find_out_who_is_gone(boost::asio::ip::tcp::socket& socket) {
  using boost::asio::detail::socket_option::integer;
  boost::system::error_code ignored;
  socket.set_option(boost::asio::socket_base::keep_alive(true), ignored);
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPIDLE>(60), ignored);   // seconds of silence
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPINTVL>(20), ignored);  // between asking again
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPCNT>(3), ignored);
}

}  // namespace

ZmtpPeer::ZmtpPeer(boost::asio::ip::tcp::socket socket, std::string socket_type, Handlers handlers)
    : socket_(std::move(socket)),
      handshake_(socket_.get_executor()),
      socket_type_(std::move(socket_type)),
      handlers_(std::move(handlers)) {}

std::string ZmtpPeer::wire_of(const Message& message) {
  std::string wire;
  for (size_t i = 0; i < message.size(); ++i) append_frame(i + 1 < message.size() ? kMoreFlag : 0, message[i], wire);
  return wire;
}

void ZmtpPeer::start() {
  find_out_who_is_gone(socket_);
  handshake_.expires_after(kHandshakeTime);
  handshake_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (!error && self != nullptr && !self->ready_) self->close();
  });
  send(std::make_shared<const std::string>(greeting() + ready_command(socket_type_)), 1);
  read(kGreetingBytes, &ZmtpPeer::take_greeting);
}

void ZmtpPeer::close() {
  if (std::exchange(closed_, true)) return;
  boost::system::error_code error;
  socket_.close(error);
  handshake_.cancel();
  outgoing_.clear();
  handlers_.closed(*this);
}

void ZmtpPeer::read(size_t bytes, void (ZmtpPeer::*then)(std::string_view)) {
  if (closed_) return;
  buffer_.resize(bytes);
  boost::asio::async_read(socket_, boost::asio::buffer(buffer_),
                          [self = shared_from_this(), then](const boost::system::error_code& error, size_t) {
                            if (self->closed_) return;
                            if (error) return self->close();
                            const std::string taken = std::exchange(self->buffer_, {});
                            ((*self).*then)(taken);
                          });
}

void ZmtpPeer::take_greeting(std::string_view bytes) {
  const bool speaks = bytes[0] == '\xff' && bytes[9] == '\x7f' && bytes[10] >= 3 &&
                      bytes.substr(12, 20) == std::string_view("NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
  if (!speaks) return close();
  read(1, &ZmtpPeer::take_flags);
}

void ZmtpPeer::take_flags(std::string_view bytes) {
  flags_ = static_cast<uint8_t>(bytes[0]);
  if ((flags_ & ~(kMoreFlag | kLongFlag | kCommandFlag)) != 0) return close();
  read((flags_ & kLongFlag) != 0 ? 8 : 1, &ZmtpPeer::take_size);
}

void ZmtpPeer::take_size(std::string_view bytes) {
  uint64_t size = 0;
  for (const char byte : bytes) size = size << 8 | static_cast<uint8_t>(byte);
  if (size > kMostFrame) return close();
  if (size == 0) return take_body({});
  read(static_cast<size_t>(size), &ZmtpPeer::take_body);
}

void ZmtpPeer::take_body(std::string_view bytes) {
  if ((flags_ & kCommandFlag) != 0) {
    take_command(bytes);
  } else {
    if (!ready_ || message_.size() >= kMostFrames) return close();
    message_.emplace_back(bytes);
    if ((flags_ & kMoreFlag) == 0) handlers_.message(*this, std::exchange(message_, {}));
  }
  read(1, &ZmtpPeer::take_flags);
}

// The handshake; subscriptions of peers that speak a later version; what else there is changes nothing here.
void ZmtpPeer::take_command(std::string_view body) {
  const size_t length = body.empty() ? 0 : static_cast<uint8_t>(body[0]);
  if (body.size() < 1 + length) return close();
  const std::string_view name = body.substr(1, length);
  const std::string_view rest = body.substr(1 + length);
  if (name == "READY") {
    ready_ = true;
    handshake_.cancel();
  } else if (name == "ERROR") {
    close();
  } else if (ready_ && name == "SUBSCRIBE") {
    handlers_.message(*this, {'\1' + std::string(rest)});
  } else if (ready_ && name == "CANCEL") {
    handlers_.message(*this, {'\0' + std::string(rest)});
  }
}

bool ZmtpPeer::send(std::shared_ptr<const std::string> wire, size_t most) {
  if (closed_ || outgoing_.size() >= most) return false;
  outgoing_.push_back(std::move(wire));
  if (!writing_) write_next();
  return true;
}

void ZmtpPeer::write_next() {
  writing_ = !outgoing_.empty();
  if (!writing_) return handlers_.drained(*this);
  const std::shared_ptr<const std::string> wire = outgoing_.front();
  boost::asio::async_write(socket_, boost::asio::buffer(*wire),
                           [self = shared_from_this(), wire](const boost::system::error_code& error, size_t) {
                             if (self->closed_) return;
                             if (error) return self->close();
                             self->outgoing_.pop_front();
                             self->write_next();
                           });
}

}  // namespace quire::server
