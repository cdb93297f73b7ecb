#include "server/kv_events.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/parse_json.h"
#include "server/zmtp_peer.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using boost::asio::ip::tcp;

constexpr size_t kMostPeers = 256;                // of a port
constexpr size_t kMostTopics = 64;                // of a subscriber
constexpr size_t kMostReplays = 2;                // that a peer may have asked for and not been given yet
constexpr size_t kReplayBytes = 64 << 10;         // of a replay in memory at a time, beyond one batch
constexpr std::chrono::milliseconds kPause{250};  // where connections cannot be accepted

// MessagePack, as much of it as events need. https://github.com/msgpack/msgpack/blob/master/spec.md
class Packer {
 public:
  void nil() { out_.push_back('\xc0'); }
  void number(uint64_t value) {
    if (value < 128) return byte(value);
    if (value <= UINT8_MAX) return sized(0xcc, value, 1);
    if (value <= UINT16_MAX) return sized(0xcd, value, 2);
    if (value <= UINT32_MAX) return sized(0xce, value, 4);
    sized(0xcf, value, 8);
  }
  void real(double value) {
    uint64_t bits = 0;
    static_assert(sizeof(bits) == sizeof(value));
    std::memcpy(&bits, &value, sizeof(bits));
    sized(0xcb, bits, 8);
  }
  void text(std::string_view value) {
    if (value.size() < 32) {
      byte(0xa0 | value.size());
    } else if (value.size() <= UINT8_MAX) {
      sized(0xd9, value.size(), 1);
    } else if (value.size() <= UINT16_MAX) {
      sized(0xda, value.size(), 2);
    } else {
      sized(0xdb, value.size(), 4);
    }
    out_.append(value);
  }
  void array(size_t size) {
    if (size < 16) return byte(0x90 | size);
    if (size <= UINT16_MAX) return sized(0xdc, size, 2);
    sized(0xdd, size, 4);
  }
  std::string take() { return std::move(out_); }

 private:
  void byte(uint64_t value) { out_.push_back(static_cast<char>(value)); }
  void sized(uint64_t kind, uint64_t value, int bytes) {
    byte(kind);
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) byte(value >> shift & 0xff);
  }
  std::string out_;
};

const char* name_of(KvCacheEvent::Medium medium) {
  return medium == KvCacheEvent::Medium::kPool ? "GPU" : "CPU";
}

// What told blocks apart besides their tokens, one entry a block: the adapter's name in each, the salt in the first of
// a text.
void pack_extra_keys(const KvCacheEvent& event, Packer& packer) {
  if (event.adapter_name.empty() && event.salt.empty()) return packer.nil();
  packer.array(event.hashes.size());
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    const bool salted = i == 0 && !event.parent && !event.salt.empty();
    const size_t count = (event.adapter_name.empty() ? 0u : 1u) + (salted ? 1u : 0u);
    if (count == 0) {
      packer.nil();
      continue;
    }
    packer.array(count);
    if (!event.adapter_name.empty()) packer.text(event.adapter_name);
    if (salted) packer.text(event.salt);
  }
}

void pack_event(const KvCacheEvent& event, Packer& packer) {
  const auto pack_hashes = [&] {
    packer.array(event.hashes.size());
    for (const uint64_t hash : event.hashes) packer.number(hash);
  };
  switch (event.kind) {
    case KvCacheEvent::Kind::kStored:
      packer.array(9);
      packer.text("BlockStored");
      pack_hashes();
      event.parent ? packer.number(*event.parent) : packer.nil();
      packer.array(event.tokens.size());
      for (const TokenId token : event.tokens) packer.number(static_cast<uint64_t>(token));
      packer.number(event.tokens.size() / std::max<size_t>(event.hashes.size(), 1));  // tokens of a block
      event.adapter == 0 ? packer.nil() : packer.number(static_cast<uint64_t>(event.adapter));
      packer.text(name_of(event.medium));
      event.adapter_name.empty() ? packer.nil() : packer.text(event.adapter_name);
      pack_extra_keys(event, packer);
      break;
    case KvCacheEvent::Kind::kRemoved:
      packer.array(3);
      packer.text("BlockRemoved");
      pack_hashes();
      packer.text(name_of(event.medium));
      break;
    case KvCacheEvent::Kind::kCleared:
      packer.array(1);
      packer.text("AllBlocksCleared");
      break;
  }
}

std::string big_endian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(number >> shift));
  return bytes;
}

// "tcp://*:5557", "tcp://127.0.0.1:5557", "tcp://[::1]:5557".
Result<tcp::endpoint> parse_endpoint(const std::string& text) {
  constexpr std::string_view kPrefix = "tcp://";
  const size_t colon = text.rfind(':');
  const auto refuse = [&] {
    return invalid_argument(
        "kv_events_config: the endpoint \"{}\" is none that can be listened on; expected tcp://*:PORT or "
        "tcp://ADDRESS:PORT",
        text);
  };
  if (!text.starts_with(kPrefix) || colon < kPrefix.size()) return refuse();
  std::string host = text.substr(kPrefix.size(), colon - kPrefix.size());
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return refuse();
  if (host == "*") return tcp::endpoint(tcp::v4(), port);
  boost::system::error_code wrong;
  const auto address = boost::asio::ip::make_address(host, wrong);
  if (wrong) return refuse();
  return tcp::endpoint(address, port);
}

}  // namespace

Result<KvEventsConfig> KvEventsConfig::parse(const std::string& text) {
  KvEventsConfig config;
  boost::system::error_code error;
  const json::value value = parse_json(text, error);
  if (error || !value.is_object()) return invalid_argument("kv_events_config is no JSON object: {}", text);
  const auto refuse = [](std::string_view member, const char* expected) {
    return invalid_argument("kv_events_config: {} must be {}", member, expected);
  };
  std::string publisher;
  for (const auto& [key, member] : value.get_object()) {
    const std::string_view name(key.data(), key.size());
    std::string* text_field = name == "endpoint"          ? &config.endpoint
                              : name == "replay_endpoint" ? &config.replay_endpoint
                              : name == "topic"           ? &config.topic
                              : name == "publisher"       ? &publisher
                                                          : nullptr;
    size_t* number_field = name == "buffer_steps"     ? &config.buffer_steps
                           : name == "hwm"            ? &config.hwm
                           : name == "max_queue_size" ? &config.max_queue_size
                                                      : nullptr;
    if (name == "enable_kv_cache_events") {
      if (!member.is_bool()) return refuse(name, "true or false");
      config.enabled = member.get_bool();
    } else if (text_field != nullptr) {
      if (member.is_null() && name == "replay_endpoint") continue;
      if (!member.is_string()) return refuse(name, "a string");
      *text_field = member.get_string();
    } else if (number_field != nullptr) {
      if (!member.is_int64() || member.get_int64() < 1 || member.get_int64() > 10'000'000) {
        return refuse(name, "a number from 1 to 10000000");
      }
      *number_field = static_cast<size_t>(member.get_int64());
    } else {
      return invalid_argument(
          "kv_events_config has a member \"{}\"; known: enable_kv_cache_events, publisher, endpoint, replay_endpoint, "
          "buffer_steps, hwm, max_queue_size, topic",
          name);
    }
  }
  if (publisher == "null") config.enabled = false;
  if (!publisher.empty() && publisher != "null" && publisher != "zmq") {
    return refuse("publisher", "\"zmq\" or \"null\"; others are not built");
  }
  if (!config.enabled) return config;
  QUIRE_RETURN_IF_ERROR(parse_endpoint(config.endpoint).status());
  if (!config.replay_endpoint.empty()) QUIRE_RETURN_IF_ERROR(parse_endpoint(config.replay_endpoint).status());
  return config;
}

std::string encode_kv_events(const std::vector<KvCacheEvent>& events, double seconds) {
  Packer packer;
  packer.array(3);
  packer.real(seconds);
  packer.array(events.size());
  for (const KvCacheEvent& event : events) pack_event(event, packer);
  packer.number(0);  // there is one engine behind a server
  return packer.take();
}

// Everything but publish() is of the thread that runs the context.
struct KvEventPublisher::Impl : std::enable_shared_from_this<KvEventPublisher::Impl> {
  struct Kept {
    uint64_t sequence = 0;
    std::string payload;
  };

  explicit Impl(const KvEventsConfig& the_config)
      : config(the_config), subscribers(context), replay(context), work(context.get_executor()) {}

  Status listen(const std::string& text, tcp::acceptor& acceptor) {
    QUIRE_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, parse_endpoint(text));
    boost::system::error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(boost::asio::socket_base::max_listen_connections, error);
    if (error) return unavailable("kv_events_config: cannot listen on {}: {}", text, error.message());
    if (!endpoint.address().is_loopback()) {
      log_warning("kv events: {} is open to whoever reaches it, and tells the tokens of prompts", text);
    }
    return {};
  }

  void accept(tcp::acceptor& acceptor, const char* type) {
    acceptor.async_accept(
        [self = shared_from_this(), &acceptor, type](const boost::system::error_code& error, tcp::socket socket) {
          if (error == boost::asio::error::operation_aborted || !acceptor.is_open()) return;
          if (!error) {
            if (self->num_peers(type) < kMostPeers) self->add(std::move(socket), type);
            return self->accept(acceptor, type);
          }
          // Out of file descriptors, most likely: they come back.
          auto pause = std::make_shared<boost::asio::steady_timer>(self->context, kPause);
          pause->async_wait([self, &acceptor, type, pause](const boost::system::error_code& stopped) {
            if (!stopped && acceptor.is_open()) self->accept(acceptor, type);
          });
        });
  }

  size_t num_peers(const char* type) const {
    const bool publishes = type == kPub;
    return static_cast<size_t>(
        std::ranges::count_if(peers, [&](const auto& one) { return one.second.publishes == publishes; }));
  }

  void add(tcp::socket socket, const char* type) {
    const bool publishes = type == kPub;
    auto peer = std::make_shared<ZmtpPeer>(
        std::move(socket), type,
        ZmtpPeer::Handlers{.message =
                               [this, publishes](ZmtpPeer& from, const ZmtpPeer::Message& message) {
                                 publishes ? subscribe(from, message) : send_again(from, message);
                               },
                           .closed = [this](ZmtpPeer& gone) { peers.erase(&gone); },
                           .drained = [this](ZmtpPeer& to) { go_on_again(to); }});
    ZmtpPeer& added = *peer;
    peers.emplace(&added, Peer{std::move(peer), {}, publishes, {}});
    added.start();
  }

  void subscribe(ZmtpPeer& from, const ZmtpPeer::Message& message) {
    const auto found = peers.find(&from);
    if (found == peers.end() || message.size() != 1 || message[0].empty()) return;
    std::multiset<std::string>& topics = found->second.topics;
    const std::string topic = message[0].substr(1);
    if (message[0][0] == 1 && topics.size() < kMostTopics) {
      topics.insert(topic);
    } else if (message[0][0] == 0) {
      if (const auto one = topics.find(topic); one != topics.end()) topics.erase(one);
    }
  }

  // A request is an empty frame and the first sequence number that is wanted, 8 bytes, big-endian.
  void send_again(ZmtpPeer& from, const ZmtpPeer::Message& message) {
    if (message.size() != 2 || !message[0].empty() || message[1].size() != 8) return;
    uint64_t first = 0;
    for (const char byte : message[1]) first = first << 8 | static_cast<uint8_t>(byte);
    const auto found = peers.find(&from);
    if (found == peers.end() || found->second.replays.size() >= kMostReplays) return;
    found->second.replays.push_back({first, next_sequence});
    if (found->second.replays.size() == 1) go_on_again(from);
  }

  // The next of what a peer wants again, when it has taken what came before: no more is held for it.
  void go_on_again(ZmtpPeer& to) {
    const auto found = peers.find(&to);
    if (found == peers.end() || found->second.replays.empty()) return;
    Replay& asked = found->second.replays.front();
    std::string wire;
    auto next = std::ranges::lower_bound(kept, asked.next, {}, &Kept::sequence);
    for (; next != kept.end() && next->sequence < asked.end && wire.size() < kReplayBytes; ++next) {
      wire += ZmtpPeer::wire_of({"", big_endian(next->sequence), next->payload});
      asked.next = next->sequence + 1;
    }
    if (next == kept.end() || next->sequence >= asked.end) {
      wire += ZmtpPeer::wire_of({"", std::string(8, '\xff'), ""});
      found->second.replays.pop_front();
    }
    to.send(std::make_shared<const std::string>(std::move(wire)), 2);
  }

  void send(std::string payload) {
    if (const uint64_t lost = dropped.exchange(0); lost > 0) {
      log_warning("kv events: {} batches beyond max_queue_size of {} are left out; the sequence has a gap", lost,
                  config.max_queue_size);
      next_sequence += lost;
    }
    const uint64_t sequence = next_sequence++;
    const auto wire =
        std::make_shared<const std::string>(ZmtpPeer::wire_of({config.topic, big_endian(sequence), payload}));
    // Sending may close a peer, which leaves the list.
    std::vector<std::shared_ptr<ZmtpPeer>> wanted;
    for (const auto& [key, peer] : peers) {
      const bool wants = peer.publishes && std::ranges::any_of(peer.topics, [this](const std::string& topic) {
                           return config.topic.starts_with(topic);
                         });
      if (wants) wanted.push_back(peer.peer);
    }
    for (const auto& peer : wanted) peer->send(wire, config.hwm);
    kept.push_back({sequence, std::move(payload)});
    if (kept.size() > config.buffer_steps) kept.pop_front();
  }

  static constexpr const char* kPub = "PUB";
  static constexpr const char* kRouter = "ROUTER";

  // Sequence numbers of what is sent again: from the next one on, before `end`.
  struct Replay {
    uint64_t next = 0;
    uint64_t end = 0;
  };
  struct Peer {
    std::shared_ptr<ZmtpPeer> peer;
    std::multiset<std::string> topics;
    bool publishes = false;
    std::deque<Replay> replays;
  };

  const KvEventsConfig config;
  boost::asio::io_context context{1};
  tcp::acceptor subscribers;
  tcp::acceptor replay;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  std::map<const ZmtpPeer*, Peer> peers;
  std::deque<Kept> kept;
  uint64_t next_sequence = 0;
  std::atomic<size_t> queued{0};
  std::atomic<uint64_t> dropped{0};
  std::thread thread;
};

KvEventPublisher::KvEventPublisher(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsConfig& config) {
  auto impl = std::make_shared<Impl>(config);
  QUIRE_RETURN_IF_ERROR(impl->listen(config.endpoint, impl->subscribers));
  impl->accept(impl->subscribers, Impl::kPub);
  if (!config.replay_endpoint.empty()) {
    QUIRE_RETURN_IF_ERROR(impl->listen(config.replay_endpoint, impl->replay));
    impl->accept(impl->replay, Impl::kRouter);
  }
  impl->thread = std::thread([raw = impl.get()] { raw->context.run(); });
  return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(std::move(impl)));
}

KvEventPublisher::~KvEventPublisher() {
  impl_->context.stop();
  impl_->thread.join();
  // What is left of handlers holds the publisher; they go now.
  boost::system::error_code error;
  impl_->subscribers.close(error);
  impl_->replay.close(error);
  impl_->context.restart();
  impl_->work.reset();
  auto peers = std::exchange(impl_->peers, {});
  for (const auto& [key, peer] : peers) peer.peer->close();
  impl_->context.poll();
}

void KvEventPublisher::publish(std::vector<KvCacheEvent> events) {
  if (impl_->queued.fetch_add(1) >= impl_->config.max_queue_size) {
    --impl_->queued;
    ++impl_->dropped;
    return;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  boost::asio::post(impl_->context, [impl = impl_.get(), payload = encode_kv_events(events, seconds)]() mutable {
    --impl->queued;
    impl->send(std::move(payload));
  });
}

int KvEventPublisher::port() const {
  return impl_->subscribers.local_endpoint().port();
}
int KvEventPublisher::replay_port() const {
  return impl_->replay.is_open() ? impl_->replay.local_endpoint().port() : 0;
}

}  // namespace quire::server
