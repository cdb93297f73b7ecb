// Ranks as threads of a test, joined by TCP over the loopback device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/tcp_transport.h"

namespace quire::comm {

class TcpNetwork {
 public:
  explicit TcpNetwork(int size) : group_{.size = size, .secret = "a secret of the test", .look = {}} {
    auto listener = TcpListener::open("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    port_ = listener->port();
    listener_.emplace(std::move(*listener));
  }
  // Each once, and all at the same time.
  std::unique_ptr<Transport> join(int rank) {
    auto joined =
        rank == 0 ? lead_over_tcp(std::move(*listener_), group_) : join_over_tcp("127.0.0.1", port_, rank, group_);
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    return std::move(*joined);
  }

 private:
  const TcpGroup group_;
  uint16_t port_ = 0;
  std::optional<TcpListener> listener_;
};

}  // namespace quire::comm
