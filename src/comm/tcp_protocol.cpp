#include "comm/tcp_protocol.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "comm/transport.h"

namespace quire::comm {
namespace {

constexpr std::string_view kLetters = "quirerk\n";
constexpr int32_t kMostTag = 1 << 20;

class Writer {
 public:
  template <typename T>
  requires std::is_integral_v<T>
  void number(T value) { out_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  template <size_t N>
  void bytes(const std::array<uint8_t, N>& value) {
    out_.append(reinterpret_cast<const char*>(value.data()), N);
  }
  void letters() {
    out_ += kLetters;
    number(kTcpVersion);
  }
  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// REQUIRES: as many bytes as are read.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <typename T>
  requires std::is_integral_v<T> T number() {
    T value{};
    take(&value, sizeof(value));
    return value;
  }
  template <size_t N>
  std::array<uint8_t, N> bytes() {
    std::array<uint8_t, N> value{};
    take(value.data(), N);
    return value;
  }
  Status letters() {
    const std::string_view found = left_.substr(0, kLetters.size());
    const bool ours = found == kLetters;
    left_.remove_prefix(kLetters.size());
    const auto version = number<uint16_t>();
    if (!ours) return data_loss("who answers is no rank of quire");
    if (version != kTcpVersion) {
      return data_loss("a rank speaks version {} of the protocol, expected {}: start the same quire everywhere",
                       version, kTcpVersion);
    }
    return {};
  }

 private:
  void take(void* to, size_t size) {
    QUIRE_CHECK(size <= left_.size());
    std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }
  std::string_view left_;
};

// what: which message it is of, so that none stands for another.
Bytes32 mac_of(std::string_view what, const TcpKeys& keys, std::string_view body) {
  std::string text = "quire ranks\n";
  text += what;
  text.append(reinterpret_cast<const char*>(keys.listener.data()), keys.listener.size());
  text.append(reinterpret_cast<const char*>(keys.joiner.data()), keys.joiner.size());
  text += body;
  Bytes32 mac{};
  unsigned int size = 0;
  QUIRE_CHECK(HMAC(EVP_sha256(), keys.secret.data(), static_cast<int>(keys.secret.size()),
                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size) != nullptr);
  QUIRE_CHECK(size == mac.size());
  return mac;
}

bool is_mac(const Bytes32& given, std::string_view what, const TcpKeys& keys, std::string_view body) {
  const Bytes32 expected = mac_of(what, keys, body);
  return CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
}

std::string with_mac(Writer body, std::string_view what, const TcpKeys& keys) {
  const Bytes32 mac = mac_of(what, keys, body.text());
  body.bytes(mac);
  return body.take();
}

constexpr std::string_view kJoin = "join\n";
constexpr std::string_view kWelcome = "welcome\n";
constexpr std::string_view kTable = "table\n";

Status wrong_size(std::string_view what, size_t found, size_t expected) {
  return data_loss("{} of {} bytes, expected {}", what, found, expected);
}

Status not_known() {
  return invalid_argument(
      "who listens there does not know this group's secret: set the same QUIRE_NODES_SECRET for every node");
}

}  // namespace

std::string encode(const TcpGreeting& greeting) {
  Writer out;
  out.letters();
  out.bytes(greeting.nonce);
  return out.take();
}

Result<TcpGreeting> decode_greeting(std::string_view bytes) {
  if (bytes.size() != kTcpGreetingBytes) return wrong_size("a greeting", bytes.size(), kTcpGreetingBytes);
  Reader in(bytes);
  QUIRE_RETURN_IF_ERROR(in.letters());
  return TcpGreeting{.nonce = in.bytes<16>()};
}

std::string encode(const TcpJoin& join, const TcpKeys& keys) {
  Writer out;
  out.letters();
  out.number(join.rank);
  out.number(join.size);
  out.number(join.port);
  out.bytes(join.nonce);
  return with_mac(std::move(out), kJoin, {.secret = keys.secret, .listener = keys.listener, .joiner = join.nonce});
}

Result<ReadJoin> decode_join(std::string_view bytes, std::string_view secret, const Bytes16& listener) {
  if (bytes.size() != kTcpJoinBytes) return wrong_size("a rank's first message", bytes.size(), kTcpJoinBytes);
  Reader in(bytes);
  QUIRE_RETURN_IF_ERROR(in.letters());
  ReadJoin read;
  read.join.rank = in.number<int32_t>();
  read.join.size = in.number<int32_t>();
  read.join.port = in.number<uint16_t>();
  read.join.nonce = in.bytes<16>();
  const auto mac = in.bytes<32>();
  read.is_known = is_mac(mac, kJoin, {.secret = secret, .listener = listener, .joiner = read.join.nonce},
                         bytes.substr(0, kTcpJoinBytes - mac.size()));
  return read;
}

std::string encode(TcpOutcome outcome, const TcpKeys& keys) {
  Writer out;
  out.number(static_cast<uint16_t>(outcome));
  return with_mac(std::move(out), kWelcome, keys);
}

Result<TcpOutcome> decode_welcome(std::string_view bytes, const TcpKeys& keys) {
  if (bytes.size() != kTcpWelcomeBytes) return wrong_size("a welcome", bytes.size(), kTcpWelcomeBytes);
  Reader in(bytes);
  const auto outcome = in.number<uint16_t>();
  if (outcome > static_cast<uint16_t>(TcpOutcome::kTaken)) return data_loss("a welcome of kind {}", outcome);
  // Of a refusal nothing is believed but that it is one.
  if (outcome == 0 && !is_mac(in.bytes<32>(), kWelcome, keys, bytes.substr(0, 2))) return not_known();
  return static_cast<TcpOutcome>(outcome);
}

std::string encode(std::span<const TcpPlace> places, const TcpKeys& keys) {
  Writer out;
  for (const TcpPlace& place : places) {
    out.bytes(place.address);
    out.number(place.port);
  }
  return with_mac(std::move(out), kTable, keys);
}

Result<std::vector<TcpPlace>> decode_table(std::string_view bytes, int size, const TcpKeys& keys) {
  if (bytes.size() != tcp_table_bytes(size)) return wrong_size("a table of ranks", bytes.size(), tcp_table_bytes(size));
  Reader in(bytes);
  std::vector<TcpPlace> places;
  for (int rank = 0; rank < size; ++rank) {
    TcpPlace place;
    place.address = in.bytes<16>();
    place.port = in.number<uint16_t>();
    places.push_back(place);
  }
  if (!is_mac(in.bytes<32>(), kTable, keys, bytes.substr(0, bytes.size() - 32))) return not_known();
  return places;
}

std::array<char, kTcpHeadBytes> encode(const TcpHead& head) {
  std::array<char, kTcpHeadBytes> bytes{};
  std::memcpy(bytes.data(), &head.tag, sizeof(head.tag));
  std::memcpy(bytes.data() + sizeof(head.tag), &head.bytes, sizeof(head.bytes));
  return bytes;
}

Result<TcpHead> decode_tcp_head(std::span<const char, kTcpHeadBytes> bytes) {
  TcpHead head;
  std::memcpy(&head.tag, bytes.data(), sizeof(head.tag));
  std::memcpy(&head.bytes, bytes.data() + sizeof(head.tag), sizeof(head.bytes));
  if (head.tag < 1 || head.tag > kMostTag || head.bytes < 0 || head.bytes > Transport::kMostBytes) {
    return data_loss("a message of {} bytes with tag {}: expected at most {} and a tag from 1 to {}", head.bytes,
                     head.tag, Transport::kMostBytes, kMostTag);
  }
  return head;
}

Bytes16 random_nonce() {
  Bytes16 nonce{};
  QUIRE_CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

}  // namespace quire::comm
