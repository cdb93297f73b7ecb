// The HTTP/1.1 listener: a few threads carry any number of connections. Everything a client sends is bounded in size
// and time: request line and fields, their number, body, pipelined requests, and how slowly any of it may come or be
// read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http.h"

namespace quire::server {

// Files in PEM. Names and numbers are vLLM's, and so Python's.
struct TlsOptions {
  std::string certfile;  // the chain; empty: no TLS
  std::string keyfile;   // empty: it is in certfile
  std::string ca_certs;  // whose certificates of clients are believed
  int cert_reqs = 0;     // of clients: 0 none, 1 optional, 2 required

  bool on() const { return !certfile.empty() || !keyfile.empty() || !ca_certs.empty() || cert_reqs != 0; }
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // address or name
  uint16_t port = 8000;            // 0: any free one
  std::string uds;                 // a Unix socket's path; then neither host nor port matter
  uint32_t uds_mode = 0600;
  TlsOptions tls;
  int io_threads = 2;
  size_t max_connections = 10000;
  size_t max_header_bytes = 64 << 10;  // request line and fields together
  size_t max_headers = 128;
  size_t max_body_bytes = 32 << 20;
  size_t max_buffered_bytes = 512 << 20;  // bodies of all requests until they are prepared
  size_t max_unsent_bytes = 512 << 20;    // of all answers: what clients have not taken yet
  std::vector<double> tenant_weights;     // of the keys' shares of both (server/shared_bytes.h); empty: no keys
  size_t max_pipelined_bytes = 64 << 10;  // read ahead while a request is being answered
  std::chrono::milliseconds header_timeout{15000};  // from the first byte of a request to its last field; TLS's start
  std::chrono::milliseconds body_timeout{60000};    // from there to the end of the body
  std::chrono::milliseconds idle_timeout{120000};   // between requests
  std::chrono::milliseconds write_timeout{60000};   // in which a client that is waited for must take something: ...
  size_t min_read_rate = 1024;                      // ... so many bytes a second
  std::chrono::milliseconds pace_window{1000};      // over which it is measured who is slowest, where room runs out
  std::chrono::milliseconds linger_timeout{2000};   // for the client to read an error before the connection ends
};

// Whether nobody but this machine reaches a server on `host`. A name other than localhost is not looked up: no.
bool is_loopback(const std::string& host);

class HttpServer {
 public:
  // Binds, listens and starts the threads. The handler must outlive the server.
  // Errors: invalid_argument (the address, a file of TLS), unavailable (in use, no permission).
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler& handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;  // 0 on a Unix socket
  int64_t num_connections() const;

  // Accepts no more, closes idle connections and lets requests that are being answered finish until the deadline; then
  // asks their exchanges to end (on_abort) and waits `grace` for the last bytes; what is left is stop()'s to close.
  // Nothing after stop().
  void drain(std::chrono::milliseconds deadline, std::chrono::milliseconds grace);
  // Closes everything and joins the threads. When it returns no exchange is left. Idempotent.
  void stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::server
