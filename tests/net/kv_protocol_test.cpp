// Messages between two instances of which one fetches blocks from the other, and leases of blocks.
#include "net/kv_protocol.h"

#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/kv_leases.h"
#include "tests/net/made_up_leases.h"

namespace quire::net {
namespace {

using std::chrono::milliseconds;
using LeaseClock = std::chrono::steady_clock;

// ---- messages ----

TEST(KvProtocol, WhatIsWrittenIsReadAgain) {
  KvAsk ask{.nonce = random_bytes16(),
            .lease = random_bytes16(),
            .generation = 12,
            .text = random_bytes16(),
            .engine_id = "one",
            .fingerprint = "f",
            .mac = {}};
  ask.mac.fill(9);
  EXPECT_EQ(encode(*decode_ask(encode(ask))), encode(ask));
  const KvOffer offer{.lease = random_bytes16(),
                      .generation = 3,
                      .block_bytes = 96,
                      .is_long = true,
                      .tokens = {1, 2, 3},
                      .places = {{0, 0}, {0, 1}},
                      .checksums = {5, 6},
                      .mac = {}};
  const std::string body = encode(offer);
  EXPECT_EQ(body.size(), offer_bytes(3, 2));
  EXPECT_EQ(encode(*decode_offer(body)), body);
  EXPECT_EQ(decode_head(encode_head({.kind = KvMessage::kBlock, .size = 77}))->size, 77u);
}

TEST(KvProtocol, WhatIsCutGrownOrBeyondItsBoundsIsRefused) {
  const std::string ask = encode(KvAsk{});
  const std::string offer = encode(KvOffer{.tokens = {1, 2, 3, 4}, .places = {{0, 0}}, .checksums = {5}, .mac = {}});
  for (size_t size = 0; size < ask.size(); ++size) EXPECT_FALSE(decode_ask(ask.substr(0, size)).ok()) << size;
  for (size_t size = 0; size < offer.size(); ++size) EXPECT_FALSE(decode_offer(offer.substr(0, size)).ok()) << size;
  EXPECT_FALSE(decode_ask(ask + "x").ok());
  EXPECT_FALSE(decode_offer(offer + "x").ok());
  std::string many = offer;
  many[33] = many[34] = many[35] = many[36] = '\x7f';  // tokens that are not there, and no memory for them
  EXPECT_FALSE(decode_offer(many).ok());
  std::string head = encode_head({.kind = KvMessage::kAsk, .size = 1});
  for (const size_t at : {size_t{0}, size_t{4}, size_t{6}}) {
    std::string other = head;
    other[at] = '\x63';
    EXPECT_FALSE(decode_head(other).ok()) << at;
  }
}

TEST(KvProtocol, AChecksumIsOfOneBlockOfOneLease) {
  const KvBytes16 lease = random_bytes16();
  const std::string block(64, 'x');
  const uint64_t sum = kv_checksum(block, lease, 1, {.index = 2, .group = 0});
  EXPECT_NE(kv_checksum(block, lease, 2, {.index = 2, .group = 0}), sum);
  EXPECT_NE(kv_checksum(block, lease, 1, {.index = 3, .group = 0}), sum);
  EXPECT_NE(kv_checksum(block, lease, 1, {.index = 2, .group = 1}), sum);
  EXPECT_NE(kv_checksum(block, random_bytes16(), 1, {.index = 2, .group = 0}), sum);
  EXPECT_NE(kv_checksum(std::string(64, 'y'), lease, 1, {.index = 2, .group = 0}), sum);
}

TEST(KvProtocol, ATextIsAnotherUnderAnotherSalt) {
  const std::vector<TokenId> tokens = {1, 2, 3};
  EXPECT_NE(kv_text_hash("a", tokens), kv_text_hash("b", tokens));
  EXPECT_NE(kv_text_hash("", tokens), kv_text_hash("", std::span(tokens).first(2)));
}

TEST(KvProtocol, HexIsThirtyTwoLowerCaseDigits) {
  KvBytes16 bytes{};
  EXPECT_TRUE(from_hex("000102030405060708090a0b0c0d0eff", bytes));
  EXPECT_EQ(hex_of(bytes), "000102030405060708090a0b0c0d0eff");
  for (const char* text : {"", "00", "000102030405060708090A0B0C0D0EFF", "000102030405060708090a0b0c0d0ef",
                           "000102030405060708090a0b0c0d0efg", "000102030405060708090a0b0c0d0effff"}) {
    EXPECT_FALSE(from_hex(text, bytes)) << text;
  }
}

// ---- leases ----

TEST(KvLeases, OnlyWhoNamesAllOfItGetsIt) {
  KvLeases leases(options());
  const auto now = LeaseClock::now();
  const auto lease = leases.add(prefix_of(2), kv_text_hash("", prefix_of(2).tokens), "model", now);
  ASSERT_NE(lease, nullptr);
  const KvAsk right = ask_for(*lease);
  EXPECT_EQ(leases.find(right, now).lease, lease);
  const auto refusal = [&](auto change) {
    KvAsk wrong = right;
    change(wrong);
    return leases.find(wrong, now).refusal;
  };
  EXPECT_EQ(refusal([](KvAsk& ask) { ask.lease[3] ^= 1; }), KvRefusal::kLease);
  EXPECT_EQ(refusal([](KvAsk& ask) { ++ask.generation; }), KvRefusal::kLease);
  EXPECT_EQ(refusal([](KvAsk& ask) { ask.engine_id = "engine-2"; }), KvRefusal::kLease);
  EXPECT_EQ(refusal([](KvAsk& ask) { ask.fingerprint = "another"; }), KvRefusal::kModel);
  EXPECT_EQ(refusal([](KvAsk& ask) { ask.text[0] ^= 1; }), KvRefusal::kText);
}

TEST(KvLeases, EndWithTheirTime) {
  KvLeases leases(options(1 << 20, milliseconds(100)));
  const auto now = LeaseClock::now();
  const auto lease = leases.add(prefix_of(2), {}, "model", now);
  EXPECT_NE(leases.find(ask_for(*lease), now + milliseconds(99)).lease, nullptr);
  EXPECT_EQ(leases.find(ask_for(*lease), now + milliseconds(100)).refusal, KvRefusal::kLease);
  EXPECT_EQ(leases.expire(now + milliseconds(99)), 0);
  EXPECT_EQ(leases.expire(now + milliseconds(100)), 1);
  EXPECT_EQ(leases.bytes(), 0);
}

TEST(KvLeases, TakeNoMoreMemoryThanTheyMay) {
  KvLeases leases(options(5 * kBlockBytes));
  const auto now = LeaseClock::now();
  const auto first = leases.add(prefix_of(3), {}, "", now);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(leases.add(prefix_of(3), {}, "", now), nullptr);
  leases.release(*first);
  leases.release(*first);
  EXPECT_EQ(leases.bytes(), 0);
  const auto second = leases.add(prefix_of(3), {}, "", now);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second->generation, first->generation);
  EXPECT_NE(second->id, first->id);
}

}  // namespace
}  // namespace quire::net
