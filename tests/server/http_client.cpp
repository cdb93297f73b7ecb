#include "tests/server/http_client.h"

#include <algorithm>
#include <cctype>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tests/slowdown.h"

namespace quire::server {

boost::json::value ClientResponse::json() const {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(body, error);
  return error ? boost::json::value("not JSON: " + body) : value;
}

std::vector<std::string> ClientResponse::events() const {
  constexpr std::string_view kPrefix = "data: ";
  constexpr std::string_view kName = "event: ";
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (body.compare(at, kName.size(), kName) == 0) at = body.find('\n', at) + 1;
    if (end == std::string::npos || body.compare(at, kPrefix.size(), kPrefix) != 0) {
      out.push_back("malformed: " + body.substr(at));
      break;
    }
    out.push_back(body.substr(at + kPrefix.size(), end - at - kPrefix.size()));
    at = end + 2;
  }
  return out;
}

Client::Client(uint16_t port, int receive_buffer) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connect(AF_INET, &address, sizeof address, receive_buffer);
}

Client::Client(const std::string& unix_socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  unix_socket.copy(address.sun_path, sizeof address.sun_path - 1);
  connect(AF_UNIX, &address, sizeof address);
}

void Client::connect(int family, const void* address, size_t size, int receive_buffer) {
  socket_ = ::socket(family, SOCK_STREAM, 0);
  const timeval timeout{10 * kSlowdown, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  if (::connect(socket_, static_cast<const sockaddr*>(address), static_cast<socklen_t>(size)) != 0) close();
}

Client::~Client() {
  close();
}

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::reset() {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Client::fill() {
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::string Client::receive_byte() {
  char byte = 0;
  return ::recv(socket_, &byte, 1, 0) == 1 ? std::string(1, byte) : std::string();
}

std::string Client::receive_some() {
  if (buffer_.empty()) fill();
  return std::exchange(buffer_, {});
}

bool Client::closed_by_server() {
  char bytes[65536];
  for (;;) {
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count == 0) return true;
    if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
  }
}

ClientResponse Client::receive(bool head_only) {
  ClientResponse response;
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return response;
  }
  const std::string head = buffer_.substr(0, end);
  buffer_.erase(0, end + 4);
  response.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
    const size_t colon = head.find(": ", at);
    std::string name = head.substr(at + 2, colon - at - 2);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = head.substr(colon + 2, head.find("\r\n", colon) - colon - 2);
  }
  if (head_only || response.status == 100 || response.status == 204 || response.status == 304) return response;
  if (response.headers.count("content-length") != 0) {
    const size_t length = std::stoul(response.headers["content-length"]);
    while (buffer_.size() < length && fill()) {
    }
    response.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else if (response.headers.count("transfer-encoding") != 0) {
    for (;;) {
      while (buffer_.find("\r\n") == std::string::npos && fill()) {
      }
      const size_t line = buffer_.find("\r\n");
      if (line == std::string::npos) break;
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + size + 4 && fill()) {
      }
      if (buffer_.size() < line + size + 4) break;
      response.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + size + 4);
      if (size == 0) break;
    }
  } else {
    while (fill()) {
    }
    response.body = std::exchange(buffer_, {});
  }
  return response;
}

std::string http_request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view more_fields) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, path, more_fields);
  if (!body.empty() || method == "POST") {
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return out + "\r\n" + std::string(body);
}

ClientResponse get(uint16_t port, std::string_view path, std::string_view more_fields) {
  Client client(port);
  client.send(http_request("GET", path, "", more_fields));
  return client.receive();
}

ClientResponse post(uint16_t port, std::string_view path, std::string_view body, std::string_view more_fields) {
  Client client(port);
  client.send(http_request("POST", path, body, more_fields));
  return client.receive();
}

}  // namespace quire::server
