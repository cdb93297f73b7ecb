// What a user, an environment and a test decide about talking to the Hub.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "net/http_client.h"

namespace quire::hub {

inline constexpr const char* kDefaultEndpoint = "https://huggingface.co";
inline constexpr const char* kDefaultRevision = "main";

struct HubOptions {
  std::string endpoint = kDefaultEndpoint;
  std::filesystem::path cache;  // the Hub's own: folders models--ORG--NAME
  std::string token;            // sent to the endpoint's origin alone; empty: none
  bool offline = false;         // no request at all
  std::string ca_file, ca_folder;
  std::string user_agent = "quire";

  net::HttpTimeouts timeouts;
  int connections = 6;                         // of one large file
  int64_t piece_bytes = int64_t{32} << 20;     // what a connection asks for at a time
  int most_tries = 5;                          // in a row without progress
  std::chrono::milliseconds first_wait{1000};  // before the second try; doubled before each one after it
  std::chrono::seconds most_wait{300};         // a longer Retry-After is an error

  // The system's, where they are not set.
  std::function<int64_t(const std::filesystem::path&)> free_bytes;
  std::function<void(std::chrono::milliseconds)> sleep;
};

// Told of a download, by several threads at once.
class Progress {
 public:
  virtual ~Progress() = default;
  // `there`: of `bytes`, those that an earlier download left.
  virtual void started(int files, int64_t bytes, int64_t there) = 0;
  // Below 0: bytes that turned out to be wrong and are fetched again.
  virtual void advanced(int64_t bytes) = 0;
  // A sentence about what is waited for.
  virtual void note(const std::string& text) = 0;
  virtual void finished() = 0;
};

}  // namespace quire::hub
