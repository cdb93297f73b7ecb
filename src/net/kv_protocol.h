// What two instances say to each other when one fetches blocks of the prefix cache from the other (docs/transfer.md).
// Over one TCP connection, little-endian, each message a head (letters, version, kind, size) and a body:
//
//   who computed            who goes on
//   hello (a nonce)    ->
//                      <-   ask: which lease, for which text, of which model
//   offer, or refusal  ->   the text, and each block's place and checksum
//   block, block, ...  ->
//                      <-   done: the lease may go
//
// With a secret, ask and offer carry an HMAC-SHA256 over both nonces and all that stands in them, so that nobody
// without it is given a block or believed. It protects no bytes of blocks from who sits between the two: their
// checksums are against accidents.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "types/kv_transfer.h"

namespace quire::net {

inline constexpr uint16_t kKvProtocolVersion = 1;
inline constexpr size_t kKvHeadBytes = 12;
inline constexpr size_t kMostKvName = 64;  // bytes of an engine's id, of a fingerprint

using KvBytes16 = std::array<uint8_t, 16>;
using KvBytes32 = std::array<uint8_t, 32>;

enum class KvMessage : uint16_t { kHello = 1, kAsk = 2, kOffer = 3, kRefusal = 4, kBlock = 5, kDone = 6 };

// Why a lease is not given.
enum class KvRefusal : uint16_t {
  kNone = 0,
  kSecret = 1,
  kLease = 2,  // not known, over, or of another generation: which, is nobody's business
  kModel = 3,
  kText = 4,
};

struct KvHead {
  KvMessage kind = KvMessage::kHello;
  uint32_t size = 0;  // of the body
};

struct KvAsk {
  KvBytes16 nonce{};
  KvBytes16 lease{};  // 128 random bits: who knows them was told
  uint64_t generation = 0;
  KvBytes16 text{};         // kv_text_hash()
  std::string engine_id;    // whose lease it is
  std::string fingerprint;  // of who asks: what its keys and values depend on
  KvBytes32 mac{};
};

struct KvOffer {
  KvBytes16 lease{};
  uint64_t generation = 0;
  uint64_t block_bytes = 0;
  bool is_long = false;
  std::vector<TokenId> tokens;
  std::vector<KvBlockPlace> places;
  std::vector<uint64_t> checksums;  // [places]: kv_checksum()
  KvBytes32 mac{};
};

// A block's body: this head, then its bytes.
struct KvBlockHead {
  uint64_t generation = 0;
  uint32_t number = 0;  // in the offer's list
};
inline constexpr size_t kKvBlockHeadBytes = 12;

std::string encode_head(const KvHead& head);
// Errors: data_loss: other letters, version or kind.
Result<KvHead> decode_head(std::string_view bytes);

// Bodies. The last 32 bytes of an ask and an offer are its mac. Errors: data_loss: cut, too long, or beyond a bound.
std::string encode(const KvAsk& ask);
Result<KvAsk> decode_ask(std::string_view body);
std::string encode(const KvOffer& offer);
// A body of so many bytes has at most as many tokens and places: no memory is taken for what is not there.
Result<KvOffer> decode_offer(std::string_view body);
std::string encode(const KvBlockHead& head);
KvBlockHead decode_block_head(std::string_view bytes);  // REQUIRES: kKvBlockHeadBytes of them
size_t most_ask_bytes();
size_t offer_bytes(size_t num_tokens, size_t num_places);

// A message as it goes out, with the mac of `secret` (empty: zeros) in its last 32 bytes.
KvBytes32 kv_mac(std::string_view secret, const KvBytes16& server_nonce, const KvBytes16& client_nonce,
                 std::string_view body_without_mac);
bool same(const KvBytes32& a, const KvBytes32& b);  // in the same time, wherever they differ

// What a lease's text is, with the salt that it was read under: 128 bits of SHA-256.
KvBytes16 kv_text_hash(std::string_view cache_salt, std::span<const TokenId> tokens);
// XXH3 of a block's bytes; its seed is the lease, its generation and the place, so that no other block's will do.
uint64_t kv_checksum(std::string_view block, const KvBytes16& lease, uint64_t generation, const KvBlockPlace& place);

KvBytes16 random_bytes16();
std::string hex_of(std::span<const uint8_t> bytes);
// False: not 32 lower-case hexadecimal digits.
bool from_hex(std::string_view text, KvBytes16& bytes);

}  // namespace quire::net
