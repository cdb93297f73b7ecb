// Plain HTTP messages and one request's side of a connection, without a word of Asio: what routes and handlers see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/shared_bytes.h"

namespace quire::server {

class BodySource;
class RequestSpan;

using HeaderFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // as sent, never normalised: "/v1/models"
  std::string query;   // behind the '?'
  HeaderFields headers;
  std::string body;
  std::string id;               // the client's X-Request-Id where it is well formed, else our own
  std::string handler;          // the route's name for metrics, set by HttpHandler::screen
  std::string argument;         // what stands in the path for the route's "{id}", decoded, set by HttpHandler::screen
  int32_t tenant = 0;           // the number of its API key, from 0; 0 where no keys are set; -1: it has none
  bool in_idle_time = false;    // may wait for all others: nobody is at the other end (a batch's line)
  std::string peer;             // where it comes from: "192.0.2.1:5000", or "unix"
  std::string traceparent;      // the W3C trace that it belongs to; empty: none
  HeaderFields answer_headers;  // that whatever answers it has, set by HttpHandler::screen
  std::shared_ptr<RequestSpan> span = nullptr;  // of its trace, set by HttpHandler::screen; nullptr: it is not traced
  HeldBytes memory;                             // of the body; may be nothing

  // The first field of this name, case-insensitively; empty when there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HeaderFields headers;  // beside Content-Type, Content-Length, Connection, Date and X-Request-Id
  std::string body;
  std::shared_ptr<BodySource> source = nullptr;  // instead of `body`, where there is one
  std::string error_param = "";                  // of an error: the field at fault; for this program's own requests
};

// "Not Found" for 404.
std::string_view reason_phrase(int status);

// One request and the way to answer it: respond() once, or begin_stream(), any number of write()s and end_stream().
// Dropping an exchange that was not answered answers 500. All calls do nothing once the client is gone. The client is
// whoever sits at the other end: a connection (server/http_connection.h), or a part of this program
// (server/local_exchange.h).
class Exchange {
 public:
  explicit Exchange(HttpRequest request) : request_(std::move(request)) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const HttpRequest& request() const { return request_; }
  // The request's body, once: it is not kept for the length of the answer. By one thread, as long as nobody else looks
  // at request().body.
  std::string take_body() { return std::exchange(request_.body, {}); }
  // Its place among the bodies of all, to be held as long as the body or what it was read into is. Likewise.
  HeldBytes take_memory() { return std::move(request_.memory); }

  // Any thread.
  virtual void respond(HttpResponse response) = 0;
  // Runs `work` on the client's strand: one at a time, never beside another of the same client. Any thread.
  virtual void post(std::function<void()> work) = 0;

  // The rest on the strand only.

  // Each is called at most once, on_abort never after on_disconnect, and none after the answer is complete. They are
  // kept until the exchange ends, so they may own whatever carries it.
  //   on_disconnect: the client is gone.
  //   on_abort: the server is stopping and the answer must be ended now, in good order.
  virtual void watch(std::function<void()> on_disconnect, std::function<void()> on_abort) = 0;
  virtual bool connected() const = 0;
  virtual void begin_stream(const HttpResponse& head) = 0;  // the body of `head` is not sent
  // REQUIRES: the previous write is done. `done` runs on the strand when the client has taken all of it.
  virtual void write(std::string_view data, std::function<void()> done) = 0;
  virtual void end_stream() = 0;

 private:
  HttpRequest request_;
};

// What an HTTP server asks of the application. Called from several threads at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Sees the head before the body is read: an answer here refuses the request. Also names the route (request.handler).
  virtual std::optional<HttpResponse> screen(HttpRequest& head) = 0;
  // Must not block: called on an I/O thread.
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // After each answer, also those that the HTTP layer gave itself. `handler` is empty when no route was found.
  virtual void answered(const HttpRequest& request, int status, double seconds) = 0;
};

}  // namespace quire::server
