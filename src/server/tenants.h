// What is kept of each API key while the server runs: its share, what it used, and what it may still use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "server/api_keys.h"

namespace quire::server {

// A bucket of tokens that holds a minute's worth and fills at a steady pace. Thread-safe.
class TokenQuota {
 public:
  using Clock = std::chrono::steady_clock;

  // REQUIRES: tokens_per_minute >= 1. It begins full.
  explicit TokenQuota(int64_t tokens_per_minute, Clock::time_point now = Clock::now());

  // Takes a prompt's tokens and gives nullopt; or takes nothing and gives the seconds, 1 or more, after which there
  // will be enough. A prompt of more than a minute's worth is let in when the bucket is full.
  std::optional<int> admit(int64_t tokens, Clock::time_point now = Clock::now());
  // Takes what was generated even where nothing is left: whoever comes next waits for it. Negative: gives back.
  void charge(int64_t tokens, Clock::time_point now = Clock::now());

 private:
  void fill_locked(Clock::time_point now);

  const double capacity_;
  std::mutex mutex_;
  double balance_;
  Clock::time_point filled_;
};

// One API key's account. Thread-safe.
class Tenant {
 public:
  // Its counters are in `metrics`, which outlives it, under the key's name.
  Tenant(const ApiKey& key, Metrics& metrics);
  Tenant() = default;  // everybody, where there are no keys

  const std::string& name() const { return name_; }
  double weight() const { return weight_; }

  // As TokenQuota; nullopt where there is no bound.
  std::optional<int> admit(int64_t prompt_tokens);
  void refund(int64_t prompt_tokens);    // of a request that was admitted here and refused after that
  void prompted(int64_t prompt_tokens);  // of one that was not: counted
  void generated(int64_t tokens);

 private:
  std::string name_;
  double weight_ = 1;
  std::unique_ptr<TokenQuota> quota_;  // nullptr: no bound
  Counter* prompt_tokens_ = nullptr;
  Counter* generation_tokens_ = nullptr;
};

// A prompt's tokens that were taken out of a tenant's quota, for a request that may still be refused: they are given
// back unless it is kept.
class PromptCharge {
 public:
  PromptCharge(Tenant& tenant, int64_t prompt_tokens) : tenant_(tenant), prompt_tokens_(prompt_tokens) {}
  ~PromptCharge() {
    if (!kept_) tenant_.refund(prompt_tokens_);
  }
  PromptCharge(const PromptCharge&) = delete;
  PromptCharge& operator=(const PromptCharge&) = delete;

  int64_t prompt_tokens() const { return prompt_tokens_; }
  // The request is under way.
  void keep() {
    kept_ = true;
    tenant_.prompted(prompt_tokens_);
  }

 private:
  Tenant& tenant_;
  const int64_t prompt_tokens_;
  bool kept_ = false;
};

// By HttpRequest::tenant; at least one.
class Tenants {
 public:
  Tenants(const std::vector<ApiKey>& keys, Metrics& metrics);

  size_t size() const { return tenants_.size(); }
  // A number that is none of theirs is nobody's: without a bound, and not counted.
  Tenant& operator[](int32_t number);
  std::vector<double> weights() const;

 private:
  std::vector<Tenant> tenants_;
  Tenant nobody_;  // whose key is there no more, of a batch that goes on
};

}  // namespace quire::server
