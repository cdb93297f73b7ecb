#include "server/kv_listener.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <thread>
#include <utility>

namespace quire::server {
namespace {

namespace kv_asio = boost::asio;
using kv_tcp = boost::asio::ip::tcp;
using KvClock = std::chrono::steady_clock;

constexpr auto kKvToken = kv_asio::as_tuple(kv_asio::use_awaitable);
constexpr std::chrono::milliseconds kLookForExpired{250};

}  // namespace

struct KvListener::Impl {
  Impl(Options listener_options, std::shared_ptr<net::KvLeases> the_leases, Events the_events)
      : options(std::move(listener_options)), leases(std::move(the_leases)), events(std::move(the_events)) {}

  Status listen();
  kv_asio::awaitable<void> accept();
  kv_asio::awaitable<void> expire();
  kv_asio::awaitable<void> serve(kv_tcp::socket socket);
  kv_asio::awaitable<void> converse(boost::beast::tcp_stream& stream);
  // False: the connection broke, or was too slow.
  kv_asio::awaitable<bool> send(boost::beast::tcp_stream& stream, net::KvMessage kind, const std::string& body,
                                const std::string& more);
  kv_asio::awaitable<bool> receive(boost::beast::tcp_stream& stream, net::KvMessage kind, size_t most,
                                   std::string& body);

  const Options options;
  const std::shared_ptr<net::KvLeases> leases;
  const Events events;
  kv_asio::io_context io{1};
  kv_tcp::acceptor acceptor{io};
  size_t num_connections = 0;
  uint16_t port = 0;
  std::thread thread;
};

Status KvListener::Impl::listen() {
  boost::system::error_code error;
  const auto address = kv_asio::ip::make_address(options.address, error);
  if (error) return invalid_argument("\"{}\" is no address to listen on", options.address);
  const kv_tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(kv_tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kv_asio::socket_base::max_listen_connections, error);
  if (!error) port = acceptor.local_endpoint(error).port();
  if (error) {
    return unavailable("{} port {} cannot be listened on for transfers: {}", options.address, options.port,
                       error.message());
  }
  return {};
}

kv_asio::awaitable<void> KvListener::Impl::accept() {
  while (true) {
    auto [error, socket] = co_await acceptor.async_accept(kKvToken);
    if (error == kv_asio::error::operation_aborted) co_return;
    if (error) {  // out of file descriptors, most likely: they come back
      kv_asio::steady_timer pause(io, kLookForExpired);
      co_await pause.async_wait(kKvToken);
      continue;
    }
    if (num_connections >= options.most_connections) continue;  // closed: who asks computes
    kv_asio::co_spawn(io, serve(std::move(socket)), kv_asio::detached);
  }
}

kv_asio::awaitable<void> KvListener::Impl::expire() {
  kv_asio::steady_timer timer(io);
  while (true) {
    timer.expires_after(kLookForExpired);
    const auto [error] = co_await timer.async_wait(kKvToken);
    if (error) co_return;
    if (const int64_t gone = leases->expire(KvClock::now()); gone > 0) events.expired(gone);
  }
}

kv_asio::awaitable<void> KvListener::Impl::serve(kv_tcp::socket socket) {
  ++num_connections;
  boost::beast::tcp_stream stream(std::move(socket));
  co_await converse(stream);
  --num_connections;
}

kv_asio::awaitable<void> KvListener::Impl::converse(boost::beast::tcp_stream& stream) {
  const net::KvBytes16 nonce = net::random_bytes16();
  const std::string hello(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  if (!co_await send(stream, net::KvMessage::kHello, hello, {})) co_return;
  std::string body;
  if (!co_await receive(stream, net::KvMessage::kAsk, net::most_ask_bytes(), body)) co_return;
  const auto ask = net::decode_ask(body);
  if (!ask.ok()) co_return;
  const std::string_view told = std::string_view(body).substr(0, body.size() - ask->mac.size());
  net::KvLeases::Found found{.lease = nullptr, .refusal = net::KvRefusal::kSecret};
  if (net::same(ask->mac, net::kv_mac(options.secret, nonce, ask->nonce, told)))
    found = leases->find(*ask, KvClock::now());
  if (found.lease == nullptr) {
    events.refused(found.refusal);
    const auto why = static_cast<uint16_t>(found.refusal);
    co_await send(stream, net::KvMessage::kRefusal, std::string(reinterpret_cast<const char*>(&why), sizeof(why)), {});
    co_return;
  }
  const net::KvLease& lease = *found.lease;  // held until this ends, whatever becomes of its time
  net::KvOffer offer{.lease = lease.id,
                     .generation = lease.generation,
                     .block_bytes = lease.prefix.blocks.front().size(),
                     .is_long = lease.prefix.is_long,
                     .tokens = lease.prefix.tokens,
                     .places = lease.prefix.places,
                     .checksums = lease.checksums};
  std::string out = net::encode(offer);
  out.resize(out.size() - offer.mac.size());
  offer.mac = net::kv_mac(options.secret, nonce, ask->nonce, out);
  out.append(reinterpret_cast<const char*>(offer.mac.data()), offer.mac.size());
  if (!co_await send(stream, net::KvMessage::kOffer, out, {})) co_return;
  for (size_t i = 0; i < lease.prefix.blocks.size(); ++i) {
    const std::string head =
        net::encode(net::KvBlockHead{.generation = lease.generation, .number = static_cast<uint32_t>(i)});
    if (!co_await send(stream, net::KvMessage::kBlock, head, lease.prefix.blocks[i])) co_return;
  }
  if (!co_await receive(stream, net::KvMessage::kDone, 0, body)) co_return;
  leases->release(lease);
  events.sent(static_cast<int64_t>(lease.prefix.blocks.size()));
}

kv_asio::awaitable<bool> KvListener::Impl::send(boost::beast::tcp_stream& stream, net::KvMessage kind,
                                                const std::string& body, const std::string& more) {
  const std::string head = net::encode_head({.kind = kind, .size = static_cast<uint32_t>(body.size() + more.size())});
  const std::array<kv_asio::const_buffer, 3> parts = {kv_asio::buffer(head), kv_asio::buffer(body),
                                                      kv_asio::buffer(more)};
  stream.expires_after(options.timeout);
  const auto [error, size] = co_await kv_asio::async_write(stream, parts, kKvToken);
  co_return !error;
}

kv_asio::awaitable<bool> KvListener::Impl::receive(boost::beast::tcp_stream& stream, net::KvMessage kind, size_t most,
                                                   std::string& body) {
  std::string bytes(net::kKvHeadBytes, '\0');
  stream.expires_after(options.timeout);
  const auto [error, size] = co_await kv_asio::async_read(stream, kv_asio::buffer(bytes), kKvToken);
  if (error) co_return false;
  const auto head = net::decode_head(bytes);
  if (!head.ok() || head->kind != kind || head->size > most) co_return false;
  body.assign(head->size, '\0');
  if (body.empty()) co_return true;
  stream.expires_after(options.timeout);
  const auto [broken, read] = co_await kv_asio::async_read(stream, kv_asio::buffer(body), kKvToken);
  co_return !broken;
}

Result<std::unique_ptr<KvListener>> KvListener::start(Options options, std::shared_ptr<net::KvLeases> leases,
                                                      Events events) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(leases), std::move(events));
  QUIRE_RETURN_IF_ERROR(impl->listen());
  kv_asio::co_spawn(impl->io, impl->accept(), kv_asio::detached);
  kv_asio::co_spawn(impl->io, impl->expire(), kv_asio::detached);
  impl->thread = std::thread([&io = impl->io] { io.run(); });
  return std::unique_ptr<KvListener>(new KvListener(std::move(impl)));
}

KvListener::KvListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvListener::~KvListener() {
  impl_->io.stop();
  impl_->thread.join();
}

uint16_t KvListener::port() const {
  return impl_->port;
}

}  // namespace quire::server
