// How ranks meet (tcp_transport.h): all come to rank 0, which tells each where the others listen; then those of higher
// rank connect to those of lower rank.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/log.h"
#include "comm/tcp_transport.h"

namespace quire::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLook{100};
constexpr Milliseconds kHandshake{10'000};  // of one connection
constexpr Milliseconds kConnect{3'000};
constexpr Milliseconds kAgain{200};
constexpr Milliseconds kTellMissing{10'000};
constexpr size_t kMostVisitors = 128;    // connections that have not said who they are
constexpr Milliseconds kSilence{1'000};  // of a visitor, where others wait outside
constexpr size_t kMostWarnings = 20;     // of visitors that are no ranks

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<std::vector<Address>> resolve_name(const std::string& name, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return invalid_argument("\"{}\": no address by this name: {}", name, gai_strerror(error));
  std::vector<Address> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

uint16_t port_of(const sockaddr_storage& storage) {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

// IPv4 addresses within IPv6 ones.
Bytes16 bytes_of(const sockaddr_storage& storage) {
  Bytes16 bytes{};
  if (storage.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, bytes.size());
    return bytes;
  }
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(bytes.data() + 12, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, 4);
  return bytes;
}

bool is_v4(const Bytes16& bytes) {
  return bytes[10] == 0xff && bytes[11] == 0xff &&
         std::all_of(bytes.begin(), bytes.begin() + 10, [](uint8_t b) { return b == 0; });
}

Address address_of(const TcpPlace& place) {
  Address address;
  if (is_v4(place.address)) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(place.port);
    std::memcpy(&v4.sin_addr, place.address.data() + 12, 4);
    address.size = sizeof(v4);
    return address;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(place.port);
  std::memcpy(&v6.sin6_addr, place.address.data(), place.address.size());
  address.size = sizeof(v6);
  return address;
}

std::string shown(const Bytes16& bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v4 = is_v4(bytes);
  inet_ntop(v4 ? AF_INET : AF_INET6, bytes.data() + (v4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

std::string name_of(int rank, const Bytes16& address) {
  return fmt::format("rank {} ({})", rank, shown(address));
}

Bytes16 peer_of(const Socket& socket) {
  Address address;
  address.size = sizeof(address.storage);
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return bytes_of(address.storage);
}

Socket new_socket(int family) {
  return Socket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Whether the other end has closed it, also where what it has said is still to be read.
bool has_closed(const Socket& socket) {
  pollfd one{.fd = socket.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&one, 1, 0) > 0;
}

// Whether it can be read, or written, before `limit`. look is asked in between.
Result<bool> wait_for(int descriptor, short events, SteadyClock::time_point limit, const TcpGroup& group) {
  while (true) {
    pollfd one{.fd = descriptor, .events = events, .revents = 0};
    if (poll(&one, 1, static_cast<int>(kLook.count())) > 0) return true;
    if (group.look) QUIRE_RETURN_IF_ERROR(group.look());
    if (SteadyClock::now() > limit) return false;
  }
}

// A peer that goes with bytes unread resets the connection: gone all the same.
Status is_lost(std::string_view who, int error) {
  if (error == 0 || error == ECONNRESET || error == EPIPE) return unavailable("{} has closed the connection", who);
  return unavailable("{}: {}", who, std::strerror(error));
}

Status read_all(const Socket& socket, std::string& bytes, SteadyClock::time_point limit, const TcpGroup& group,
                std::string_view who) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = recv(socket.get(), bytes.data() + done, bytes.size() - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    if (got == 0) return is_lost(who, 0);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return is_lost(who, errno);
    QUIRE_ASSIGN_OR_RETURN(const bool came, wait_for(socket.get(), POLLIN, limit, group));
    if (!came) return deadline_exceeded("{} does not answer", who);
  }
  return {};
}

Status write_all(const Socket& socket, std::string_view bytes, SteadyClock::time_point limit, const TcpGroup& group,
                 std::string_view who) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<size_t>(wrote));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return is_lost(who, errno);
    QUIRE_ASSIGN_OR_RETURN(const bool can, wait_for(socket.get(), POLLOUT, limit, group));
    if (!can) return deadline_exceeded("{} does not read", who);
  }
  return {};
}

// A rank that has come, and may stay.
struct Guest {
  Socket socket;
  TcpJoin join;
  TcpKeys keys;  // its secret is the group's
  Bytes16 address{};
};

// Lets ranks in: greets whoever connects, and hears who it is. Whoever says nothing is sent away after a while, and
// holds up nobody.
class Door {
 public:
  // expected: ranks that may come, [first, size).
  Door(const TcpListener& listener, int first, const TcpGroup& group)
      : listener_(listener), group_(group), guests_(static_cast<size_t>(group.size)), first_(first) {}

  // Until all are there. what: "rank 0 waits for".
  Result<std::vector<Guest>> all(SteadyClock::time_point limit, std::string_view what) {
    auto tell = SteadyClock::now() + kTellMissing;
    while (true) {
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) return std::move(guests_);
      if (group_.look) QUIRE_RETURN_IF_ERROR(group_.look());
      const auto now = SteadyClock::now();
      if (now > limit) {
        return deadline_exceeded("{} the ranks {} of {}, which have not come in {} s", what, fmt::join(missing, ", "),
                                 group_.size, group_.timeout.count() / 1000);
      }
      if (now > tell) {
        log_info("{} the ranks {} of {}", what, fmt::join(missing, ", "), group_.size);
        tell = now + kTellMissing;
      }
      look();
    }
  }

 private:
  struct Visitor {
    Socket socket;
    Bytes16 nonce{};
    Bytes16 address{};
    std::string said;
    SteadyClock::time_point came;
    bool goes = false;
  };

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = first_; rank < group_.size; ++rank) {
      if (!guests_[static_cast<size_t>(rank)].socket.is_open()) missing.push_back(rank);
    }
    return missing;
  }

  void look() {
    std::vector<pollfd> all = {{.fd = listener_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Visitor& one : visitors_) all.push_back({.fd = one.socket.get(), .events = POLLIN, .revents = 0});
    poll(all.data(), all.size(), static_cast<int>(kLook.count()));
    for (Visitor& one : visitors_) hear(one);
    forget_guests();
    const auto now = SteadyClock::now();
    const Milliseconds patience = visitors_.size() < kMostVisitors ? kHandshake : kSilence;
    std::erase_if(visitors_, [&](const Visitor& one) {
      const bool is_late = !one.goes && now - one.came > patience;
      if (is_late) warn("{} has connected and does not say which rank it is", shown(one.address));
      return one.goes || is_late;
    });
    greet();
  }

  template <typename... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    if (++num_warnings_ > kMostWarnings) return;
    log_warning("{}{}", fmt::format(text, std::forward<Args>(args)...),
                num_warnings_ == kMostWarnings ? "; further ones are not told" : "");
  }

  // A rank that has gone while others were waited for may come again.
  void forget_guests() {
    for (Guest& guest : guests_) {
      if (!guest.socket.is_open() || !has_closed(guest.socket)) continue;
      log_warning("{} has gone again", name_of(guest.join.rank, guest.address));
      guest = Guest();
    }
  }

  void greet() {
    while (visitors_.size() < kMostVisitors) {
      Socket socket(accept4(listener_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) return;
      Visitor& visitor = visitors_.emplace_back();
      visitor.address = peer_of(socket);
      visitor.socket = std::move(socket);
      visitor.nonce = random_nonce();
      visitor.came = SteadyClock::now();
      const std::string greeting = encode(TcpGreeting{visitor.nonce});
      // A new connection has room for it.
      const ssize_t wrote = ::send(visitor.socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      visitor.goes = wrote != static_cast<ssize_t>(greeting.size());
    }
  }

  void hear(Visitor& one) {
    std::array<char, kTcpJoinBytes> bytes{};
    const ssize_t got = recv(one.socket.get(), bytes.data(), kTcpJoinBytes - one.said.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    one.goes = got <= 0;
    if (got <= 0) return;
    one.said.append(bytes.data(), static_cast<size_t>(got));
    if (one.said.size() < kTcpJoinBytes) return;
    one.goes = true;
    const auto read = decode_join(one.said, group_.secret, one.nonce);
    if (!read.ok()) {
      warn("{} has connected and is no rank: {}", shown(one.address), read.status().message());
      return;
    }
    const TcpKeys keys = {.secret = group_.secret, .listener = one.nonce, .joiner = read->join.nonce};
    const TcpOutcome outcome = judge(*read);
    const std::string answer = encode(outcome, keys);
    const bool is_told =
        ::send(one.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size());
    if (outcome != TcpOutcome::kWelcome) {
      warn("{} is sent away: {}", name_of(read->join.rank, one.address), why(outcome));
      return;
    }
    if (!is_told) return;
    guests_[static_cast<size_t>(read->join.rank)] = {
        .socket = std::move(one.socket), .join = read->join, .keys = keys, .address = one.address};
  }

  TcpOutcome judge(const ReadJoin& read) const {
    if (!read.is_known) return TcpOutcome::kSecret;
    if (read.join.size != group_.size) return TcpOutcome::kSize;
    if (read.join.rank < first_ || read.join.rank >= group_.size) return TcpOutcome::kRank;
    if (guests_[static_cast<size_t>(read.join.rank)].socket.is_open()) return TcpOutcome::kTaken;
    return TcpOutcome::kWelcome;
  }

 public:
  static std::string_view why(TcpOutcome outcome) {
    switch (outcome) {
      case TcpOutcome::kWelcome:
        break;
      case TcpOutcome::kSecret:
        return "it does not know this group's secret: set the same QUIRE_NODES_SECRET for every node";
      case TcpOutcome::kSize:
        return "it is of a group of another size: give every node the same sizes and --nnodes";
      case TcpOutcome::kRank:
        return "there is no such rank";
      case TcpOutcome::kTaken:
        return "another process is this rank: give every node a --node-rank of its own";
    }
    return "";
  }

 private:
  const TcpListener& listener_;
  const TcpGroup& group_;
  std::vector<Guest> guests_;  // by rank
  const int first_;
  std::list<Visitor> visitors_;
  size_t num_warnings_ = 0;
};

// One try. Not open: nobody listens there yet.
Socket connect_once(const Address& address, SteadyClock::time_point limit) {
  Socket socket = new_socket(address.storage.ss_family);
  if (!socket.is_open()) return Socket();
  if (connect(socket.get(), address.get(), address.size) == 0) return socket;
  if (errno != EINPROGRESS) return Socket();
  pollfd one{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  const auto left = std::chrono::duration_cast<Milliseconds>(limit - SteadyClock::now());
  if (poll(&one, 1, static_cast<int>(std::clamp(left, Milliseconds(0), kConnect).count())) <= 0) return Socket();
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? std::move(socket) : Socket();
}

struct Joined {
  Socket socket;
  TcpKeys keys;
};

// The handshake of who connects. who: for errors.
Result<Joined> introduce(Socket socket, TcpJoin join, const TcpGroup& group, const std::string& who) {
  const auto limit = SteadyClock::now() + kHandshake;
  std::string bytes(kTcpGreetingBytes, '\0');
  QUIRE_RETURN_IF_ERROR(read_all(socket, bytes, limit, group, who));
  auto greeting = decode_greeting(bytes);
  if (!greeting.ok()) return std::move(greeting.status()).with_prefix(who + ": ");
  join.nonce = random_nonce();
  const TcpKeys keys = {.secret = group.secret, .listener = greeting->nonce, .joiner = join.nonce};
  QUIRE_RETURN_IF_ERROR(write_all(socket, encode(join, keys), limit, group, who));
  bytes.assign(kTcpWelcomeBytes, '\0');
  QUIRE_RETURN_IF_ERROR(read_all(socket, bytes, limit, group, who));
  auto outcome = decode_welcome(bytes, keys);
  if (!outcome.ok()) return std::move(outcome.status()).with_prefix(who + ": ");
  if (*outcome != TcpOutcome::kWelcome) {
    return invalid_argument("rank {} is sent away by {}: {}", join.rank, who, Door::why(*outcome));
  }
  return Joined{.socket = std::move(socket), .keys = keys};
}

Result<Socket> connect_to(const std::vector<Address>& addresses, SteadyClock::time_point limit, const TcpGroup& group,
                          const std::string& who) {
  auto tell = SteadyClock::now() + kTellMissing;
  while (true) {
    for (const Address& address : addresses) {
      Socket socket = connect_once(address, limit);
      if (socket.is_open()) return socket;
    }
    if (group.look) QUIRE_RETURN_IF_ERROR(group.look());
    const auto now = SteadyClock::now();
    if (now > limit) return deadline_exceeded("{} cannot be reached in {} s", who, group.timeout.count() / 1000);
    if (now > tell) {
      log_warning("{} cannot be reached yet", who);
      tell = now + kTellMissing;
    }
    usleep(static_cast<useconds_t>(kAgain.count() * 1000));
  }
}

Result<std::string> own_end_of(const Socket& socket) {
  Address own;
  own.size = sizeof(own.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) {
    return unavailable("this rank's own address cannot be told: {}", std::strerror(errno));
  }
  return shown(bytes_of(own.storage));
}

}  // namespace

Result<TcpListener> TcpListener::open(const std::string& address, uint16_t port) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve_name(address, port));
  int error = 0;
  for (const Address& one : addresses) {
    Socket socket = new_socket(one.storage.ss_family);
    const int yes = 1;
    if (socket.is_open()) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!socket.is_open() || bind(socket.get(), one.get(), one.size) != 0 || ::listen(socket.get(), 128) != 0) {
      error = errno;
      continue;
    }
    Address bound;
    bound.size = sizeof(bound.storage);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    return TcpListener(std::move(socket), port_of(bound.storage));
  }
  if (error == EADDRINUSE) {
    return resource_exhausted("{}, port {}: another process listens there: choose another --master-port", address,
                              port);
  }
  return invalid_argument("{}, port {}: rank 0 cannot listen there: {}: --master-addr is an address of the first node",
                          address, port, std::strerror(error));
}

Result<std::string> own_address_towards(const std::string& host, uint16_t port) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve_name(host, port));
  for (const Address& one : addresses) {
    // Nothing is sent: the kernel only chooses the way.
    const Socket socket(::socket(one.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.is_open() && connect(socket.get(), one.get(), one.size) == 0) return own_end_of(socket);
  }
  return unavailable("there is no way from this host to {}", host);
}

Result<bool> is_loopback(const std::string& address) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve_name(address, 0));
  return std::ranges::all_of(addresses, [](const Address& one) {
    const Bytes16 bytes = bytes_of(one.storage);
    Bytes16 v6_loopback{};
    v6_loopback.back() = 1;
    return is_v4(bytes) ? bytes[12] == 127 : bytes == v6_loopback;
  });
}

Result<std::unique_ptr<Transport>> lead_over_tcp(TcpListener listener, const TcpGroup& group) {
  QUIRE_CHECK(group.size >= 1 && group.size <= kMostTcpRanks);
  const auto limit = SteadyClock::now() + group.timeout;
  Door door(listener, 1, group);
  QUIRE_ASSIGN_OR_RETURN(std::vector<Guest> guests, door.all(limit, "rank 0 waits for"));
  std::vector<TcpPlace> places;
  for (const Guest& guest : guests) places.push_back({.address = guest.address, .port = guest.join.port});
  std::vector<Socket> peers;
  std::vector<std::string> names;
  for (int rank = 0; rank < group.size; ++rank) {
    Guest& guest = guests[static_cast<size_t>(rank)];
    names.push_back(name_of(rank, guest.address));
    if (rank > 0) {
      QUIRE_RETURN_IF_ERROR(
          write_all(guest.socket, encode(places, guest.keys), SteadyClock::now() + kHandshake, group, names.back()));
    }
    peers.push_back(std::move(guest.socket));
  }
  return make_tcp_transport(0, std::move(peers), std::move(names));
}

Result<std::unique_ptr<Transport>> join_over_tcp(const std::string& address, uint16_t port, int rank,
                                                 const TcpGroup& group) {
  QUIRE_CHECK(rank >= 1 && rank < group.size && group.size <= kMostTcpRanks);
  const auto limit = SteadyClock::now() + group.timeout;
  const std::string leader = fmt::format("rank 0 ({}:{})", address, port);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve_name(address, port));
  QUIRE_ASSIGN_OR_RETURN(Socket first, connect_to(addresses, limit, group, leader));
  QUIRE_ASSIGN_OR_RETURN(const std::string own_address, own_end_of(first));
  QUIRE_ASSIGN_OR_RETURN(const TcpListener listener, TcpListener::open(own_address, 0));
  const TcpJoin own = {.rank = rank, .size = group.size, .port = listener.port(), .nonce = {}};
  QUIRE_ASSIGN_OR_RETURN(Joined led, introduce(std::move(first), own, group, leader));

  std::string table(tcp_table_bytes(group.size), '\0');
  QUIRE_RETURN_IF_ERROR(read_all(led.socket, table, limit, group, leader));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TcpPlace> places, decode_table(table, group.size, led.keys));

  std::vector<Socket> peers(static_cast<size_t>(group.size));
  std::vector<std::string> names(static_cast<size_t>(group.size));
  names[0] = name_of(0, peer_of(led.socket));
  peers[0] = std::move(led.socket);
  // Rank 0 has them all: where one goes, it does, and nobody else need wait for that one.
  TcpGroup led_group = group;
  led_group.look = [&]() -> Status {
    if (group.look) QUIRE_RETURN_IF_ERROR(group.look());
    return has_closed(peers[0]) ? unavailable("{} has closed the connection", names[0]) : Status();
  };
  for (int other = 1; other < rank; ++other) {
    const auto at = static_cast<size_t>(other);
    names[at] = name_of(other, places[at].address);
    QUIRE_ASSIGN_OR_RETURN(Socket socket, connect_to({address_of(places[at])}, limit, led_group, names[at]));
    QUIRE_ASSIGN_OR_RETURN(Joined joined, introduce(std::move(socket), own, led_group, names[at]));
    peers[at] = std::move(joined.socket);
  }
  Door door(listener, rank + 1, led_group);
  QUIRE_ASSIGN_OR_RETURN(std::vector<Guest> guests, door.all(limit, fmt::format("rank {} waits for", rank)));
  for (int other = rank + 1; other < group.size; ++other) {
    const auto at = static_cast<size_t>(other);
    names[at] = name_of(other, guests[at].address);
    peers[at] = std::move(guests[at].socket);
  }
  return make_tcp_transport(rank, std::move(peers), std::move(names));
}

}  // namespace quire::comm
