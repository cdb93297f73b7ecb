// One client's connection: a state machine on its own strand. Bytes are always being waited for, also while an answer
// is written, because that is how a client that went away is noticed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/function_ref.h"
#include "server/chunked_body.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/transport.h"

namespace quire::server {

class Connection;

// The connections that exist, and when there are none any more.
class ConnectionRegistry {
 public:
  explicit ConnectionRegistry(const HttpOptions& options);

  void add(uint64_t id, std::weak_ptr<Connection> connection);
  void remove(uint64_t id);
  size_t size() const;
  // Calls `visit` for each, not under the lock.
  void for_each(const std::function<void(Connection&)>& visit);
  // False when some are left at the deadline.
  bool wait_empty(std::chrono::steady_clock::time_point deadline);
  void wait_empty();

  std::atomic<bool> draining{false};
  const std::shared_ptr<SharedBytes> bodies;  // of requests that are coming in or not prepared yet
  const std::shared_ptr<SharedBytes> unsent;  // of answers that clients have not taken

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::weak_ptr<Connection>> connections_;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // tls: nullptr for plain HTTP. It, the registry, the options and the handler outlive this. The caller has added `id`
  // to the registry, or will.
  Connection(Transport::Socket socket, boost::asio::ssl::context* tls, const HttpOptions& options, HttpHandler& handler,
             ConnectionRegistry& registry, uint64_t id);

  // Any thread.
  void start();
  void refuse();  // there are too many connections: 503 and close; with TLS, whose start costs too much, only close
  void drain();   // close when idle, else after the answer
  void abort();   // on_abort of what is being answered, or will be
  void close();
  void post(std::function<void()> work);
  void respond(uint64_t serial, HttpResponse response);
  void abandoned(uint64_t serial);  // the exchange was dropped

  // On the strand; they concern the exchange of this serial, and do nothing when it is over.
  bool serves(uint64_t serial) const { return answering_ && serial == serial_ && !closed_; }
  void watch(uint64_t serial, std::function<void()> on_disconnect, std::function<void()> on_abort);
  void begin_stream(uint64_t serial, const HttpResponse& head);
  void write(uint64_t serial, std::string_view data, std::function<void()> done);
  void end_stream(uint64_t serial);

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

  // Takes the entry away as the last thing that happens to a connection, after its socket is gone.
  struct Registration {
    ConnectionRegistry& registry;
    uint64_t id;
    ~Registration() { registry.remove(id); }
  };

  void guarded(FunctionRef<void()> work);
  void handshake();
  void read_more();
  void on_read(boost::system::error_code error, size_t bytes);
  void await_request();
  void parse();
  bool parse_head();  // false: not complete, or answered with an error
  bool parse_body();
  bool on_head();
  void read_target(std::string_view target);
  std::optional<HttpResponse> check_head();
  HttpResponse refusal(int status, std::string message) const;
  void on_request();
  void refuse_and_close(const HttpResponse& response);
  void begin_answer();

  std::string head_text(const HttpResponse& response, std::optional<size_t> content_length);
  void send_response(HttpResponse response);
  void on_body_cut(uint64_t number);
  void on_answer_cut(uint64_t serial);
  void start_write(std::string data, std::function<void()> done);
  void write_some();
  void note_taken(size_t bytes);
  void on_written(boost::system::error_code error, size_t bytes);
  void answer_complete();
  void linger();
  void client_gone();
  void close_socket();

  void set_deadline(std::chrono::milliseconds timeout);
  void wait_for_deadline();
  void on_deadline();

  Registration registration_;  // first, so that it ends last
  const std::string peer_;
  Transport transport_;
  boost::asio::steady_timer timer_;
  const HttpOptions& options_;
  HttpHandler& handler_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  bool deadline_waiting_ = false;

  // The request that is coming in.
  std::vector<char> incoming_;        // where the pending read puts its bytes
  boost::beast::flat_buffer buffer_;  // what has come and is not used yet
  std::optional<Parser> parser_;
  std::optional<ChunkedDecoder> chunks_;
  uint64_t body_left_ = 0;  // without chunks
  HttpRequest request_;
  uint64_t num_requests_ = 0;
  std::optional<HttpResponse> refusal_;  // decided on the head, given after the (small) body
  bool reading_ = false;
  bool request_begun_ = false;  // a byte of it has come
  bool head_done_ = false;

  // The answer that is going out.
  uint64_t serial_ = 0;
  std::chrono::steady_clock::time_point answer_started_;
  std::string pending_head_;  // of a stream, sent with its first bytes
  std::string out_;
  std::shared_ptr<BodySource> source_;  // what follows `out_`
  std::string_view sending_;            // what is left of `out_`, or of a piece of the source
  size_t taken_ = 0;                    // bytes, since the deadline was set
  HeldBytes unsent_;
  bool writing_ = false;
  std::function<void()> out_done_;
  std::function<void()> on_disconnect_;
  std::function<void()> on_abort_;
  int status_ = 0;
  bool answering_ = false;
  bool head_sent_ = false;
  bool end_given_ = false;  // the last bytes of the answer are on their way
  bool keep_alive_ = true;
  bool http10_ = false;
  bool aborting_ = false;
  bool lingering_ = false;
  bool client_went_ = false;  // nothing more can be read
  bool closed_ = false;
};

// A request of a connection.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, HttpRequest request, uint64_t serial);
  ~ConnectionExchange() override;

  void respond(HttpResponse response) override;
  void post(std::function<void()> work) override;
  void watch(std::function<void()> on_disconnect, std::function<void()> on_abort) override;
  bool connected() const override;
  void begin_stream(const HttpResponse& head) override;
  void write(std::string_view data, std::function<void()> done) override;
  void end_stream() override;

 private:
  std::shared_ptr<Connection> connection_;
  const uint64_t serial_;
};

}  // namespace quire::server
