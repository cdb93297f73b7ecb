// Ranks on several hosts that nothing but TCP joins: one connection between every two, made by a meeting at rank 0.
// What they say is in tcp_protocol.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/tcp_protocol.h"
#include "comm/transport.h"

namespace quire::comm {

// A descriptor, closed at the end.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

struct TcpGroup {
  int size = 1;                                // ranks in all, at most kMostTcpRanks
  std::string secret;                          // that all of them know; empty: none, for loopback addresses alone
  std::chrono::milliseconds timeout{300'000};  // for all to meet
  // Asked every 100 ms while it waits; an error ends the waiting. Empty: nothing else can go wrong.
  std::function<Status()> look;
};

// Where ranks connect to.
class TcpListener {
 public:
  // address: a name or a number of this host; port: 0: any free one. Errors: invalid_argument for an address that is
  // none of this host's; resource_exhausted for a port that is taken.
  static Result<TcpListener> open(const std::string& address, uint16_t port);
  uint16_t port() const { return port_; }
  int descriptor() const { return socket_.get(); }

 private:
  TcpListener(Socket socket, uint16_t port) : socket_(std::move(socket)), port_(port) {}
  Socket socket_;
  uint16_t port_;
};

// Whether a name or number is of loopback alone: what needs no secret. Errors: invalid_argument: no such name.
Result<bool> is_loopback(const std::string& address);

// The address, in numbers, by which this host reaches another, which so may reach it. Errors: invalid_argument: no such
// name; unavailable: there is no way there.
Result<std::string> own_address_towards(const std::string& host, uint16_t port);

// Rank 0 waits for all others. Whoever connects and is no rank of the group, or does not know its secret, is sent away;
// the log says so, and the others are not disturbed. Errors: deadline_exceeded, saying which ranks are missing; look's.
Result<std::unique_ptr<Transport>> lead_over_tcp(TcpListener listener, const TcpGroup& group);
// Another rank goes to it, and waits for it to be there. Errors: deadline_exceeded; invalid_argument where it is sent
// away, saying why; data_loss where who answers is no rank of quire.
Result<std::unique_ptr<Transport>> join_over_tcp(const std::string& address, uint16_t port, int rank,
                                                 const TcpGroup& group);

// Of rank `rank` once the connections are there: peers[r] of rank r, its own not open; names[r]: "rank 2 (10.0.0.2)".
Result<std::unique_ptr<Transport>> make_tcp_transport(int rank, std::vector<Socket> peers,
                                                      std::vector<std::string> names);

}  // namespace quire::comm
