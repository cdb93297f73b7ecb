#include "server/shared_bytes.h"

#include <algorithm>
#include <utility>

namespace quire::server {

namespace {

constexpr double kNobodysWeight = 1.0 / 16;

}  // namespace

SharedBytes::SharedBytes(size_t most, const std::vector<double>& weights, std::chrono::milliseconds window)
    : most_(most), window_(window), shared_(weights.size() > 1) {
  const double heaviest = weights.empty() ? 1.0 : *std::ranges::max_element(weights);
  for (const double weight : weights) tenants_.push_back({.weight = weight / heaviest});
  if (tenants_.empty()) tenants_.emplace_back();
  tenants_.push_back({.weight = weights.empty() ? 1.0 : kNobodysWeight});
}

size_t SharedBytes::index(int32_t tenant) const {
  const size_t nobody = tenants_.size() - 1;
  return tenant >= 0 && static_cast<size_t>(tenant) < nobody ? static_cast<size_t>(tenant) : nobody;
}

HeldBytes SharedBytes::place(int32_t tenant, std::function<void()> on_cut) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  places_.push_back(
      {.tenant = index(tenant), .on_cut = std::move(on_cut), .before = {now, 0}, .last = {now, 0}, .since = now});
  return {shared_from_this(), std::prev(places_.end())};
}

size_t SharedBytes::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

size_t SharedBytes::held_by(int32_t tenant) const {
  const std::lock_guard lock(mutex_);
  return tenants_[index(tenant)].held;
}

// own: what the place that asks holds already. One that holds nothing else is only bound by what there is, so that no
// single thing is too large for a share.
bool SharedBytes::fits(const Tenant& tenant, size_t own, size_t more) const {
  if (more > most_ - std::min(total_, most_)) return false;
  if (!shared_ && tenant.weight == 1.0) return true;
  if (tenant.held == own && tenant.weight != kNobodysWeight) return true;
  const auto free = static_cast<double>(most_ - total_);
  return static_cast<double>(tenant.held + more) <= free * tenant.weight;
}

// Bytes a second since the mark before the last one; nullptr where all are too young to tell, or cannot be cut, or the
// one that asks is the slowest.
SharedBytes::Place* SharedBytes::slowest(size_t tenant, const Place& asking, Clock::time_point now) {
  Place* found = nullptr;
  double least = 0;
  for (Place& place : places_) {
    if (place.tenant != tenant || place.bytes == 0 || !place.on_cut || place.cut) continue;
    const Clock::time_point from = place.before.time;
    if (now - place.since < window_ || now <= from) continue;
    const double pace =
        static_cast<double>(place.done - place.before.done) / std::chrono::duration<double>(now - from).count();
    if (found != nullptr && pace >= least) continue;  // of equals the oldest goes
    found = &place;
    least = pace;
  }
  return found == &asking ? nullptr : found;
}

bool SharedBytes::set(Place& place, size_t bytes) {
  struct Cut {
    Place* place;
    size_t bytes;
    std::function<void()> tell;
  };
  std::vector<Cut> cut;
  bool taken = false;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (place.cut || bytes > most_) return false;
    if (bytes > 0 && place.bytes == 0) {  // it may have been idle: that is no one's fault
      place.before = place.last = {now, place.done};
      place.since = now;
    }
    Tenant& own = tenants_[place.tenant];
    while (true) {
      const size_t more = bytes - std::min(bytes, place.bytes);
      if (more == 0 || fits(own, place.bytes, more)) {
        total_ += bytes - place.bytes;  // unsigned: also where it is less
        own.held += bytes - place.bytes;
        place.bytes = bytes;
        taken = true;
        break;
      }
      // Whoever is over its share makes room itself; else the one that holds most for its weight.
      size_t payer = place.tenant;
      if (more > most_ - std::min(total_, most_)) {
        const auto heaviest = std::ranges::max_element(
            tenants_, {}, [](const Tenant& tenant) { return static_cast<double>(tenant.held) / tenant.weight; });
        payer = static_cast<size_t>(heaviest - tenants_.begin());
      }
      Place* slow = slowest(payer, place, now);
      if (slow == nullptr) break;
      cut.push_back({slow, slow->bytes, {}});
      total_ -= slow->bytes;
      tenants_[payer].held -= slow->bytes;
      slow->bytes = 0;
      slow->cut = true;
    }
    for (Cut& one : cut) {
      if (taken) {
        one.tell = std::exchange(one.place->on_cut, {});
        continue;
      }
      one.place->cut = false;  // nobody goes for nothing
      one.place->bytes = one.bytes;
      total_ += one.bytes;
      tenants_[one.place->tenant].held += one.bytes;
    }
  }
  if (!taken) return false;
  for (const Cut& one : cut) one.tell();
  return true;
}

void SharedBytes::set_anyway(Place& place, size_t bytes) {
  const std::lock_guard lock(mutex_);
  total_ += bytes - place.bytes;  // unsigned: also where it is less
  tenants_[place.tenant].held += bytes - place.bytes;
  place.bytes = bytes;
}

void SharedBytes::progress(Place& place, size_t bytes) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  place.done += bytes;
  if (now - place.last.time < window_) return;
  place.before = std::exchange(place.last, {now, place.done});
}

void SharedBytes::keep(Place& place) {
  const std::function<void()> dropped = [&] {
    const std::lock_guard lock(mutex_);
    return std::exchange(place.on_cut, {});
  }();
}

void SharedBytes::release(Places::iterator place) {
  Places dropped;  // outside the lock: it may own what holds another place
  const std::lock_guard lock(mutex_);
  total_ -= place->bytes;
  tenants_[place->tenant].held -= place->bytes;
  dropped.splice(dropped.end(), places_, place);
}

HeldBytes::HeldBytes(HeldBytes&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), place_(other.place_) {}

HeldBytes& HeldBytes::operator=(HeldBytes&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = std::exchange(other.pool_, nullptr);
  place_ = other.place_;
  return *this;
}

bool HeldBytes::set(size_t bytes) {
  return pool_->set(*place_, bytes);
}

void HeldBytes::set_anyway(size_t bytes) {
  pool_->set_anyway(*place_, bytes);
}

void HeldBytes::progress(size_t bytes) {
  if (pool_ != nullptr) pool_->progress(*place_, bytes);
}

void HeldBytes::cannot_be_cut() {
  if (pool_ != nullptr) pool_->keep(*place_);
}

void HeldBytes::release() {
  if (const auto pool = std::exchange(pool_, nullptr)) pool->release(place_);
}

}  // namespace quire::server
