// Both ends of a transfer of blocks, and what may go wrong between them.
#include "server/kv_listener.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include "net/kv_client.h"
#include "tests/net/made_up_leases.h"

namespace quire::server {
namespace {

using boost::asio::ip::tcp;
using net::kBlockBytes;
using net::kBlockSize;
using net::KvLease;
using net::KvLeases;
using net::KvOutcome;
using net::KvPull;
using net::KvPulled;
using net::KvRefusal;
using std::chrono::milliseconds;
using TransferTime = std::chrono::steady_clock;

// What passes between the two, which a test may change: (from the listener, bytes passed before, the bytes).
using Damage = std::function<void(bool, size_t, std::string&)>;

// A man in the middle.
class Between {
 public:
  Between(uint16_t port, Damage damage)
      : acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}),
        thread_([this, port, damage = std::move(damage)] {
          boost::system::error_code error;
          tcp::socket one = acceptor_.accept(error);
          tcp::socket other(context_);
          other.connect({boost::asio::ip::address_v4::loopback(), port}, error);
          std::thread back([&] { pass(other, one, true, damage); });
          pass(one, other, false, damage);
          back.join();
        }) {}
  ~Between() { thread_.join(); }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  static void pass(tcp::socket& from, tcp::socket& to, bool of_listener, const Damage& damage) {
    std::vector<char> buffer(1 << 16);
    size_t passed = 0;
    boost::system::error_code error;
    while (true) {
      const size_t count = from.read_some(boost::asio::buffer(buffer), error);
      if (error) break;
      std::string bytes(buffer.data(), count);
      damage(of_listener, passed, bytes);
      passed += count;
      boost::asio::write(to, boost::asio::buffer(bytes), error);
      if (error) break;
    }
    to.shutdown(tcp::socket::shutdown_both, error);
    from.shutdown(tcp::socket::shutdown_both, error);
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  std::thread thread_;
};

class KvTransferTest : public testing::Test {
 protected:
  void listen(const std::string& secret = "") {
    auto started =
        KvListener::start({.address = "127.0.0.1", .port = 0, .secret = secret, .timeout = milliseconds(2000)}, leases_,
                          {.expired = [](int64_t) {},
                           .refused = [this](KvRefusal why) { refused_.push_back(why); },
                           .sent = [this](int64_t blocks) { sent_ += blocks; }});
    ASSERT_TRUE(started.ok()) << started.status().message();
    listener_ = std::move(*started);
  }
  std::shared_ptr<const KvLease> lease(size_t num_blocks = 3, TokenId first = 7) {
    KvPrefix prefix = net::prefix_of(num_blocks, first);
    const net::KvBytes16 text = net::kv_text_hash("", prefix.tokens);
    return leases_->add(std::move(prefix), text, "model", TransferTime::now());
  }
  KvPull pull_of(const KvLease& lease, const std::string& secret = "") {
    prompt_ = lease.prefix.tokens;
    prompt_.push_back(1);
    return {.address = "127.0.0.1",
            .port = listener_->port(),
            .secret = secret,
            .timeout = milliseconds(2000),
            .ask = net::ask_for(lease),
            .prompt = prompt_,
            .num_blocks = lease.prefix.blocks.size(),
            .block_size = kBlockSize,
            .num_groups = 1,
            .block_bytes = kBlockBytes};
  }
  KvOutcome outcome(const KvPull& pull) {
    const KvPulled pulled = net::pull_blocks(pull);
    if (pulled.outcome != KvOutcome::kFetched) {
      EXPECT_TRUE(pulled.prefix.blocks.empty());
    }
    return pulled.outcome;
  }

  const std::shared_ptr<KvLeases> leases_ = std::make_shared<KvLeases>(net::options());
  std::vector<KvRefusal> refused_;
  std::atomic<int64_t> sent_ = 0;
  std::vector<TokenId> prompt_;
  std::unique_ptr<KvListener> listener_;  // last: it calls back
};

TEST_F(KvTransferTest, BlocksArriveAsTheyWereAndTheLeaseIsGone) {
  listen();
  const auto one = lease();
  const KvPull pull = pull_of(*one);
  const KvPulled pulled = net::pull_blocks(pull);
  ASSERT_EQ(pulled.outcome, KvOutcome::kFetched);
  EXPECT_EQ(pulled.prefix.blocks, one->prefix.blocks);
  EXPECT_EQ(pulled.prefix.places, one->prefix.places);
  EXPECT_EQ(pulled.prefix.tokens, one->prefix.tokens);
  for (int i = 0; i < 200 && leases_->num_leases() > 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(leases_->num_leases(), 0);
  EXPECT_EQ(outcome(pull), KvOutcome::kLease);
}

TEST_F(KvTransferTest, AForeignLeaseModelOrTextIsRefused) {
  listen();
  const auto one = lease();
  const auto other = lease(3, 500);
  KvPull pull = pull_of(*one);
  pull.ask.lease = other->id;  // a lease that there is, of another generation and text
  EXPECT_EQ(outcome(pull), KvOutcome::kLease);
  pull.ask.generation = other->generation;
  EXPECT_EQ(outcome(pull), KvOutcome::kText);
  pull.ask.text = other->text;  // the other side is content, and the tokens are others
  EXPECT_EQ(outcome(pull), KvOutcome::kText);
  pull = pull_of(*one);
  pull.ask.fingerprint = "another";
  EXPECT_EQ(outcome(pull), KvOutcome::kModel);
  pull = pull_of(*one);
  pull.block_bytes = 2 * kBlockBytes;
  EXPECT_EQ(outcome(pull), KvOutcome::kModel);
  pull = pull_of(*one);
  pull.num_blocks = 2;
  EXPECT_NE(outcome(pull), KvOutcome::kFetched);
}

TEST_F(KvTransferTest, WithoutTheSecretNothingIsGivenOrBelieved) {
  listen("a secret of sixteen");
  const auto one = lease();
  EXPECT_EQ(outcome(pull_of(*one)), KvOutcome::kSecret);
  EXPECT_EQ(outcome(pull_of(*one, "another")), KvOutcome::kSecret);
  EXPECT_EQ(outcome(pull_of(*one, "a secret of sixteen")), KvOutcome::kFetched);
  // Who has the secret believes nobody without it: the listener that has none takes any ask.
  listen();
  const auto two = lease();
  KvPull pull = pull_of(*two, "a secret of sixteen");
  EXPECT_EQ(outcome(pull), KvOutcome::kSecret);
}

TEST_F(KvTransferTest, NobodyThereOrNobodyWhoAnswersCostsTheTimeout) {
  listen();
  const auto one = lease();
  KvPull pull = pull_of(*one);
  boost::asio::io_context context;
  tcp::acceptor silent(context, {boost::asio::ip::address_v4::loopback(), 0});
  pull.port = silent.local_endpoint().port();
  pull.timeout = milliseconds(200);
  const auto start = TransferTime::now();
  EXPECT_EQ(outcome(pull), KvOutcome::kTimeout);
  EXPECT_LT(TransferTime::now() - start, milliseconds(1900));
  silent.close();
  EXPECT_EQ(outcome(pull), KvOutcome::kConnection);
}

// Any byte of the whole conversation flipped, in either direction: what was computed comes, or nothing.
TEST_F(KvTransferTest, AFlippedByteNeverGivesAnotherBlock) {
  listen();
  const auto good = lease();
  const size_t all =
      net::kKvHeadBytes * 5 + 16 + net::offer_bytes(3 * kBlockSize, 3) + 3 * (net::kKvBlockHeadBytes + kBlockBytes);
  std::mt19937 draw(20261126);
  int num_fetched = 0;
  for (size_t at = 0; at < all; at += 1 + draw() % 5) {
    const auto one = lease();
    Between between(listener_->port(), [&](bool of_listener, size_t passed, std::string& bytes) {
      if (of_listener && at >= passed && at < passed + bytes.size()) bytes[at - passed] ^= static_cast<char>(0x10);
    });
    KvPull pull = pull_of(*one);
    pull.port = between.port();
    pull.timeout = milliseconds(300);
    const KvPulled pulled = net::pull_blocks(pull);
    if (pulled.outcome != KvOutcome::kFetched) {
      EXPECT_TRUE(pulled.prefix.blocks.empty());
      continue;
    }
    ++num_fetched;
    EXPECT_EQ(pulled.prefix.blocks, good->prefix.blocks) << at;
    EXPECT_EQ(pulled.prefix.tokens, good->prefix.tokens) << at;
    EXPECT_EQ(pulled.prefix.places, good->prefix.places) << at;
  }
  EXPECT_LT(num_fetched, 30) << "nonces, and a flag that the engine checks, are all that may differ";
}

TEST_F(KvTransferTest, AConnectionThatBreaksInTheMiddleGivesNothing) {
  listen();
  for (const size_t after : {size_t{3}, size_t{40}, size_t{200}, size_t{400}}) {
    const auto one = lease();
    size_t left = after;
    Between between(listener_->port(), [&](bool of_listener, size_t, std::string& bytes) {
      if (!of_listener) return;
      bytes.resize(std::min(left, bytes.size()));
      left -= bytes.size();
    });
    KvPull pull = pull_of(*one);
    pull.port = between.port();
    pull.timeout = milliseconds(200);
    EXPECT_NE(outcome(pull), KvOutcome::kFetched);
  }
}

TEST_F(KvTransferTest, WhoeverTalksNonsenseIsHungUpOn) {
  listen();
  std::mt19937 draw(7);
  for (int round = 0; round < 30; ++round) {
    boost::asio::io_context context;
    tcp::socket socket(context);
    socket.connect({boost::asio::ip::address_v4::loopback(), listener_->port()});
    std::string bytes(draw() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(draw());
    if (round % 2 == 0) bytes = net::encode_head({.kind = net::KvMessage::kAsk, .size = 0xffffffff}) + bytes;
    boost::system::error_code error;
    boost::asio::write(socket, boost::asio::buffer(bytes), error);
  }
  EXPECT_EQ(outcome(pull_of(*lease())), KvOutcome::kFetched);
}

TEST_F(KvTransferTest, ManyAtOnceGetTheirOwn) {
  listen();
  std::vector<std::shared_ptr<const KvLease>> all;
  for (TokenId i = 0; i < 32; ++i) all.push_back(lease(3, 1000 * i));
  std::vector<KvPulled> pulled(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      KvPull pull{.address = "127.0.0.1",
                  .port = listener_->port(),
                  .secret = "",
                  .timeout = milliseconds(10'000),
                  .ask = net::ask_for(*all[i]),
                  .prompt = all[i]->prefix.tokens,
                  .num_blocks = 3,
                  .block_size = kBlockSize,
                  .num_groups = 1,
                  .block_bytes = kBlockBytes};
      pulled[i] = net::pull_blocks(pull);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(pulled[i].outcome, KvOutcome::kFetched) << i;
    EXPECT_EQ(pulled[i].prefix.tokens, all[i]->prefix.tokens) << i;
  }
}

}  // namespace
}  // namespace quire::server
