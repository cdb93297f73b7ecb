#include "comm/tcp_transport.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "base/check.h"

namespace quire::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kGrowBytes = 1 << 20;  // that memory grows by as a message comes that nobody awaits
constexpr int64_t kMostUnread = Transport::kMostBytes * 2;  // of a link, in memory

// What a caller has begun.
struct Operation {
  const bool sends;
  const int peer;
  const int tag;
  char* const data;
  const int64_t bytes;
  bool is_done = false;
  int64_t came = 0;
  Status trouble;
};

// One that goes out: its head and then its bytes.
struct Outgoing {
  std::array<char, kTcpHeadBytes> head{};
  const char* data = nullptr;
  int64_t bytes = 0;
  int64_t written = 0;  // of head and bytes
  Operation* operation = nullptr;
  std::string kept;  // its bytes, where whoever sent them does not wait any more
};

// One that comes: to whom it was promised, or into memory until somebody asks.
struct Incoming {
  int tag = 0;
  int64_t bytes = 0;
  int64_t received = 0;
  Operation* operation = nullptr;
  bool is_unwanted = false;
  std::vector<char> kept;
  bool is_whole() const { return received == bytes; }
};

// The connection to one other rank.
class Link {
 public:
  Link(Socket socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)), buffer_(kBufferBytes) {}

  const Status& status() const { return status_; }
  int descriptor() const { return socket_.get(); }
  bool has_unsent() const { return status_.ok() && !outgoing_.empty(); }

  void send(Operation* operation) {
    Outgoing& out = outgoing_.emplace_back();
    out.head = encode(TcpHead{.tag = operation->tag, .bytes = operation->bytes});
    out.data = operation->data;
    out.bytes = operation->bytes;
    out.operation = operation;
    if (outgoing_.size() == 1) write();
  }

  void receive(Operation* operation) {
    const auto found = std::ranges::find_if(incoming_, [&](const Incoming& one) {
      return one.operation == nullptr && !one.is_unwanted && one.tag == operation->tag;
    });
    if (found == incoming_.end()) {
      awaited_.push_back(operation);
      return;
    }
    unread_ -= static_cast<int64_t>(found->kept.size());
    if (promise(*found, operation) && found->received > 0)
      std::memcpy(operation->data, found->kept.data(), static_cast<size_t>(found->received));
    found->kept = {};
    if (found->is_whole()) finish(found);
  }

  std::optional<int64_t> next(int tag) const {
    for (const Incoming& one : incoming_) {
      if (one.operation == nullptr && !one.is_unwanted && one.tag == tag) return one.bytes;
    }
    return std::nullopt;
  }

  void progress() {
    if (status_.ok() && !outgoing_.empty()) write();
    if (status_.ok()) read();
  }

  // Nobody asks after it any more: its memory is its owner's again.
  void give_up(const Operation* operation) {
    std::erase(awaited_, operation);
    for (Incoming& one : incoming_) {
      if (one.operation != operation) continue;
      one.operation = nullptr;
      one.is_unwanted = true;
    }
    for (auto out = outgoing_.begin(); out != outgoing_.end(); ++out) {
      if (out->operation != operation) continue;
      if (out->written == 0) {
        outgoing_.erase(out);
        return;
      }
      out->kept.assign(out->data, static_cast<size_t>(out->bytes));
      out->data = out->kept.data();
      out->operation = nullptr;
      return;
    }
  }

  // Says that nothing more will come, and takes what the other one still sends, until it says so too: to close with
  // something unread would throw away what it has not read yet.
  void begin_end() {
    if (socket_.is_open()) shutdown(socket_.get(), SHUT_WR);
  }
  bool has_ended() {
    if (!status_.ok()) return true;
    while (socket_.is_open()) {
      const ssize_t got = recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got > 0) continue;
      if (got < 0 && errno == EINTR) continue;
      return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
    return true;
  }

 private:
  void fail(Status why) {
    if (status_.ok()) status_ = std::move(why);
  }
  void fail_by_errno(int error) { fail(unavailable("{}: the connection is lost: {}", name_, std::strerror(error))); }

  void write() {
    while (!outgoing_.empty()) {
      Outgoing& out = outgoing_.front();
      constexpr auto kHead = static_cast<int64_t>(kTcpHeadBytes);
      std::array<iovec, 2> parts{};
      size_t count = 0;
      if (out.written < kHead)
        parts[count++] = {out.head.data() + out.written, static_cast<size_t>(kHead - out.written)};
      const int64_t sent = std::max<int64_t>(0, out.written - kHead);
      if (sent < out.bytes)
        parts[count++] = {const_cast<char*>(out.data) + sent, static_cast<size_t>(out.bytes - sent)};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t wrote = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (wrote < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) fail_by_errno(errno);
        return;
      }
      out.written += wrote;
      if (out.written < kHead + out.bytes) continue;
      if (out.operation != nullptr) out.operation->is_done = true;
      outgoing_.pop_front();
    }
  }

  void read() {
    while (true) {
      take_from_buffer();
      if (!status_.ok()) return;
      ssize_t got = 0;
      // Large ones go where they are wanted, without a copy.
      char* const direct = direct_target(kBufferBytes);
      if (direct != nullptr) {
        const int64_t room = std::min<int64_t>(arriving_->bytes - arriving_->received, kGrowBytes);
        got = recv(socket_.get(), direct, static_cast<size_t>(room), MSG_DONTWAIT);
        if (got > 0) took(got);
      } else {
        begin_ = end_ = 0;
        got = recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
        if (got > 0) end_ = static_cast<size_t>(got);
      }
      if (got > 0) continue;
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) {
        fail(unavailable("{} has closed its connection", name_));
      } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        fail_by_errno(errno);
      }
      return;
    }
  }

  void take_from_buffer() {
    while (begin_ < end_) {
      if (!is_arriving_ && !take_head()) return;
      if (!is_arriving_) continue;  // one without bytes
      const auto count = std::min<int64_t>(arriving_->bytes - arriving_->received, static_cast<int64_t>(end_ - begin_));
      if (char* const to = target(count); to != nullptr)
        std::memcpy(to, buffer_.data() + begin_, static_cast<size_t>(count));
      begin_ += static_cast<size_t>(count);
      took(count);
      if (!status_.ok()) return;
    }
  }

  // False: it is not whole yet, or it is no head.
  bool take_head() {
    const size_t count = std::min(kTcpHeadBytes - head_size_, end_ - begin_);
    std::memcpy(head_.data() + head_size_, buffer_.data() + begin_, count);
    head_size_ += count;
    begin_ += count;
    if (head_size_ < kTcpHeadBytes) return false;
    head_size_ = 0;
    auto head = decode_tcp_head(head_);
    if (!head.ok()) {
      fail(std::move(head.status()).with_prefix(name_ + ": "));
      return false;
    }
    arriving_ = incoming_.insert(incoming_.end(),
                                 Incoming{.tag = head->tag, .bytes = head->bytes, .operation = nullptr, .kept = {}});
    is_arriving_ = true;
    const auto awaited = std::ranges::find(awaited_, head->tag, &Operation::tag);
    if (awaited != awaited_.end()) {
      Operation* const operation = *awaited;
      awaited_.erase(awaited);
      (void)promise(*arriving_, operation);
    }
    if (arriving_->bytes == 0) took(0);
    return true;
  }

  // False: there is not enough room for it; it is read to its end, and lost.
  bool promise(Incoming& one, Operation* operation) {
    if (one.bytes <= operation->bytes) {
      one.operation = operation;
      return true;
    }
    operation->trouble =
        data_loss("{} has sent {} bytes where at most {} were expected", name_, one.bytes, operation->bytes);
    operation->is_done = true;
    one.is_unwanted = true;
    return false;
  }

  // Where the next `count` bytes of the message that comes belong; nullptr: nowhere.
  char* target(int64_t count) {
    Incoming& one = *arriving_;
    if (one.operation != nullptr) return one.operation->data + one.received;
    if (one.is_unwanted) return nullptr;
    // As much as has come, not as much as was said.
    const auto wanted = static_cast<size_t>(one.received + count);
    if (one.kept.capacity() < wanted)
      one.kept.reserve(std::min(static_cast<size_t>(one.bytes), std::max(2 * one.kept.capacity(), wanted)));
    unread_ += static_cast<int64_t>(wanted - one.kept.size());
    one.kept.resize(wanted);
    return one.kept.data() + one.received;
  }
  char* direct_target(size_t at_least) {
    if (!is_arriving_ || arriving_->operation == nullptr) return nullptr;
    if (arriving_->bytes - arriving_->received < static_cast<int64_t>(at_least)) return nullptr;
    return arriving_->operation->data + arriving_->received;
  }

  void took(int64_t count) {
    arriving_->received += count;
    if (unread_ > kMostUnread) fail(data_loss("{} has sent more than {} bytes that nobody awaits", name_, kMostUnread));
    if (!arriving_->is_whole()) return;
    is_arriving_ = false;
    if (arriving_->operation != nullptr || arriving_->is_unwanted) finish(arriving_);
  }

  void finish(std::list<Incoming>::iterator one) {
    if (one->operation != nullptr) {
      one->operation->came = one->bytes;
      one->operation->is_done = true;
    }
    incoming_.erase(one);
  }

  const Socket socket_;
  const std::string name_;
  Status status_;
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;     // those without an operation, and the one that comes
  std::vector<Operation*> awaited_;  // receives whose message has not begun to come, in their order
  std::list<Incoming>::iterator arriving_;
  bool is_arriving_ = false;
  int64_t unread_ = 0;
  std::array<char, kTcpHeadBytes> head_{};
  size_t head_size_ = 0;
  std::vector<char> buffer_;  // [begin_, end_) has come and is not looked at yet
  size_t begin_ = 0;
  size_t end_ = 0;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(int rank, std::vector<Socket> peers, std::vector<std::string> names) : rank_(rank) {
    for (size_t i = 0; i < peers.size(); ++i)
      links_.push_back(std::make_unique<Link>(std::move(peers[i]), std::move(names[i])));
  }
  ~TcpTransport() override {
    const auto limit = SteadyClock::now() + std::chrono::milliseconds(left_behind_ ? 200 : 2000);
    for (const auto& link : links_) link->begin_end();
    while (SteadyClock::now() < limit) {
      if (std::ranges::all_of(links_, [](const auto& link) { return link->has_ended(); })) break;
      usleep(500);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }

  Result<Request> send(const void* data, int64_t bytes, int to, int tag) override {
    QUIRE_CHECK(bytes <= kMostBytes);
    QUIRE_RETURN_IF_ERROR(link(to).status());
    auto* const operation = new Operation{.sends = true,
                                          .peer = to,
                                          .tag = tag,
                                          .data = static_cast<char*>(const_cast<void*>(data)),
                                          .bytes = bytes,
                                          .trouble = {}};
    link(to).send(operation);
    return Request(operation);
  }

  Result<Request> receive(void* data, int64_t bytes, int from, int tag) override {
    QUIRE_CHECK(bytes <= kMostBytes);
    auto* const operation = new Operation{
        .sends = false, .peer = from, .tag = tag, .data = static_cast<char*>(data), .bytes = bytes, .trouble = {}};
    link(from).receive(operation);
    return Request(operation);
  }

  Result<std::optional<int64_t>> test(Request& request) override {
    auto* const operation = static_cast<Operation*>(request);
    if (!operation->is_done) progress(operation->peer);
    const bool is_lost = !operation->is_done && !link(operation->peer).status().ok();
    if (!operation->is_done && !is_lost) return std::optional<int64_t>();
    const Status trouble = is_lost ? link(operation->peer).status() : std::move(operation->trouble);
    const int64_t bytes = operation->sends ? 0 : operation->came;
    if (is_lost) link(operation->peer).give_up(operation);
    delete operation;
    request = nullptr;
    QUIRE_RETURN_IF_ERROR(trouble);
    return std::optional<int64_t>(bytes);
  }

  Result<std::optional<int64_t>> probe(int from, int tag) override {
    if (const auto found = link(from).next(tag)) return found;
    progress(from);
    if (const auto found = link(from).next(tag)) return found;
    QUIRE_RETURN_IF_ERROR(link(from).status());
    return std::optional<int64_t>();
  }

  void give_up(Request request) override {
    auto* const operation = static_cast<Operation*>(request);
    if (operation == nullptr) return;
    if (!operation->is_done) link(operation->peer).give_up(operation);
    delete operation;
  }
  void leave_others_behind() override { left_behind_ = true; }

 private:
  Link& link(int rank) {
    QUIRE_CHECK(rank >= 0 && rank < size() && rank != rank_);
    return *links_[static_cast<size_t>(rank)];
  }

  // That one, and every so often all: another one may wait for what this process has not sent or read.
  void progress(int peer) {
    constexpr int kAll = 8;
    if (++num_looks_ % kAll != 0) return link(peer).progress();
    for (int other = 0; other < size(); ++other) {
      if (other != rank_) link(other).progress();
    }
  }

  const int rank_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; its own is none
  int num_looks_ = 0;
  bool left_behind_ = false;
};

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}
Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Result<std::unique_ptr<Transport>> make_tcp_transport(int rank, std::vector<Socket> peers,
                                                      std::vector<std::string> names) {
  // A host that is gone without a word is noticed after some seconds.
  for (const Socket& peer : peers) {
    if (!peer.is_open()) continue;
    const auto set = [&](int level, int option, int value) {
      return setsockopt(peer.get(), level, option, &value, sizeof(value)) == 0;
    };
    const bool is_set = set(IPPROTO_TCP, TCP_NODELAY, 1) && set(SOL_SOCKET, SO_KEEPALIVE, 1) &&
                        set(IPPROTO_TCP, TCP_KEEPIDLE, 5) && set(IPPROTO_TCP, TCP_KEEPINTVL, 2) &&
                        set(IPPROTO_TCP, TCP_KEEPCNT, 3) && set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
    if (!is_set) return unavailable("a connection cannot be set up: {}", std::strerror(errno));
  }
  return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(rank, std::move(peers), std::move(names)));
}

}  // namespace quire::comm
