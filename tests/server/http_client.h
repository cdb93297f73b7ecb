// A small blocking HTTP client over plain sockets, which can also send what no decent client would.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

namespace quire::server {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  boost::json::value json() const;
  // The payloads of a stream of events, "[DONE]" included.
  std::vector<std::string> events() const;
};

class Client {
 public:
  // receive_buffer: bytes that the kernel may hold for it; 0: as many as usual.
  explicit Client(uint16_t port, int receive_buffer = 0);
  explicit Client(const std::string& unix_socket);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return socket_ >= 0; }
  bool send(std::string_view bytes);
  // One answer; waits at most ten seconds for each piece of it.
  ClientResponse receive(bool head_only = false);
  // One; empty at the end of the connection.
  std::string receive_byte();
  // Some bytes, as they come; empty at the end of the connection.
  std::string receive_some();
  // Whether the server closes the connection within ten seconds; bytes on the way are dropped.
  bool closed_by_server();
  void close();
  void reset();  // closes without a word

 private:
  bool fill();
  void connect(int family, const void* address, size_t size, int receive_buffer = 0);

  int socket_ = -1;
  std::string buffer_;
};

std::string http_request(std::string_view method, std::string_view path, std::string_view body = "",
                         std::string_view more_fields = "");
ClientResponse get(uint16_t port, std::string_view path, std::string_view more_fields = "");
ClientResponse post(uint16_t port, std::string_view path, std::string_view body, std::string_view more_fields = "");

}  // namespace quire::server
