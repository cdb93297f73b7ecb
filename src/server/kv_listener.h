// Gives leased blocks to other instances that ask for them (net/kv_protocol.h), on a thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/kv_leases.h"

namespace quire::server {

class KvListener {
 public:
  struct Options {
    std::string address;  // a literal one
    uint16_t port = 0;    // 0: any free one
    std::string secret;   // empty: nobody is asked for one
    size_t most_connections = 64;
    std::chrono::milliseconds timeout{5'000};  // of every wait
  };
  struct Events {  // called on the listener's thread; must not block
    std::function<void(int64_t leases)> expired;
    std::function<void(net::KvRefusal why)> refused;
    std::function<void(int64_t blocks)> sent;  // all of a lease
  };
  // Errors: invalid_argument (no address), unavailable (it cannot be listened on).
  static Result<std::unique_ptr<KvListener>> start(Options options, std::shared_ptr<net::KvLeases> leases,
                                                   Events events);
  ~KvListener();
  KvListener(const KvListener&) = delete;
  KvListener& operator=(const KvListener&) = delete;

  uint16_t port() const;

 private:
  struct Impl;
  explicit KvListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
