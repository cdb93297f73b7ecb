#include "server/load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace quire::server {

LoadTicket::LoadTicket(std::shared_ptr<Load> load, int32_t tenant, int64_t answers)
    : load_(std::move(load)), tenant_(tenant), answers_(answers) {}

LoadTicket::~LoadTicket() {
  load_->leave(tenant_, answers_);
}

Load::Load(std::vector<double> weights, int64_t running, int64_t queued) : running_(running), queued_(queued) {
  const double heaviest = *std::ranges::max_element(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    tenants_.push_back({.running = static_cast<double>(running) * weight / sum, .weight = weight / heaviest});
  }
}

std::unique_ptr<LoadTicket> Load::enter(int32_t tenant, int64_t answers) {
  {
    const std::lock_guard lock(mutex_);
    Tenant& one = tenants_[static_cast<size_t>(tenant)];
    const auto free = static_cast<double>(std::max<int64_t>(queued_ - std::max<int64_t>(total_ - running_, 0), 0));
    const double most = one.running + free * one.weight;
    if (tenants_.size() > 1 && one.held > 0 && static_cast<double>(one.held + answers) > most) return nullptr;
    one.held += answers;
    total_ += answers;
  }
  return std::make_unique<LoadTicket>(shared_from_this(), tenant, answers);
}

void Load::leave(int32_t tenant, int64_t answers) {
  const std::lock_guard lock(mutex_);
  tenants_[static_cast<size_t>(tenant)].held -= answers;
  total_ -= answers;
}

void Load::finished(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  ends_[num_ends_++ % ends_.size()] = now;
}

int Load::retry_after(int64_t waiting, Clock::time_point now) const {
  constexpr double kLeast = 1;
  constexpr double kMost = 60;
  const std::lock_guard lock(mutex_);
  const size_t known = std::min(num_ends_, ends_.size());
  if (known == 0) return static_cast<int>(kLeast);
  const Clock::time_point oldest = ends_[num_ends_ <= ends_.size() ? 0 : num_ends_ % ends_.size()];
  const double seconds_per_answer = std::chrono::duration<double>(now - oldest).count() / static_cast<double>(known);
  return static_cast<int>(std::clamp(std::ceil(seconds_per_answer * static_cast<double>(waiting) / 2), kLeast, kMost));
}

}  // namespace quire::server
