// Ranks that meet over TCP: who is let in, and what a connection carries.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/network_group.h"
#include "comm/tcp_transport.h"

namespace quire::comm {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

TcpGroup group_of(int size, std::string secret = "one secret for all") {
  return {.size = size, .secret = std::move(secret), .timeout = 20s, .look = {}};
}

Socket connected_to(uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

std::string read_some(const Socket& socket, size_t most) {
  std::string bytes(most, '\0');
  const ssize_t got = recv(socket.get(), bytes.data(), most, 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// A leader of two in a thread, and what it found.
struct Leader {
  explicit Leader(TcpGroup group) {
    auto listener = TcpListener::open("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    port = listener->port();
    thread = std::thread([this, group, listener = std::move(*listener)]() mutable {
      auto led = lead_over_tcp(std::move(listener), group);
      if (led.ok()) {
        transport = std::move(*led);
      } else {
        status = led.status();
      }
    });
  }
  uint16_t port = 0;
  Status status;
  std::unique_ptr<Transport> transport;
  std::thread thread;
};

TEST(TcpMeeting, WhoDoesNotKnowTheSecretIsSentAwayAndDisturbsNobody) {
  Leader leader(group_of(2));
  const Status stranger = join_over_tcp("127.0.0.1", leader.port, 1, group_of(2, "another one")).status();
  EXPECT_EQ(stranger.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(stranger.message(), AllOf(HasSubstr("rank 1 is sent away"), HasSubstr("QUIRE_NODES_SECRET")));
  const Status other_size = join_over_tcp("127.0.0.1", leader.port, 1, group_of(3)).status();
  EXPECT_THAT(other_size.message(), HasSubstr("group of another size"));
  // A browser, somebody who says nothing, and one who goes at once.
  const Socket browser = connected_to(leader.port);
  EXPECT_GT(send(browser.get(), "GET / HTTP/1.1\r\nHost: of another kind, with enough of a head for a message\r\n\r\n",
                 78, 0),
            0);
  const Socket silent = connected_to(leader.port);
  { const Socket gone = connected_to(leader.port); }
  const auto joined = join_over_tcp("127.0.0.1", leader.port, 1, group_of(2));
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  leader.thread.join();
  EXPECT_TRUE(leader.status.ok()) << leader.status.message();
}

TEST(TcpMeeting, ARankIsOneProcess) {
  Leader leader({.size = 3, .secret = "one secret for all", .timeout = 3s, .look = {}});
  std::thread first([&] {
    EXPECT_FALSE(join_over_tcp("127.0.0.1", leader.port, 1,
                               {.size = 3, .secret = "one secret for all", .timeout = 2s, .look = {}})
                     .ok());
  });
  std::this_thread::sleep_for(500ms);
  EXPECT_THAT(join_over_tcp("127.0.0.1", leader.port, 1, group_of(3)).status().message(),
              HasSubstr("another process is this rank"));
  first.join();
  Leader other({.size = 2, .secret = "", .timeout = 1s, .look = {}});
  other.thread.join();
  EXPECT_EQ(other.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(other.status.message(), HasSubstr("rank 0 waits for the ranks 1 of 2, which have not come in 1 s"));
  leader.thread.join();
  EXPECT_THAT(leader.status.message(), HasSubstr("waits for the ranks"));
}

TEST(TcpMeeting, ARankThatGoesWhileOthersAreAwaitedMayComeAgain) {
  Leader leader(group_of(3));
  std::atomic<bool> ends{false};
  TcpGroup short_lived = group_of(3);
  short_lived.look = [&] { return ends ? unavailable("it is ended") : Status(); };
  std::thread first([&] { EXPECT_FALSE(join_over_tcp("127.0.0.1", leader.port, 1, short_lived).ok()); });
  std::this_thread::sleep_for(500ms);
  EXPECT_THAT(join_over_tcp("127.0.0.1", leader.port, 1, group_of(3)).status().message(),
              HasSubstr("another process is this rank"));
  ends = true;
  first.join();
  std::thread again([&] {
    // The leader may not have looked yet.
    while (true) {
      const auto joined = join_over_tcp("127.0.0.1", leader.port, 1, group_of(3));
      if (joined.ok()) break;
      EXPECT_THAT(joined.status().message(), HasSubstr("another process is this rank"));
    }
  });
  const auto third = join_over_tcp("127.0.0.1", leader.port, 2, group_of(3));
  EXPECT_TRUE(third.ok()) << third.status().message();
  again.join();
  leader.thread.join();
  EXPECT_TRUE(leader.status.ok()) << leader.status.message();
}

TEST(TcpMeeting, WhoSaysNothingKeepsNoRankOut) {
  Leader leader(group_of(2));
  std::vector<Socket> silent;
  for (int i = 0; i < 160; ++i) silent.push_back(connected_to(leader.port));  // more than may stand at the door
  const auto begin = std::chrono::steady_clock::now();
  const auto joined = join_over_tcp("127.0.0.1", leader.port, 1, group_of(2));
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s) << "not until all have had the time of a handshake";
  leader.thread.join();
  EXPECT_TRUE(leader.status.ok()) << leader.status.message();
}

TEST(TcpMeeting, WhoLosesRankZeroWaitsForNobodyElse) {
  // Two of four have come and know where all are; the one that stands for rank 3 never comes to them.
  Leader leader(group_of(4));
  Status found;
  std::thread second([&] { found = join_over_tcp("127.0.0.1", leader.port, 2, group_of(4)).status(); });
  std::thread first([&] { static_cast<void>(join_over_tcp("127.0.0.1", leader.port, 1, group_of(4))); });
  const Socket third = connected_to(leader.port);
  const auto greeting = decode_greeting(read_some(third, kTcpGreetingBytes));
  ASSERT_TRUE(greeting.ok());
  const TcpJoin own = {.rank = 3, .size = 4, .port = 9, .nonce = random_nonce()};
  const std::string join =
      encode(own, TcpKeys{.secret = group_of(4).secret, .listener = greeting->nonce, .joiner = own.nonce});
  ASSERT_EQ(send(third.get(), join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
  leader.thread.join();
  ASSERT_TRUE(leader.status.ok()) << leader.status.message();
  leader.transport.reset();
  second.join();
  first.join();
  EXPECT_THAT(found.message(), HasSubstr("has closed the connection"));
}

TEST(TcpMeeting, WhoListensMustKnowTheSecretToo) {
  // One who takes whatever it is told for a welcome, as who does not know the secret would.
  auto listener = TcpListener::open("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  std::thread impostor([&] {
    pollfd coming{.fd = listener->descriptor(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&coming, 1, 20'000), 1);
    const Socket one(accept(listener->descriptor(), nullptr, nullptr));
    const std::string greeting = encode(TcpGreeting{.nonce = random_nonce()});
    EXPECT_EQ(send(one.get(), greeting.data(), greeting.size(), 0), static_cast<ssize_t>(greeting.size()));
    (void)read_some(one, kTcpJoinBytes);
    const std::string welcome(kTcpWelcomeBytes, '\0');
    EXPECT_EQ(send(one.get(), welcome.data(), welcome.size(), 0), static_cast<ssize_t>(welcome.size()));
  });
  const Status found = join_over_tcp("127.0.0.1", listener->port(), 1, group_of(2)).status();
  impostor.join();
  EXPECT_THAT(found.message(), HasSubstr("does not know this group's secret"));
}

TEST(TcpMeeting, TheWaitingEndsWhereSomethingElseGoesWrong) {
  Leader leader({.size = 2, .secret = "", .look = [] { return unavailable("the other process has ended"); }});
  leader.thread.join();
  EXPECT_EQ(leader.status.message(), "the other process has ended");
  EXPECT_THAT(TcpListener::open("192.0.2.7", 0).status().message(),
              HasSubstr("--master-addr is an address of the first node"));
  EXPECT_THAT(is_loopback("no such name .").status().message(), HasSubstr("no address by this name"));
  EXPECT_TRUE(is_loopback("localhost").value());
  EXPECT_TRUE(is_loopback("127.0.0.9").value());
  EXPECT_TRUE(is_loopback("::1").value());
  EXPECT_FALSE(is_loopback("192.0.2.7").value());
  EXPECT_FALSE(is_loopback("::").value());
  EXPECT_EQ(own_address_towards("127.0.0.1", 9).value(), "127.0.0.1");
}

// Of the loopback device: rank 0's transport, and the bare connection of whoever stands for rank 1.
struct Pair {
  Pair() {
    auto listener = TcpListener::open("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok());
    other = connected_to(listener->port());
    std::vector<Socket> peers(2);
    while (!peers[1].is_open()) peers[1] = Socket(accept4(listener->descriptor(), nullptr, nullptr, SOCK_NONBLOCK));
    transport = std::move(make_tcp_transport(0, std::move(peers), {"rank 0", "rank 1 (here)"}).value());
  }
  ~Pair() { other = Socket(); }  // whose end the transport waits for
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  void say(const TcpHead& head, std::string_view bytes) const {
    const auto encoded = encode(head);
    std::string all(encoded.data(), encoded.size());
    all += bytes;
    ASSERT_EQ(send(other.get(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  }
  Result<std::optional<int64_t>> end_of(Transport::Request request) const {
    for (int look = 0; look < 5000; ++look) {
      auto done = transport->test(request);
      if (!done.ok() || done->has_value()) return done;
      std::this_thread::sleep_for(1ms);
    }
    return std::optional<int64_t>();
  }
  Socket other;
  std::unique_ptr<Transport> transport;
};

TEST(TcpTransport, MessagesThatNobodyAwaitsAreKeptByTheirTag) {
  const Pair pair;
  pair.say({.tag = 7, .bytes = 5}, "first");
  pair.say({.tag = 9, .bytes = 6}, "second");
  pair.say({.tag = 7, .bytes = 0}, "");
  std::string nine(16, ' ');
  std::string seven(16, ' ');
  EXPECT_EQ(pair.end_of(pair.transport->receive(nine.data(), 16, 1, 9).value()).value(), 6);
  EXPECT_EQ(nine.substr(0, 6), "second");
  EXPECT_EQ(pair.transport->probe(1, 7).value(), 5);
  EXPECT_EQ(pair.end_of(pair.transport->receive(seven.data(), 16, 1, 7).value()).value(), 5);
  EXPECT_EQ(seven.substr(0, 5), "first");
  EXPECT_EQ(pair.end_of(pair.transport->receive(seven.data(), 16, 1, 7).value()).value(), 0);
  EXPECT_EQ(pair.transport->probe(1, 7).value(), std::nullopt);
}

TEST(TcpTransport, WhatHasBegunToComeGoesOnWhereItIsAwaited) {
  const Pair pair;
  const std::string whole(300'000, 'x');
  pair.say({.tag = 3, .bytes = 300'000}, std::string_view(whole).substr(0, 1000));
  std::optional<int64_t> seen;
  while (!seen) seen = pair.transport->probe(1, 3).value();
  EXPECT_EQ(*seen, 300'000);
  std::string came(300'000, ' ');
  const Transport::Request request = pair.transport->receive(came.data(), 300'000, 1, 3).value();
  std::thread rest([&] {
    for (size_t at = 1000; at < whole.size();) {
      const ssize_t sent = send(pair.other.get(), whole.data() + at, std::min<size_t>(70'000, whole.size() - at), 0);
      ASSERT_GT(sent, 0);
      at += static_cast<size_t>(sent);
    }
  });
  EXPECT_EQ(pair.end_of(request).value(), 300'000);
  rest.join();
  EXPECT_EQ(came, whole);
}

TEST(TcpTransport, WhatIsTooLongIsAnErrorOfItsReceiverAlone) {
  const Pair pair;
  std::string room(4, ' ');
  const Transport::Request request = pair.transport->receive(room.data(), 4, 1, 3).value();
  pair.say({.tag = 3, .bytes = 10}, "0123456789");
  pair.say({.tag = 3, .bytes = 2}, "ok");
  const Status status = pair.end_of(request).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (here) has sent 10 bytes where at most 4 were expected"));
  EXPECT_EQ(room, "    ");
  EXPECT_EQ(pair.end_of(pair.transport->receive(room.data(), 4, 1, 3).value()).value(), 2);
}

TEST(TcpTransport, HeadsThatCannotBeEndTheConnection) {
  for (const TcpHead& head :
       {TcpHead{.tag = 0, .bytes = 1}, TcpHead{.tag = -5, .bytes = 1}, TcpHead{.tag = 1, .bytes = -1},
        TcpHead{.tag = 1, .bytes = Transport::kMostBytes + 1}, TcpHead{.tag = 1 << 30, .bytes = 1}}) {
    const Pair pair;
    pair.say(head, "x");
    char byte = 0;
    const Status status = pair.end_of(pair.transport->receive(&byte, 1, 1, 1).value()).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 (here): a message of"));
    EXPECT_FALSE(pair.transport->send("y", 1, 1, 1).ok());
  }
}

TEST(TcpTransport, WhoIsGoneIsSaidBehindWhatItHasSent) {
  Pair pair;
  pair.say({.tag = 5, .bytes = 4}, "last");
  pair.other = Socket();
  std::string came(4, ' ');
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(pair.end_of(pair.transport->receive(came.data(), 4, 1, 5).value()).value(), 4);
  EXPECT_EQ(came, "last");
  EXPECT_EQ(pair.transport->probe(1, 5).status().message(), "rank 1 (here) has closed its connection");
  EXPECT_EQ(pair.end_of(pair.transport->receive(came.data(), 4, 1, 5).value()).status().code(),
            StatusCode::kUnavailable);
}

TEST(TcpTransport, WhatIsGivenUpIsNotTouched) {
  const Pair pair;
  std::string room(8, ' ');
  pair.transport->give_up(pair.transport->receive(room.data(), 8, 1, 3).value());
  // One that has begun to come, and one that has begun to go.
  const Transport::Request begun = pair.transport->receive(room.data(), 8, 1, 4).value();
  pair.say({.tag = 4, .bytes = 8}, "1234");
  Transport::Request asked = begun;
  for (int look = 0; look < 20; ++look) {
    ASSERT_FALSE(pair.transport->test(asked).value().has_value());
    std::this_thread::sleep_for(1ms);
  }
  pair.transport->give_up(begun);
  room.assign(8, ' ');
  ASSERT_EQ(send(pair.other.get(), "5678", 4, 0), 4);
  std::string large(32 << 20, 'z');
  const Transport::Request sent = pair.transport->send(large.data(), static_cast<int64_t>(large.size()), 1, 6).value();
  pair.transport->give_up(sent);
  large.assign(large.size(), '!');
  size_t got = 0;
  size_t wrong = 0;
  while (got < kTcpHeadBytes + large.size()) {
    (void)pair.transport->probe(1, 9);
    std::string some(1 << 20, ' ');
    const ssize_t count = recv(pair.other.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (count <= 0) continue;
    for (ssize_t i = 0; i < count; ++i, ++got)
      wrong += got >= kTcpHeadBytes && some[static_cast<size_t>(i)] != 'z' ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(room, "        ");
}

}  // namespace
}  // namespace quire::comm
