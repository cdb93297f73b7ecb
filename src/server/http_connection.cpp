#include "server/http_connection.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>

#include "base/log.h"
#include "server/api_error.h"
#include "server/body_source.h"
#include "server/random_id.h"
#include "server/url.h"

namespace quire::server {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kReadHead = 2048;
constexpr size_t kReadBody = 64 << 10;
constexpr size_t kSmallAnswer = 4 << 10;   // always sent: an error must find room
constexpr uint64_t kSmallBody = 64 << 10;  // read and thrown away so that a refused request need not end the connection

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

bool well_formed_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------------
// http.h

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [field, value] : headers) {
    if (equal_ignoring_case(field, name)) return value;
  }
  return {};
}

std::string_view reason_phrase(int status) {
  const auto phrase = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {phrase.data(), phrase.size()};
}

// ----------------------------------------------------------------------------------------------------- from any thread

Connection::Connection(Transport::Socket socket, asio::ssl::context* tls, const HttpOptions& options,
                       HttpHandler& handler, ConnectionRegistry& registry, uint64_t id)
    : registration_{registry, id},
      peer_(peer_name(socket)),
      transport_(std::move(socket), tls),
      timer_(transport_.get_executor()),
      options_(options),
      handler_(handler) {}

void Connection::post(std::function<void()> work) {
  asio::post(transport_.get_executor(), [self = shared_from_this(), work = std::move(work)] { self->guarded(work); });
}

// Whatever runs on the strand runs in here: what it throws (no memory) ends its own connection, and the work behind it.
void Connection::guarded(FunctionRef<void()> work) {
  try {
    work();
  } catch (const std::exception& error) {
    log_request(LogLevel::kError, request_.id, "its connection ends: {}", error.what());
    client_gone();
  }
}

HttpResponse Connection::refusal(int status, std::string message) const {
  return error_response_at(request_.path, {status, std::move(message), "", "", 0});
}

void Connection::start() {
  post([this] { transport_.secure() ? handshake() : await_request(); });
}

void Connection::handshake() {
  set_deadline(options_.header_timeout);
  transport_.async_handshake([self = shared_from_this()](error_code error) {
    self->guarded([&] {
      if (self->closed_) return;
      if (!error) return self->await_request();
      log_debug("TLS with {} did not begin: {}", self->peer_, error.message());
      self->client_gone();
    });
  });
}

void Connection::refuse() {
  post([this] {
    if (transport_.secure()) return close_socket();
    refuse_and_close(error_response({503, "The server has as many connections as it takes.", "", "", 1}));
  });
}

void Connection::drain() {
  post([this] {
    if (!answering_ && !request_begun_ && !lingering_) close_socket();
  });
}

void Connection::abort() {
  post([this] {
    aborting_ = true;
    if (const auto on_abort = std::exchange(on_abort_, {})) on_abort();
  });
}

void Connection::close() {
  post([this] { client_gone(); });
}

void Connection::respond(uint64_t serial, HttpResponse response) {
  asio::dispatch(transport_.get_executor(),
                 [self = shared_from_this(), serial, response = std::move(response)]() mutable {
                   if (!self->serves(serial) || self->head_sent_) return;
                   self->guarded([&] { self->send_response(std::move(response)); });
                 });
}

void Connection::abandoned(uint64_t serial) {
  // Posted: the exchange may die inside a call of this very connection.
  post([this, serial] {
    if (!serves(serial) || end_given_) return;
    if (!head_sent_) {
      send_response(
          error_response_at(request_.path, to_api_error(internal_error("a request was dropped without an answer"))));
    } else if (writing_) {
      out_done_ = [this] { client_gone(); };
    } else {
      client_gone();  // a stream that nobody will end
    }
  });
}

// --------------------------------------------------------------------------------------------------------------
// reading

void Connection::await_request() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(boost::none);  // ours is checked by check_head()
  chunks_.reset();
  body_left_ = 0;
  request_ = {};
  ++num_requests_;
  request_.peer = peer_;
  refusal_.reset();
  request_begun_ = false;
  head_done_ = false;
  set_deadline(options_.idle_timeout);
  if (buffer_.size() > 0) {
    parse();
  } else {
    buffer_ = {};  // idle connections hold no memory for what may come
    read_more();
  }
}

void Connection::read_more() {
  if (reading_ || closed_) return;
  reading_ = true;
  incoming_.resize(head_done_ && !answering_ ? kReadBody : kReadHead);
  if (incoming_.size() == kReadHead) incoming_.shrink_to_fit();
  transport_.async_read_some(asio::buffer(incoming_), [self = shared_from_this()](error_code error, size_t bytes) {
    self->guarded([&] { self->on_read(error, bytes); });
  });
}

void Connection::on_read(error_code error, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) {
    // A client that goes as soon as it has its answer may be seen to go before the write is seen to be done.
    client_went_ = true;
    if (!writing_) client_gone();
    return;
  }
  if (lingering_) return read_more();
  buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(incoming_), bytes));
  if (!answering_) {
    parse();
  } else if (buffer_.size() < options_.max_pipelined_bytes) {
    read_more();  // else the client waits until its earlier requests are answered
  }
}

void Connection::parse() {
  if (!request_begun_) {
    request_begun_ = true;
    set_deadline(options_.header_timeout);
  }
  if (!head_done_ && (!parse_head() || !on_head())) return;
  if (parse_body()) on_request();
}

bool Connection::parse_head() {
  error_code error;
  while (buffer_.size() > 0 && !parser_->is_header_done()) {
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error) break;
  }
  if (parser_->is_header_done() && !error) {
    head_done_ = true;
    return true;
  }
  if (error == http::error::header_limit || buffer_.size() > options_.max_header_bytes) {
    refuse_and_close(refusal(431, fmt::format("The request's header is larger than the {} bytes this server takes.",
                                              options_.max_header_bytes)));
  } else if (error && error != http::error::need_more) {
    refuse_and_close(refusal(error == http::error::bad_version ? 505 : 400,
                             fmt::format("The request is not valid HTTP/1.1: {}.", error.message())));
  } else {
    read_more();
  }
  return false;
}

void Connection::read_target(std::string_view target) {
  if (const auto absolute = absolute_target(target)) {
    if (absolute->authority.empty() || absolute->authority.find('@') != std::string_view::npos) return;  // refused
    // The host that it names counts, and not the Host field: whatever looks at that must see the same host.
    std::erase_if(request_.headers, [](const auto& field) { return equal_ignoring_case(field.first, "Host"); });
    request_.headers.emplace_back("Host", absolute->authority);
    target = absolute->path_and_query;
    if (!target.starts_with('/')) request_.path = "/";
  }
  const size_t question = target.find('?');
  request_.path += target.substr(0, question);
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
}

std::optional<HttpResponse> Connection::check_head() {
  const auto& head = parser_->get();
  if (request_.headers.size() > options_.max_headers) {
    return refusal(431, fmt::format("The request has {} header fields; this server takes {}.", request_.headers.size(),
                                    options_.max_headers));
  }
  const auto hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && !http10_)) {
    return refusal(400, "The request needs exactly one Host header field.");
  }
  for (const char* key : {"Authorization", "x-api-key"}) {
    if (head.count(key) > 1) return refusal(400, fmt::format("The request has more than one {} header field.", key));
  }
  if (!request_.path.starts_with('/')) {
    return refusal(400, "The request's target must be a path that starts with '/', or a URL (http://host:port/path).");
  }
  if (const auto codings = head.count(http::field::transfer_encoding); codings > 0) {
    if (http10_ || codings > 1 || !equal_ignoring_case(request_.header("Transfer-Encoding"), "chunked") ||
        head.count(http::field::content_length) > 0) {
      return refusal(400, "The only transfer coding this server takes is 'chunked', alone and without Content-Length.");
    }
  }
  if (const auto coding = request_.header("Content-Encoding");
      !coding.empty() && !equal_ignoring_case(coding, "identity")) {
    return refusal(415, "Compressed request bodies are not supported: send it without Content-Encoding.");
  }
  if (const auto expect = request_.header("Expect"); !expect.empty() && !equal_ignoring_case(expect, "100-continue")) {
    return refusal(417, "The only expectation this server meets is '100-continue'.");
  }
  if (body_left_ > options_.max_body_bytes) {
    return refusal(413, fmt::format("The request's body has {} bytes; this server takes {}.", body_left_,
                                    options_.max_body_bytes));
  }
  return std::nullopt;
}

bool Connection::on_head() {
  const auto& head = parser_->get();
  const auto method = head.method_string();
  request_.method.assign(method.data(), method.size());
  for (const auto& field : head) {
    const auto name = field.name_string();
    const auto value = field.value();
    request_.headers.emplace_back(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
  }
  read_target({head.target().data(), head.target().size()});
  const auto id = request_.header("X-Request-Id");
  request_.id = well_formed_id(id) ? std::string(id) : random_id();
  http10_ = head.version() < 11;
  keep_alive_ = parser_->keep_alive();
  const bool chunked = parser_->chunked();
  body_left_ = chunked ? 0 : parser_->content_length().value_or(0);

  if (auto refused = check_head()) {  // after these nobody knows where the next request begins
    refuse_and_close(*refused);
    return false;
  }
  refusal_ = handler_.screen(request_);
  const bool expects = !http10_ && !request_.header("Expect").empty();
  if (refusal_ && (chunked || expects || body_left_ > kSmallBody)) {
    refuse_and_close(*refusal_);
    return false;
  }
  if (chunked) chunks_.emplace(options_.max_body_bytes);
  if (!refusal_ && (chunked || body_left_ > 0)) {
    request_.memory =
        registration_.registry.bodies->place(request_.tenant, [weak = weak_from_this(), number = num_requests_] {
          if (const auto self = weak.lock()) self->post([raw = self.get(), number] { raw->on_body_cut(number); });
        });
  }
  parser_.reset();
  set_deadline(options_.body_timeout);
  if (expects && (chunked || body_left_ > 0) && buffer_.size() == 0) {
    start_write("HTTP/1.1 100 Continue\r\n\r\n", [this] {
      set_deadline(options_.body_timeout);
      parse();
    });
    return false;
  }
  return true;
}

void Connection::on_body_cut(uint64_t number) {
  if (closed_ || answering_ || number != num_requests_) return;
  if (writing_) return client_gone();  // "100 Continue" is still on its way
  refuse_and_close(refusal(408, "The request came more slowly than others, and the server needed its room."));
}

bool Connection::parse_body() {
  const size_t before = request_.body.size();
  const std::string_view data(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  if (chunks_) {
    auto used = chunks_->decode(data, request_.body);
    if (!used.ok()) {
      const bool too_large = used.status().code() == StatusCode::kResourceExhausted;
      refuse_and_close(refusal(too_large ? 413 : 400, used.status().message()));
      return false;
    }
    buffer_.consume(*used);
  } else {
    const size_t take = static_cast<size_t>(std::min<uint64_t>(body_left_, data.size()));
    if (!refusal_) request_.body.append(data.substr(0, take));
    buffer_.consume(take);
    body_left_ -= take;
  }
  request_.memory.progress(request_.body.size() - before);
  if (request_.memory && !request_.memory.set(request_.body.size())) {
    refuse_and_close(error_response_at(
        request_.path,
        {503, "The server holds as much of requests, of all or of this API key, as it has room for.", "", "", 1}));
    return false;
  }
  if (chunks_ ? chunks_->done() : body_left_ == 0) {
    request_.memory.cannot_be_cut();
    return true;
  }
  read_more();
  return false;
}

void Connection::begin_answer() {
  answering_ = true;
  head_sent_ = false;
  end_given_ = false;
  pending_head_.clear();
  ++serial_;
  unsent_ = registration_.registry.unsent->place(request_.tenant, [weak = weak_from_this(), serial = serial_] {
    if (const auto self = weak.lock()) self->post([raw = self.get(), serial] { raw->on_answer_cut(serial); });
  });
  answer_started_ = Clock::now();
  deadline_.reset();
}

void Connection::on_request() {
  begin_answer();
  read_more();
  if (refusal_) {
    send_response(*refusal_);
    return;
  }
  HttpRequest request = std::move(request_);
  request_ = {};  // what the answer, the metrics and the log need
  request_.method = request.method;
  request_.path = request.path;
  request_.id = request.id;
  request_.handler = request.handler;
  request_.tenant = request.tenant;
  request_.peer = request.peer;
  request_.traceparent = request.traceparent;
  request_.answer_headers = request.answer_headers;
  request_.span = request.span;
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request), serial_);
  try {
    handler_.handle(std::move(exchange));
  } catch (const std::exception& error) {  // the exchange ends with it, which answers 500
    log_request(LogLevel::kError, request_.id, "the request failed: {}", error.what());
  }
}

// --------------------------------------------------------------------------------------------------------------
// writing

void Connection::refuse_and_close(const HttpResponse& response) {
  begin_answer();
  keep_alive_ = false;
  request_.body = {};
  request_.memory.release();
  if (request_.id.empty()) request_.id = random_id();
  send_response(response);
}

std::string Connection::head_text(const HttpResponse& response, std::optional<size_t> content_length) {
  if (registration_.registry.draining.load()) keep_alive_ = false;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nX-Request-Id: {}\r\n", response.status,
                                 reason_phrase(response.status), http_date(), request_.id);
  for (const auto& [name, value] : request_.answer_headers) head += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  // These two are without content, not even of length zero (RFC 9110, section 8.6).
  if (response.status != 204 && response.status != 304) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
    if (content_length) {
      head += fmt::format("Content-Length: {}\r\n", *content_length);
    } else if (!http10_) {
      head += "Transfer-Encoding: chunked\r\n";
    } else {
      keep_alive_ = false;  // the end of the connection is the end of the body
    }
  }
  if (!keep_alive_) {
    head += "Connection: close\r\n";
  } else if (http10_) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

void Connection::send_response(HttpResponse response) {
  head_sent_ = true;
  end_given_ = true;
  if (!response.source) response.source = std::make_shared<TextBody>(std::move(response.body));
  const bool with_body = request_.method != "HEAD";
  const size_t held = with_body ? response.source->held() : 0;
  if (held > kSmallAnswer && !unsent_.set(held)) {  // this answer is dropped, and gives its memory back at once
    response = error_response_at(
        request_.path,
        {503, "The server holds as much of answers, of all or of this API key, as it has room for.", "", "", 1});
    response.source = std::make_shared<TextBody>(std::move(response.body));
  }
  status_ = response.status;
  std::string text = head_text(response, response.source->size());
  if (with_body) source_ = std::move(response.source);
  start_write(std::move(text), [this] { answer_complete(); });
}

void Connection::on_answer_cut(uint64_t serial) {
  if (!serves(serial)) return;
  log_request(LogLevel::kInfo, request_.id,
              "its connection ends: the answer was taken more slowly than others, and "
              "the server needed its room");
  client_gone();
}

void Connection::begin_stream(uint64_t serial, const HttpResponse& head) {
  if (!serves(serial) || head_sent_) return;
  head_sent_ = true;
  status_ = head.status;
  pending_head_ = head_text(head, std::nullopt);
}

void Connection::write(uint64_t serial, std::string_view data, std::function<void()> done) {
  if (!serves(serial)) return;
  QUIRE_CHECK(head_sent_ && !writing_);
  std::string framed = std::exchange(pending_head_, {});
  if (http10_) {
    framed += data;
  } else if (!data.empty()) {  // an empty chunk would end the body
    framed += fmt::format("{:x}\r\n", data.size());
    framed += data;
    framed += "\r\n";
  }
  if (!unsent_.set(framed.size())) {
    log_request(LogLevel::kInfo, request_.id,
                "its connection ends: there is no room for what its client has not taken");
    return client_gone();
  }
  start_write(std::move(framed), std::move(done));
}

void Connection::end_stream(uint64_t serial) {
  if (!serves(serial)) return;
  QUIRE_CHECK(head_sent_ && !writing_);
  end_given_ = true;
  std::string last = std::exchange(pending_head_, {});
  if (!http10_) last += "0\r\n\r\n";
  start_write(std::move(last), [this] { answer_complete(); });
}

void Connection::watch(uint64_t serial, std::function<void()> on_disconnect, std::function<void()> on_abort) {
  if (!serves(serial)) return;
  on_disconnect_ = std::move(on_disconnect);
  on_abort_ = std::move(on_abort);
  if (aborting_) abort();
}

void Connection::start_write(std::string data, std::function<void()> done) {
  out_ = std::move(data);
  sending_ = out_;
  out_done_ = std::move(done);
  writing_ = true;
  taken_ = 0;
  set_deadline(options_.write_timeout);
  write_some();
}

void Connection::write_some() {
  transport_.async_write_some(asio::buffer(sending_.data(), sending_.size()),
                              [self = shared_from_this()](error_code error, size_t bytes) {
                                self->guarded([&] { self->on_written(error, bytes); });
                              });
}

// A client that takes less than the least rate in all of write_timeout is cut by the deadline.
void Connection::note_taken(size_t bytes) {
  unsent_.progress(bytes);
  taken_ += bytes;
  const auto least =
      static_cast<double>(options_.min_read_rate) * std::chrono::duration<double>(options_.write_timeout).count();
  if (bytes == 0 || static_cast<double>(taken_) < least) return;
  taken_ = 0;
  set_deadline(options_.write_timeout);
}

void Connection::on_written(error_code error, size_t bytes) {
  if (closed_) return;
  if (error) return client_gone();
  sending_.remove_prefix(bytes);
  note_taken(bytes);
  if (sending_.empty() && source_ != nullptr) {
    const auto piece = source_->next();
    if (!piece.ok()) {
      log_request(LogLevel::kError, request_.id, "its connection ends: {}", piece.status().message());
      return client_gone();
    }
    sending_ = *piece;
  }
  if (!sending_.empty()) return write_some();
  deadline_.reset();
  writing_ = false;
  source_.reset();
  out_ = {};
  if (unsent_) unsent_.set(0);
  if (const auto done = std::exchange(out_done_, {})) done();
  if (client_went_ && !closed_) client_gone();
}

void Connection::answer_complete() {
  handler_.answered(request_, status_, std::chrono::duration<double>(Clock::now() - answer_started_).count());
  answering_ = false;
  unsent_.release();
  const auto release_disconnect = std::exchange(on_disconnect_, {});
  const auto release_abort = std::exchange(on_abort_, {});
  if (keep_alive_ && !registration_.registry.draining.load()) {
    await_request();
  } else {
    linger();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// ending

// Closing at once, with bytes of the client unread, would reset the connection and could destroy the answer on its way.
void Connection::linger() {
  lingering_ = true;
  set_deadline(options_.linger_timeout);
  transport_.end_sending(shared_from_this());
  buffer_.consume(buffer_.size());
  read_more();
}

void Connection::client_gone() {
  if (closed_) return;
  const auto on_disconnect = std::exchange(on_disconnect_, {});
  close_socket();
  if (on_disconnect) on_disconnect();
  if (answering_) {  // 499: the client closed the request, as other servers' logs have it
    handler_.answered(request_, 499, std::chrono::duration<double>(Clock::now() - answer_started_).count());
  }
}

void Connection::close_socket() {
  closed_ = true;
  timer_.cancel();
  transport_.close();
  unsent_.release();
  request_.memory.release();
  const auto release_done = std::exchange(out_done_, {});
  const auto release_abort = std::exchange(on_abort_, {});
}

void Connection::set_deadline(std::chrono::milliseconds timeout) {
  deadline_ = Clock::now() + timeout;
  wait_for_deadline();
}

// One wait at a time: a later deadline leaves it alone and is looked at when it ends.
void Connection::wait_for_deadline() {
  if (deadline_waiting_ && timer_.expiry() <= *deadline_) return;
  deadline_waiting_ = true;
  timer_.expires_at(*deadline_);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->closed_) return;
    self->deadline_waiting_ = false;
    if (self->deadline_) self->guarded([&] { self->on_deadline(); });
  });
}

void Connection::on_deadline() {
  if (Clock::now() < *deadline_) return wait_for_deadline();
  deadline_.reset();
  if (writing_ || lingering_ || !request_begun_) {
    client_gone();
  } else {
    refuse_and_close(refusal(408, "The request did not arrive in time."));
  }
}

}  // namespace quire::server
