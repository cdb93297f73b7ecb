// What a client may send over a connection: the same requests and answers come of it however the bytes are cut, an
// answer for each. One byte steers the cuts.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include "server/http.h"
#include "server/http_connection.h"
#include "server/http_server.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace quire;
namespace asio = boost::asio;

struct Seen {
  std::string method, path, query, body;
  size_t num_headers = 0;
  bool operator==(const Seen&) const = default;
};

class Recorder final : public server::HttpHandler {
 public:
  std::optional<server::HttpResponse> screen(server::HttpRequest& head) override {
    if (head.path != "/refused") return std::nullopt;
    return server::HttpResponse{.status = 404, .headers = {}, .body = "{}"};
  }
  void handle(std::shared_ptr<server::Exchange> exchange) override {
    const server::HttpRequest& request = exchange->request();
    QUIRE_CHECK(request.path.starts_with('/'));
    seen.push_back({request.method, request.path, request.query, request.body, request.headers.size()});
    exchange->respond({.headers = {}, .body = "{}"});
  }
  void answered(const server::HttpRequest&, int status, double) override { statuses.push_back(status); }

  std::vector<Seen> seen;
  std::vector<int> statuses;
};

struct Outcome {
  std::vector<Seen> seen;
  size_t num_answers = 0;
  bool refused = false;
};

size_t count(std::string_view text, std::string_view what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

server::HttpOptions small_limits() {
  server::HttpOptions options;
  options.max_header_bytes = 4096;
  options.max_headers = 16;
  options.max_body_bytes = 2048;
  options.max_buffered_bytes = 1 << 16;
  options.max_pipelined_bytes = 1024;
  return options;
}

// Two ends of a connection, one of them the server's.
class Conversation {
 public:
  Conversation() {
    int ends[2];
    QUIRE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    client_ = ends[0];
    server::Transport::Socket socket(io_);
    socket.assign(asio::generic::stream_protocol(AF_UNIX, 0), ends[1]);
    const auto connection =
        std::make_shared<server::Connection>(std::move(socket), nullptr, options_, handler_, registry_, 0);
    registry_.add(0, connection);
    connection->start();
  }
  ~Conversation() { close(client_); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  Outcome run(std::string_view sent, size_t step) {
    turn();
    while (!sent.empty()) {
      const ssize_t taken = send(client_, sent.data(), std::min(step, sent.size()), MSG_NOSIGNAL);
      if (taken > 0) sent.remove_prefix(static_cast<size_t>(taken));
      const bool moved = turn();
      if (taken <= 0 && !moved) break;  // the server has ended it
    }
    shutdown(client_, SHUT_WR);
    turn();
    QUIRE_CHECK_MSG(registry_.size() == 0, "the client is gone, and its connection is left");
    QUIRE_CHECK_MSG(registry_.bodies->total() == 0 && registry_.unsent->total() == 0,
                    "memory of bodies or answers is left");
    const size_t answers = count(answer_, "HTTP/1.1 ") - count(answer_, "HTTP/1.1 100 ");
    QUIRE_CHECK_MSG(answers == handler_.statuses.size(), answer_);
    Outcome outcome{.seen = std::move(handler_.seen), .num_answers = answers};
    for (const int status : handler_.statuses) outcome.refused |= status != 200 && status != 404;
    return outcome;
  }

 private:
  // Lets the server do all that it can; whether there was anything.
  bool turn() {
    bool moved = false;
    for (bool more = true; more;) {
      more = io_.poll() > 0;
      io_.restart();
      std::array<char, 4096> buffer;
      for (ssize_t got; (got = recv(client_, buffer.data(), buffer.size(), 0)) > 0; more = true)
        answer_.append(buffer.data(), static_cast<size_t>(got));
      moved |= more;
    }
    return moved;
  }

  const server::HttpOptions options_ = small_limits();
  Recorder handler_;
  server::ConnectionRegistry registry_{options_};
  asio::io_context io_{1};
  int client_ = -1;
  std::string answer_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const size_t step = 1 + input.byte();
  const std::string_view sent = input.rest();
  const Outcome whole = Conversation().run(sent, 1 << 16);
  const Outcome cut = Conversation().run(sent, step);
  // Whether a head without an end is refused or waited for depends on the cuts, and so may which limit refuses one.
  QUIRE_CHECK_MSG(whole.seen == cut.seen && (whole.refused || cut.refused || whole.num_answers == cut.num_answers),
                  fmt::format("{} and {} requests, {} and {} answers", whole.seen.size(), cut.seen.size(),
                              whole.num_answers, cut.num_answers));
  return 0;
}
