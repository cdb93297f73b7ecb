#include "server/tenants.h"

#include <algorithm>
#include <cmath>

namespace quire::server {

TokenQuota::TokenQuota(int64_t tokens_per_minute, Clock::time_point now)
    : capacity_(static_cast<double>(tokens_per_minute)), balance_(capacity_), filled_(now) {}

void TokenQuota::fill_locked(Clock::time_point now) {
  if (now <= filled_) return;
  balance_ = std::min(capacity_, balance_ + capacity_ / 60 * std::chrono::duration<double>(now - filled_).count());
  filled_ = now;
}

std::optional<int> TokenQuota::admit(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  fill_locked(now);
  const double needed = std::min(static_cast<double>(tokens), capacity_);
  if (balance_ >= needed) {
    balance_ -= static_cast<double>(tokens);
    return std::nullopt;
  }
  constexpr double kMostSeconds = 86400;
  return static_cast<int>(std::clamp(std::ceil((needed - balance_) * 60 / capacity_), 1.0, kMostSeconds));
}

void TokenQuota::charge(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  fill_locked(now);
  balance_ = std::min(capacity_, balance_ - static_cast<double>(tokens));
}

Tenant::Tenant(const ApiKey& key, Metrics& metrics)
    : name_(key.name),
      weight_(key.weight),
      quota_(key.tokens_per_minute > 0 ? std::make_unique<TokenQuota>(key.tokens_per_minute) : nullptr),
      prompt_tokens_(
          &metrics.counter("quire:api_key_prompt_tokens_total", "Prompt tokens by API key.", {{"api_key", key.name}})),
      generation_tokens_(&metrics.counter("quire:api_key_generation_tokens_total", "Generated tokens by API key.",
                                          {{"api_key", key.name}})) {}

std::optional<int> Tenant::admit(int64_t prompt_tokens) {
  return quota_ ? quota_->admit(prompt_tokens) : std::nullopt;
}

void Tenant::refund(int64_t prompt_tokens) {
  if (quota_) quota_->charge(-prompt_tokens);
}

void Tenant::prompted(int64_t prompt_tokens) {
  if (prompt_tokens_ != nullptr) prompt_tokens_->increment(static_cast<double>(prompt_tokens));
}

void Tenant::generated(int64_t tokens) {
  if (tokens == 0) return;
  if (quota_) quota_->charge(tokens);
  if (generation_tokens_ != nullptr) generation_tokens_->increment(static_cast<double>(tokens));
}

Tenants::Tenants(const std::vector<ApiKey>& keys, Metrics& metrics) {
  for (const ApiKey& key : keys) tenants_.emplace_back(key, metrics);
  if (tenants_.empty()) tenants_.emplace_back();
}

Tenant& Tenants::operator[](int32_t number) {
  return number >= 0 && static_cast<size_t>(number) < tenants_.size() ? tenants_[static_cast<size_t>(number)] : nobody_;
}

std::vector<double> Tenants::weights() const {
  std::vector<double> weights;
  for (const Tenant& tenant : tenants_) weights.push_back(tenant.weight());
  return weights;
}

}  // namespace quire::server
