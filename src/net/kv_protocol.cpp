#include "net/kv_protocol.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/hashing.h"
#include "base/hex.h"

namespace quire::net {
namespace {

static_assert(std::endian::native == std::endian::little, "the messages are little-endian");

constexpr std::string_view kLetters = "QKVT";

class BodyWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void number(T value) { out_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  template <size_t N>
  void bytes(const std::array<uint8_t, N>& value) {
    out_.append(reinterpret_cast<const char*>(value.data()), N);
  }
  void text(std::string_view value) {
    QUIRE_CHECK(value.size() <= kMostKvName);
    number(static_cast<uint8_t>(value.size()));
    out_.append(value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class BodyReader {
 public:
  explicit BodyReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T number() {
    T value{};
    take(&value, sizeof(value));
    return value;
  }
  template <size_t N>
  void bytes(std::array<uint8_t, N>& value) {
    take(value.data(), N);
  }
  std::string text() {
    const auto size = number<uint8_t>();
    if (size > kMostKvName || size > left_.size()) {
      ok_ = false;
      return {};
    }
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    return value;
  }
  // How many of so many bytes follow; 0 where that cannot be.
  size_t count(size_t bytes_each) {
    const auto size = number<uint32_t>();
    if (size > left_.size() / bytes_each) {
      ok_ = false;
      return 0;
    }
    return size;
  }
  bool ok() const { return ok_; }
  Status finish(const char* what) const {
    if (ok_ && left_.empty()) return {};
    return data_loss("{} of a transfer is {}", what, ok_ ? "longer than what stands in it" : "cut or out of bounds");
  }

 private:
  void take(void* to, size_t size) {
    if (size > left_.size()) {
      ok_ = false;
      left_ = {};
      return;
    }
    std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace

std::string encode_head(const KvHead& head) {
  BodyWriter out;
  for (const char letter : kLetters) out.number(letter);
  out.number(kKvProtocolVersion);
  out.number(static_cast<uint16_t>(head.kind));
  out.number(head.size);
  return out.take();
}

Result<KvHead> decode_head(std::string_view bytes) {
  if (bytes.size() != kKvHeadBytes || !bytes.starts_with(kLetters)) {
    return data_loss("this is no message of a transfer");
  }
  BodyReader in(bytes.substr(kLetters.size()));
  const auto version = in.number<uint16_t>();
  const auto kind = in.number<uint16_t>();
  const auto size = in.number<uint32_t>();
  if (version != kKvProtocolVersion) {
    return data_loss("the other side speaks version {} of transfers, this one {}", version, kKvProtocolVersion);
  }
  if (kind < static_cast<uint16_t>(KvMessage::kHello) || kind > static_cast<uint16_t>(KvMessage::kDone)) {
    return data_loss("a message of a transfer is of kind {}", kind);
  }
  return KvHead{.kind = static_cast<KvMessage>(kind), .size = size};
}

std::string encode(const KvAsk& ask) {
  BodyWriter out;
  out.bytes(ask.nonce);
  out.bytes(ask.lease);
  out.number(ask.generation);
  out.bytes(ask.text);
  out.text(ask.engine_id);
  out.text(ask.fingerprint);
  out.bytes(ask.mac);
  return out.take();
}

Result<KvAsk> decode_ask(std::string_view body) {
  BodyReader in(body);
  KvAsk ask;
  in.bytes(ask.nonce);
  in.bytes(ask.lease);
  ask.generation = in.number<uint64_t>();
  in.bytes(ask.text);
  ask.engine_id = in.text();
  ask.fingerprint = in.text();
  in.bytes(ask.mac);
  QUIRE_RETURN_IF_ERROR(in.finish("an ask"));
  return ask;
}

size_t most_ask_bytes() {
  return 16 + 16 + 8 + 16 + 2 * (1 + kMostKvName) + 32;
}

std::string encode(const KvOffer& offer) {
  QUIRE_CHECK(offer.checksums.size() == offer.places.size());
  BodyWriter out;
  out.bytes(offer.lease);
  out.number(offer.generation);
  out.number(offer.block_bytes);
  out.number(static_cast<uint8_t>(offer.is_long ? 1 : 0));
  out.number(static_cast<uint32_t>(offer.tokens.size()));
  for (const TokenId token : offer.tokens) out.number(token);
  out.number(static_cast<uint32_t>(offer.places.size()));
  for (size_t i = 0; i < offer.places.size(); ++i) {
    out.number(offer.places[i].index);
    out.number(offer.places[i].group);
    out.number(offer.checksums[i]);
  }
  out.bytes(offer.mac);
  return out.take();
}

size_t offer_bytes(size_t num_tokens, size_t num_places) {
  return 16 + 8 + 8 + 1 + 4 + num_tokens * sizeof(TokenId) + 4 + num_places * 16 + 32;
}

Result<KvOffer> decode_offer(std::string_view body) {
  BodyReader in(body);
  KvOffer offer;
  in.bytes(offer.lease);
  offer.generation = in.number<uint64_t>();
  offer.block_bytes = in.number<uint64_t>();
  const auto flags = in.number<uint8_t>();
  if (flags > 1) return data_loss("an offer of a transfer has flags {}", flags);
  offer.is_long = flags == 1;
  offer.tokens.resize(in.count(sizeof(TokenId)));
  for (TokenId& token : offer.tokens) token = in.number<TokenId>();
  const size_t num_places = in.count(16);
  for (size_t i = 0; i < num_places; ++i) {
    KvBlockPlace place;
    place.index = in.number<int32_t>();
    place.group = in.number<int32_t>();
    offer.places.push_back(place);
    offer.checksums.push_back(in.number<uint64_t>());
  }
  in.bytes(offer.mac);
  QUIRE_RETURN_IF_ERROR(in.finish("an offer"));
  return offer;
}

std::string encode(const KvBlockHead& head) {
  BodyWriter out;
  out.number(head.generation);
  out.number(head.number);
  return out.take();
}

KvBlockHead decode_block_head(std::string_view bytes) {
  QUIRE_CHECK(bytes.size() == kKvBlockHeadBytes);
  BodyReader in(bytes);
  KvBlockHead head;
  head.generation = in.number<uint64_t>();
  head.number = in.number<uint32_t>();
  return head;
}

KvBytes32 kv_mac(std::string_view secret, const KvBytes16& server_nonce, const KvBytes16& client_nonce,
                 std::string_view body_without_mac) {
  KvBytes32 mac{};
  if (secret.empty()) return mac;
  std::string text = "quire kv transfer\n";
  text.append(reinterpret_cast<const char*>(server_nonce.data()), server_nonce.size());
  text.append(reinterpret_cast<const char*>(client_nonce.data()), client_nonce.size());
  text.append(body_without_mac);
  unsigned int size = 0;
  QUIRE_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                   reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size) != nullptr);
  QUIRE_CHECK(size == mac.size());
  return mac;
}

bool same(const KvBytes32& a, const KvBytes32& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

KvBytes16 kv_text_hash(std::string_view cache_salt, std::span<const TokenId> tokens) {
  BodyWriter head;
  head.number(static_cast<uint64_t>(cache_salt.size()));
  std::string text = head.take();
  text.append(cache_salt);
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  KvBytes32 digest{};
  unsigned int size = 0;
  QUIRE_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  QUIRE_CHECK(size == digest.size());
  KvBytes16 hash{};
  std::memcpy(hash.data(), digest.data(), hash.size());
  return hash;
}

uint64_t kv_checksum(std::string_view block, const KvBytes16& lease, uint64_t generation, const KvBlockPlace& place) {
  BodyWriter of;
  of.bytes(lease);
  of.number(generation);
  of.number(place.index);
  of.number(place.group);
  const std::string seed = of.take();
  return hash_bytes(block.data(), block.size(), hash_bytes(seed.data(), seed.size(), kKvProtocolVersion));
}

KvBytes16 random_bytes16() {
  KvBytes16 bytes{};
  QUIRE_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return bytes;
}

std::string hex_of(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

bool from_hex(std::string_view text, KvBytes16& bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return hex_of(bytes) == text;
}

}  // namespace quire::net
