// Events of the prefix cache over ZeroMQ's protocol, spoken here byte by byte; e2e.kv_events has ZeroMQ's own library.
#include "server/kv_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <random>
#include <thread>

namespace quire::server {
namespace {

using boost::asio::ip::tcp;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// A peer of ZMTP 3.0, as simple as it can be.
class Peer {
 public:
  Peer(int port, const std::string& type) : socket_(context_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
    std::string greeting(64, '\0');
    greeting[0] = '\xff';
    greeting[9] = '\x7f';
    greeting[10] = 3;
    greeting.replace(12, 4, "NULL");
    send_raw(greeting);
    const std::string theirs = take(64);
    EXPECT_EQ(theirs.substr(12, 4), "NULL");
    const std::string body =
        std::string("\x05READY\x0bSocket-Type\0\0\0", 21) + std::string(1, static_cast<char>(type.size())) + type;
    send_raw(std::string{4, static_cast<char>(body.size())} + body);
    const auto [flags, ready] = frame();
    EXPECT_EQ(flags, 4);
    EXPECT_THAT(ready, StartsWith("\x05READY"));
  }
  void send_raw(const std::string& bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes)); }
  void send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      std::string wire{static_cast<char>(i + 1 < frames.size() ? 1 : 0), static_cast<char>(frames[i].size())};
      send_raw(wire + frames[i]);
    }
  }
  std::string take(size_t bytes) {
    std::string taken(bytes, '\0');
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::buffer(taken), error);
    closed = closed || error;
    return taken;
  }
  std::pair<int, std::string> frame() {
    const int flags = take(1)[0];
    size_t size = 0;
    for (const char byte : take((flags & 2) != 0 ? 8 : 1)) size = size << 8 | static_cast<uint8_t>(byte);
    return {flags, closed ? "" : take(size)};
  }
  std::vector<std::string> message() {
    std::vector<std::string> frames;
    while (!closed) {
      const auto [flags, body] = frame();
      frames.push_back(body);
      if ((flags & 1) == 0) break;
    }
    return frames;
  }

  bool closed = false;

 private:
  boost::asio::io_context context_;
  tcp::socket socket_;
};

KvEventsConfig on_any_port() {
  return {.enabled = true, .endpoint = "tcp://127.0.0.1:0", .replay_endpoint = "tcp://127.0.0.1:0", .topic = "kv"};
}

std::vector<KvCacheEvent> stored_block(uint64_t hash) {
  return {{.hashes = {hash}, .tokens = {1, 2}}};
}

std::string sequence(char last) {
  return std::string(7, '\0') + last;
}

// Subscriptions take effect some time after they are sent.
std::vector<std::string> first_message(KvEventPublisher& publisher, Peer& peer) {
  std::thread talker;
  std::atomic<bool> heard = false;
  talker = std::thread([&] {
    for (uint64_t i = 0; !heard && i < 1000; ++i) {
      publisher.publish(stored_block(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const std::vector<std::string> message = peer.message();
  heard = true;
  talker.join();
  return message;
}

TEST(KvEvents, ABatchIsVllmsArrayInMessagePack) {
  KvCacheEvent event{.hashes = {7, 0x1'0000'0000}, .parent = 300, .tokens = {1, 200, 70'000, 5}};
  EXPECT_EQ(
      encode_kv_events({event}, 1.5),
      std::string("\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91", 11) +
          "\x99\xab"
          "BlockStored" +
          std::string("\x92\x07\xcf\0\0\0\1\0\0\0\0\xcd\x01\x2c\x94\x01\xcc\xc8\xce\0\1\x11\x70\x05\x02\xc0", 26) +
          "\xa3GPU\xc0\xc0" + std::string("\0", 1));
  event = {.kind = KvCacheEvent::Kind::kRemoved, .medium = KvCacheEvent::Medium::kHostMemory, .hashes = {1}};
  EXPECT_THAT(encode_kv_events({event}, 0), HasSubstr("\x93\xac"
                                                      "BlockRemoved\x91\x01\xa3"
                                                      "CPU"));
  EXPECT_THAT(encode_kv_events({{.kind = KvCacheEvent::Kind::kCleared}}, 0), HasSubstr("\x91\xb0"
                                                                                       "AllBlocksCleared"));
  event = {.hashes = {1, 2}, .tokens = {3, 4}, .adapter = 5, .adapter_name = "ad", .salt = "s"};
  EXPECT_THAT(encode_kv_events({event}, 0), HasSubstr("\x01\x05\xa3GPU\xa2"
                                                      "ad\x92\x92\xa2"
                                                      "ad\xa1s\x91\xa2"
                                                      "ad"));
}

TEST(KvEvents, SubscribersGetTopicSequenceAndBatch) {
  const auto publisher = KvEventPublisher::start(on_any_port()).value();
  Peer peer(publisher->port(), "SUB");
  peer.send({"\1k"});
  const std::vector<std::string> first = first_message(*publisher, peer);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], "kv");
  EXPECT_EQ(first[1].size(), 8u);
  EXPECT_THAT(first[2], HasSubstr("BlockStored"));
  publisher->publish(stored_block(1));
  const std::vector<std::string> second = peer.message();
  EXPECT_EQ(static_cast<uint8_t>(second[1][7]), static_cast<uint8_t>(first[1][7]) + 1);
}

TEST(KvEvents, NothingIsSentOfAnotherTopicOrBeforeASubscription) {
  const auto publisher = KvEventPublisher::start(on_any_port()).value();
  Peer other(publisher->port(), "SUB");
  other.send({"\1other"});
  Peer peer(publisher->port(), "SUB");
  peer.send({std::string("\1", 1)});  // all topics
  first_message(*publisher, peer);
  // The other hears the next message alone, once it asks for it.
  other.send({"\1kv"});
  EXPECT_EQ(first_message(*publisher, other).front(), "kv");
}

TEST(KvEvents, WhatWasMissedIsSentAgain) {
  KvEventsConfig config = on_any_port();
  config.buffer_steps = 4;
  const auto publisher = KvEventPublisher::start(config).value();
  for (uint64_t i = 0; i < 6; ++i) publisher->publish(stored_block(i));
  Peer peer(publisher->replay_port(), "DEALER");
  const auto ask = [&](char from) {
    peer.send({"", sequence(from)});
    std::vector<int> numbers;
    while (true) {
      const std::vector<std::string> message = peer.message();
      if (message.size() != 3 || !message[0].empty()) return std::vector<int>{-100};
      if (message[2].empty()) {
        EXPECT_EQ(message[1], std::string(8, '\xff'));
        return numbers;
      }
      numbers.push_back(message[1][7]);
    }
  };
  EXPECT_THAT(ask(0), ElementsAre(2, 3, 4, 5)) << "four are kept";
  EXPECT_THAT(ask(4), ElementsAre(4, 5));
  EXPECT_THAT(ask(9), ElementsAre());
}

// Of which one has the other's, in pieces as it is read.
TEST(KvEvents, ALongReplayIsWholeForEachThatAsks) {
  constexpr uint64_t kBatches = 3000;
  const auto publisher = KvEventPublisher::start(on_any_port()).value();
  for (uint64_t i = 0; i < kBatches; ++i) {
    publisher->publish({{.hashes = {i}, .tokens = std::vector<TokenId>(100, 70000)}});
  }
  Peer one(publisher->replay_port(), "DEALER");
  Peer two(publisher->replay_port(), "DEALER");
  for (Peer* peer : {&one, &two, &one}) peer->send({"", sequence(0)});
  for (Peer* peer : {&one, &two, &one}) {
    for (uint64_t i = 0; i < kBatches; ++i) {
      const std::vector<std::string> message = peer->message();
      ASSERT_EQ(message.size(), 3u) << i;
      uint64_t number = 0;
      for (const char byte : message[1]) number = number << 8 | static_cast<uint8_t>(byte);
      ASSERT_EQ(number, i);
      ASSERT_GT(message[2].size(), 500u);
    }
    const std::vector<std::string> end = peer->message();
    ASSERT_EQ(end.size(), 3u);
    EXPECT_EQ(end[1], std::string(8, '\xff'));
    EXPECT_EQ(end[2], "");
  }
}

TEST(KvEvents, APublisherEndsAlsoWhileConnectionsCome) {
  for (int round = 0; round < 5; ++round) {
    auto publisher = KvEventPublisher::start(on_any_port()).value();
    const tcp::endpoint endpoint(boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(publisher->port()));
    std::atomic<bool> ended = false;
    std::vector<std::thread> strangers;
    for (int i = 0; i < 4; ++i) {
      strangers.emplace_back([&] {
        while (!ended) {
          boost::asio::io_context context;
          tcp::socket socket(context);
          boost::system::error_code refused;
          socket.connect(endpoint, refused);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    publisher.reset();
    ended = true;
    for (std::thread& stranger : strangers) stranger.join();
  }
}

TEST(KvEvents, WhatIsNoZeroMqEndsThatConnectionAlone) {
  const auto publisher = KvEventPublisher::start(on_any_port()).value();
  Peer peer(publisher->port(), "SUB");
  peer.send({"\1kv"});
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    boost::asio::io_context context;
    tcp::socket socket(context);
    socket.connect({boost::asio::ip::address_v4::loopback(),
                    static_cast<uint16_t>(i % 2 == 0 ? publisher->port() : publisher->replay_port())});
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 3 == 0) {  // a right greeting, then anything
      std::string greeting(64, '\0');
      greeting[0] = '\xff';
      greeting[9] = '\x7f';
      greeting[10] = 3;
      greeting.replace(12, 4, "NULL");
      bytes = greeting + bytes;
    }
    boost::system::error_code error;
    boost::asio::write(socket, boost::asio::buffer(bytes), error);
  }
  Peer large(publisher->port(), "SUB");
  large.send_raw(std::string("\x02\0\0\0\1\0\0\0\0", 9));  // a frame of 4 GiB
  large.take(1);
  EXPECT_TRUE(large.closed);
  EXPECT_EQ(first_message(*publisher, peer).size(), 3u);
}

TEST(KvEventsConfig, IsVllmsObject) {
  const auto config = KvEventsConfig::parse(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:5557",
          "replay_endpoint": null, "buffer_steps": 5, "topic": "t"})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->enabled);
  EXPECT_EQ(config->buffer_steps, 5u);
  EXPECT_EQ(config->topic, "t");
  EXPECT_FALSE(KvEventsConfig::parse("{}")->enabled);
  EXPECT_FALSE(KvEventsConfig::parse(R"({"enable_kv_cache_events": true, "publisher": "null"})")->enabled);
  for (const auto& [text, expected] : std::vector<std::pair<const char*, const char*>>{
           {"[]", "no JSON object"},
           {R"({"enable_kv_cache_events": 1})", "true or false"},
           {R"({"publisher": "kafka"})", "others are not built"},
           {R"({"enable_kv_cache_events": true, "endpoint": "ipc:///tmp/x"})", "tcp://"},
           {R"({"enable_kv_cache_events": true, "endpoint": "tcp://*:99999"})", "tcp://"},
           {R"({"enable_kv_cache_events": true, "replay_endpoint": "tcp://host"})", "tcp://"},
           {R"({"hwm": 0})", "hwm"},
           {R"({"colour": 1})", "colour"}}) {
    EXPECT_THAT(KvEventsConfig::parse(text).status().message(), HasSubstr(expected)) << text;
  }
}

}  // namespace
}  // namespace quire::server
