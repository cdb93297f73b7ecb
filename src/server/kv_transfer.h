// Blocks of the prefix cache between instances (docs/transfer.md): one computes a prompt and leases its blocks, another
// fetches them and goes on. Whatever fails is computed anew, counted, and told in the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/metrics.h"
#include "base/status.h"
#include "engine/engine.h"
#include "server/kv_transfer_params.h"

namespace quire::server {

// vLLM's --kv-transfer-config.
struct KvTransferConfig {
  struct Peer {
    std::string address;  // a literal one, in its plainest form
    uint16_t port = 0;
    bool operator==(const Peer&) const = default;
  };
  KvTransferRole role;
  std::string engine_id;              // nobody else's
  std::string address = "127.0.0.1";  // where others find this one, and what is listened on
  uint16_t port = 14579;              // 0: any free one
  std::vector<Peer> peers;            // whom blocks are fetched from, and nobody else
  std::chrono::milliseconds lease_time{30'000};
  std::chrono::milliseconds timeout{5'000};  // of fetching a prompt's blocks, the wait for a turn included
  int64_t memory_bytes = int64_t{1} << 30;   // of leases, and as much again of what is being fetched
  std::string secret;                        // empty: none

  // A JSON object with vLLM's members. `secret` is the environment's. Errors: invalid_argument, which names the member;
  // where others than this machine's could connect, or are connected to, a secret is needed.
  static Result<KvTransferConfig> parse(const std::string& text, const std::string& secret);
};

// Thread-safe. Outlives the engines that it is used with, and their requests.
class KvTransfer {
 public:
  // Listens, where the role sends. The metrics must outlive it. Errors: unavailable.
  static Result<std::shared_ptr<KvTransfer>> start(KvTransferConfig config, Metrics& metrics);
  ~KvTransfer();
  KvTransfer(const KvTransfer&) = delete;
  KvTransfer& operator=(const KvTransfer&) = delete;

  KvTransferRole role() const;
  uint16_t port() const;  // 0: nothing is listened on

  // A prompt of one request, as the engine is given it.
  struct Text {
    std::vector<TokenId> prompt;
    std::string cache_salt;
    bool has_adapter = false;  // whose blocks stay here
  };
  // Leases the blocks of a prompt that was computed. done: once, on any thread, with what its answer has as
  // kv_transfer_params; null: there is nothing to fetch.
  void hand_over(engine::Engine& engine, Text text, std::function<void(boost::json::value)> done);
  // Fetches the blocks of a prompt that is not computed yet. done: once, on any thread, when they are where the request
  // finds them, or will not be. The engine must be there until then.
  void fetch(engine::Engine& engine, const KvTransferParams& params, Text text, std::function<void()> done);

 private:
  struct Impl;
  explicit KvTransfer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
