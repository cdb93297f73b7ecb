// What ranks say to each other when they connect over TCP (tcp_transport.h), and the heads of their messages
// afterwards. Little-endian, of fixed sizes:
//
//   who connects                     who listens
//                               <-   greeting: letters, version, a nonce
//   join: letters, version,     ->
//   rank, of how many, its own
//   port, a nonce, mac
//                               <-   welcome: outcome, mac
//                               <-   table (of rank 0, when all are there): where each rank listens, mac
//   head, bytes, head, bytes   <->
//
// Macs are HMAC-SHA256 of the group's secret over what it is for, both nonces and what stands before it: neither side
// believes who does not know the secret. What follows is neither signed nor encrypted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::comm {

inline constexpr uint16_t kTcpVersion = 1;
inline constexpr int kMostTcpRanks = 64;

using Bytes16 = std::array<uint8_t, 16>;
using Bytes32 = std::array<uint8_t, 32>;

struct TcpGreeting {
  Bytes16 nonce{};
};

struct TcpJoin {
  int32_t rank = 0;
  int32_t size = 0;
  uint16_t port = 0;  // where this rank listens for others, 0: nowhere
  Bytes16 nonce{};
};

enum class TcpOutcome : uint16_t { kWelcome = 0, kSecret = 1, kSize = 2, kRank = 3, kTaken = 4 };

// Where a rank listens: an IPv6 address, or an IPv4 one within it, and a port.
struct TcpPlace {
  Bytes16 address{};
  uint16_t port = 0;
  bool operator==(const TcpPlace&) const = default;
};

struct TcpHead {
  int32_t tag = 0;
  int64_t bytes = 0;
};

inline constexpr size_t kTcpGreetingBytes = 8 + 2 + 16;
inline constexpr size_t kTcpJoinBytes = 8 + 2 + 4 + 4 + 2 + 16 + 32;
inline constexpr size_t kTcpWelcomeBytes = 2 + 32;
inline constexpr size_t kTcpHeadBytes = 4 + 8;
constexpr size_t tcp_table_bytes(int size) {
  return static_cast<size_t>(size) * 18 + 32;
}

// Of one connection: what both sides' macs are made with.
struct TcpKeys {
  std::string_view secret;
  Bytes16 listener{};  // nonces
  Bytes16 joiner{};
};

// Errors of all below: data_loss: not what a quire of this version says, or beyond a bound.
std::string encode(const TcpGreeting& greeting);
Result<TcpGreeting> decode_greeting(std::string_view bytes);
// is_known: whether the mac is one of the secret.
std::string encode(const TcpJoin& join, const TcpKeys& keys);
struct ReadJoin {
  TcpJoin join;
  bool is_known = false;
};
Result<ReadJoin> decode_join(std::string_view bytes, std::string_view secret, const Bytes16& listener);
std::string encode(TcpOutcome outcome, const TcpKeys& keys);
// Errors: also invalid_argument: who listens welcomes, and does not know the secret.
Result<TcpOutcome> decode_welcome(std::string_view bytes, const TcpKeys& keys);
std::string encode(std::span<const TcpPlace> places, const TcpKeys& keys);
Result<std::vector<TcpPlace>> decode_table(std::string_view bytes, int size, const TcpKeys& keys);
std::array<char, kTcpHeadBytes> encode(const TcpHead& head);
Result<TcpHead> decode_tcp_head(std::span<const char, kTcpHeadBytes> bytes);

Bytes16 random_nonce();

}  // namespace quire::comm
