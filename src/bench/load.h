// Puts a load on an OpenAI-compatible server over HTTP: streamed answers, kept connections, one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/answer_reader.h"
#include "bench/serve_metrics.h"

namespace quire::bench {

struct ServerAddress {
  Url url;
  std::vector<std::pair<std::string, std::string>> headers;  // sent with each request
  double timeout_seconds = 600;                              // without a byte from the server
};

struct LoadRequest {
  std::string body;    // JSON
  double send_at = 0;  // seconds after the start
};

struct Load {
  ServerAddress server;
  std::string path;  // of the endpoint: "/v1/completions"
  bool is_chat = false;
  std::optional<int64_t> max_concurrency;  // requests under way at once; a due one waits for its turn
  std::span<const LoadRequest> requests;   // by rising send_at
};

// Sends all requests and waits for their answers: outcomes in the order of the requests (prompt_len is the caller's to
// fill in). Nothing a server does ends it: a request that fails is an outcome. `progress` is told how many are done.
// Errors: not_found when the host has no address.
struct LoadResult {
  std::vector<RequestOutcome> outcomes;
  double duration = 0;  // seconds, to the last answer's end
};
Result<LoadResult> put_load(const Load& load, const std::function<void(int64_t done)>& progress);

// The body of GET `path` with status 200. Errors: unavailable, saying what came instead.
Result<std::string> get(const ServerAddress& server, const std::string& path,
                        std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace quire::bench
