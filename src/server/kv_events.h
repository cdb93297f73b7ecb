// Events of the prefix cache for routers, as vLLM publishes them: a ZeroMQ PUB socket that sends (topic, sequence,
// batch) and, if asked for, a ROUTER socket that sends kept batches again. The shape of a batch is that of vLLM 0.14's
// distributed/kv_events.py: msgspec structs as MessagePack arrays, the kind's name first.
//
// ZeroMQ's protocol (ZMTP 3.0, NULL mechanism, over TCP) is spoken by server/zmtp_peer.h itself: what a publisher needs
// of it is small, and no library comes along.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "types/kv_event.h"

namespace quire::server {

// vLLM's --kv-events-config.
struct KvEventsConfig {
  bool enabled = false;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;   // empty: none
  size_t buffer_steps = 10'000;  // batches that are kept to be sent again
  size_t hwm = 100'000;          // batches that a slow subscriber may be behind; what is more it does not get
  // Batches that may wait to be sent to anybody; what is more nobody gets, and the sequence shows a gap.
  size_t max_queue_size = 100'000;
  std::string topic;

  // A JSON object with vLLM's members. Errors: invalid_argument, which names the member.
  static Result<KvEventsConfig> parse(const std::string& text);
};

// The bytes of a batch: [seconds, [event, ...], data-parallel rank].
std::string encode_kv_events(const std::vector<KvCacheEvent>& events, double seconds);

class KvEventPublisher {
 public:
  // Listens. Errors: invalid_argument for an endpoint that is none, unavailable for one that is taken.
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsConfig& config);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // Thread-safe, does not wait.
  void publish(std::vector<KvCacheEvent> events);
  int port() const;         // of the PUB socket
  int replay_port() const;  // 0: there is none

 private:
  struct Impl;
  explicit KvEventPublisher(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace quire::server
