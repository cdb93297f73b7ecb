// A small HTTP/1.1 client: GET, HEAD and POST, TLS against the system's authorities, a deadline on every wait, bounds
// on what a server may send as a head. It follows no redirect and tries nothing again: hub/fetch.h does for downloads,
// server/span_exporter.h for spans.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "net/url.h"

namespace quire::net {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpHead {
  int status = 0;
  HttpFields fields;
  int64_t content_length = -1;  // -1: not said

  // The first of that name, in whatever case; empty where there is none.
  std::string_view field(std::string_view name) const;
};

struct HttpTimeouts {
  std::chrono::milliseconds connect{15'000};  // and as long again for the TLS handshake
  std::chrono::milliseconds head{30'000};     // of a whole head
  std::chrono::milliseconds read{30'000};     // without a byte of a body
  // From send() to the last byte of the body, but for the system's resolver of names; 0: no such limit.
  std::chrono::milliseconds whole{0};
};

// Whom to trust. One for all clients of one purpose; immutable, any thread.
class TlsTrust {
 public:
  // `ca_file`, `ca_folder`: PEM certificates in place of the system's; both empty: the system's.
  // Errors: invalid_argument for files that cannot be read.
  static Result<std::shared_ptr<const TlsTrust>> make(const std::string& ca_file, const std::string& ca_folder);
  ~TlsTrust();
  struct Context;
  const Context& context() const;

 private:
  TlsTrust();
  std::unique_ptr<Context> context_;
};

// One thread's. Connections are kept, one a server.
class HttpClient {
 public:
  HttpClient(std::shared_ptr<const TlsTrust> trust, HttpTimeouts timeouts);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends a request and reads the answer's head; what is left of the answer before is thrown away. Host, Connection,
  // Accept-Encoding and a POST's Content-Length are set here; the others have no body. A POST may arrive twice: a kept
  // connection that turns out to be closed is opened again. Errors: not_found (no such host), unavailable (no
  // connection, or it broke), deadline_exceeded, data_loss (this is no HTTP, or it is beyond the bounds),
  // invalid_argument (a certificate that is not to be trusted). REQUIRES: method is GET, HEAD or POST.
  Result<HttpHead> send(std::string_view method, const Url& url, const HttpFields& fields, std::string_view body = {});

  // The next bytes of the body into [data, data + size); 0: that was all. Errors: as send().
  // REQUIRES: a send() that succeeded.
  Result<size_t> read(char* data, size_t size);

  // The whole body. Errors: as send(), and resource_exhausted beyond `most_bytes`.
  Result<std::string> read_all(size_t most_bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::net
