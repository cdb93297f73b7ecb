#include "net/kv_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cstring>
#include <utility>

namespace quire::net {
namespace {

constexpr auto kPullToken = boost::asio::as_tuple(boost::asio::use_awaitable);

KvOutcome outcome_of(uint16_t refusal) {
  switch (static_cast<KvRefusal>(refusal)) {
    case KvRefusal::kSecret:
      return KvOutcome::kSecret;
    case KvRefusal::kLease:
      return KvOutcome::kLease;
    case KvRefusal::kModel:
      return KvOutcome::kModel;
    case KvRefusal::kText:
      return KvOutcome::kText;
    case KvRefusal::kNone:
      break;
  }
  return KvOutcome::kProtocol;
}

// One connection. Each step leaves in outcome_ what went wrong.
class KvConversation {
 public:
  KvConversation(const KvPull& pull, boost::asio::io_context& io) : pull_(pull), stream_(io) {
    stream_.expires_after(pull.timeout);
  }

  boost::asio::awaitable<void> run();
  KvPulled take() { return {.outcome = outcome_, .prefix = std::move(prefix_)}; }

 private:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;

  bool fail(KvOutcome outcome) {
    outcome_ = outcome;
    return false;
  }
  bool broken(boost::system::error_code error) {
    return fail(error == boost::beast::error::timeout ? KvOutcome::kTimeout : KvOutcome::kConnection);
  }
  Awaitable<bool> send(KvMessage kind, const std::string& body);
  Awaitable<bool> read(char* data, size_t size);
  Awaitable<bool> receive(KvHead& head);
  Awaitable<bool> begin();
  Awaitable<bool> take_offer();
  Awaitable<bool> take_block(size_t number);
  bool accept(const KvOffer& offer);

  const KvPull& pull_;
  boost::beast::tcp_stream stream_;
  KvBytes16 server_nonce_{};
  KvBytes16 nonce_ = random_bytes16();
  KvOffer offer_;
  KvPrefix prefix_;
  KvOutcome outcome_ = KvOutcome::kConnection;
};

boost::asio::awaitable<bool> KvConversation::send(KvMessage kind, const std::string& body) {
  const std::string head = encode_head({.kind = kind, .size = static_cast<uint32_t>(body.size())});
  const std::array<boost::asio::const_buffer, 2> parts = {boost::asio::buffer(head), boost::asio::buffer(body)};
  const auto [error, size] = co_await boost::asio::async_write(stream_, parts, kPullToken);
  co_return error ? broken(error) : true;
}

boost::asio::awaitable<bool> KvConversation::read(char* data, size_t size) {
  const auto [error, count] = co_await boost::asio::async_read(stream_, boost::asio::buffer(data, size), kPullToken);
  co_return error ? broken(error) : true;
}

boost::asio::awaitable<bool> KvConversation::receive(KvHead& head) {
  std::string bytes(kKvHeadBytes, '\0');
  if (!co_await read(bytes.data(), bytes.size())) co_return false;
  const auto decoded = decode_head(bytes);
  if (!decoded.ok()) co_return fail(KvOutcome::kProtocol);
  head = *decoded;
  co_return true;
}

boost::asio::awaitable<bool> KvConversation::begin() {
  boost::system::error_code wrong;
  const auto address = boost::asio::ip::make_address(pull_.address, wrong);
  if (wrong) co_return fail(KvOutcome::kConnection);
  const auto [error] = co_await stream_.async_connect(boost::asio::ip::tcp::endpoint(address, pull_.port), kPullToken);
  if (error) co_return broken(error);
  KvHead head;
  if (!co_await receive(head)) co_return false;
  if (head.kind != KvMessage::kHello || head.size != server_nonce_.size()) co_return fail(KvOutcome::kProtocol);
  if (!co_await read(reinterpret_cast<char*>(server_nonce_.data()), server_nonce_.size())) co_return false;
  KvAsk ask = pull_.ask;
  ask.nonce = nonce_;
  std::string body = encode(ask);
  body.resize(body.size() - ask.mac.size());
  ask.mac = kv_mac(pull_.secret, server_nonce_, nonce_, body);
  body.append(reinterpret_cast<const char*>(ask.mac.data()), ask.mac.size());
  co_return co_await send(KvMessage::kAsk, body);
}

boost::asio::awaitable<bool> KvConversation::take_offer() {
  KvHead head;
  if (!co_await receive(head)) co_return false;
  if (head.kind == KvMessage::kRefusal && head.size == sizeof(uint16_t)) {
    uint16_t why = 0;
    if (!co_await read(reinterpret_cast<char*>(&why), sizeof(why))) co_return false;
    co_return fail(outcome_of(why));
  }
  const size_t most = offer_bytes(pull_.num_blocks * pull_.block_size, pull_.num_blocks * pull_.num_groups);
  if (head.kind != KvMessage::kOffer || head.size > most) co_return fail(KvOutcome::kProtocol);
  std::string body(head.size, '\0');
  if (!co_await read(body.data(), body.size())) co_return false;
  auto offer = decode_offer(body);
  if (!offer.ok()) co_return fail(KvOutcome::kProtocol);
  const std::string_view told = std::string_view(body).substr(0, body.size() - offer->mac.size());
  if (!same(offer->mac, kv_mac(pull_.secret, server_nonce_, nonce_, told))) co_return fail(KvOutcome::kSecret);
  if (!accept(*offer)) co_return false;
  offer_ = std::move(*offer);
  co_return true;
}

// Whether it is what was asked for.
bool KvConversation::accept(const KvOffer& offer) {
  if (offer.lease != pull_.ask.lease || offer.generation != pull_.ask.generation) return fail(KvOutcome::kLease);
  if (offer.block_bytes != pull_.block_bytes) return fail(KvOutcome::kModel);
  const size_t num_tokens = pull_.num_blocks * pull_.block_size;
  const bool is_text = offer.tokens.size() == num_tokens && num_tokens <= pull_.prompt.size() &&
                       std::equal(offer.tokens.begin(), offer.tokens.end(), pull_.prompt.begin());
  if (!is_text) return fail(KvOutcome::kText);
  std::pair<int64_t, int64_t> before(-1, -1);
  for (const KvBlockPlace& place : offer.places) {
    const std::pair<int64_t, int64_t> here(place.index, place.group);
    const bool is_place = place.index >= 0 && std::cmp_less(place.index, pull_.num_blocks) && place.group >= 0 &&
                          std::cmp_less(place.group, pull_.num_groups) && here > before;
    if (!is_place) return fail(KvOutcome::kProtocol);
    before = here;
  }
  return !offer.places.empty() || fail(KvOutcome::kProtocol);
}

boost::asio::awaitable<bool> KvConversation::take_block(size_t number) {
  KvHead head;
  if (!co_await receive(head)) co_return false;
  if (head.kind != KvMessage::kBlock || head.size != kKvBlockHeadBytes + pull_.block_bytes) {
    co_return fail(KvOutcome::kProtocol);
  }
  std::string bytes(kKvBlockHeadBytes, '\0');
  if (!co_await read(bytes.data(), bytes.size())) co_return false;
  const KvBlockHead block = decode_block_head(bytes);
  if (block.generation != offer_.generation || block.number != number) co_return fail(KvOutcome::kLease);
  bytes.assign(pull_.block_bytes, '\0');
  if (!co_await read(bytes.data(), bytes.size())) co_return false;
  if (kv_checksum(bytes, offer_.lease, offer_.generation, offer_.places[number]) != offer_.checksums[number]) {
    co_return fail(KvOutcome::kChecksum);
  }
  prefix_.blocks.push_back(std::move(bytes));
  co_return true;
}

boost::asio::awaitable<void> KvConversation::run() {
  if (!co_await begin() || !co_await take_offer()) co_return;
  for (size_t i = 0; i < offer_.places.size(); ++i) {
    if (co_await take_block(i)) continue;
    prefix_.blocks.clear();
    co_return;
  }
  prefix_.tokens = std::move(offer_.tokens);
  prefix_.is_long = offer_.is_long;
  prefix_.places = std::move(offer_.places);
  outcome_ = KvOutcome::kFetched;
  // All is there: whether the other side hears that it may forget the lease changes nothing.
  const std::string head = encode_head({.kind = KvMessage::kDone, .size = 0});
  co_await boost::asio::async_write(stream_, boost::asio::buffer(head), kPullToken);
}

}  // namespace

KvPulled pull_blocks(const KvPull& pull) {
  boost::asio::io_context io(1);
  KvConversation conversation(pull, io);
  boost::asio::co_spawn(io, conversation.run(), boost::asio::detached);
  io.run();
  return conversation.take();
}

}  // namespace quire::net
