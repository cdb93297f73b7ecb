// Room that all keys share: bytes of bodies, of answers, of files. What one key may hold is as much as is left free,
// times its weight over the heaviest one's (as server/load.h has it): one that takes all it can leaves half, and there
// is always room for the next. Where room runs out, whoever holds some and is slowest may have to go.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace quire::server {

class HeldBytes;

// Thread-safe.
class SharedBytes : public std::enable_shared_from_this<SharedBytes> {
 public:
  using Clock = std::chrono::steady_clock;

  // weights: of the tenants, by number; one or none: whoever asks may have all. A number that is none of theirs is
  // nobody's, who has a small share where there are tenants. window: over which it is measured who is slowest; what is
  // younger is not looked at.
  SharedBytes(size_t most, const std::vector<double>& weights,
              std::chrono::milliseconds window = std::chrono::milliseconds(1000));

  // A place that holds nothing yet. on_cut: called once, on any thread and not under a lock, when the place was taken
  // away in favour of another, unless cannot_be_cut() was called before. It must not block. Empty: never.
  HeldBytes place(int32_t tenant, std::function<void()> on_cut = {});

  size_t most() const { return most_; }
  size_t total() const;
  size_t held_by(int32_t tenant) const;

 private:
  friend class HeldBytes;
  struct Mark {
    Clock::time_point time;
    uint64_t done = 0;
  };
  struct Place {
    size_t tenant = 0;
    size_t bytes = 0;
    std::function<void()> on_cut;
    bool cut = false;
    uint64_t done = 0;  // bytes that went through it
    Mark before, last;  // of `done`: the pace is measured from the one before the last
    Clock::time_point since;
  };
  using Places = std::list<Place>;
  struct Tenant {
    size_t held = 0;
    double weight = 1;  // over the heaviest
  };

  bool set(Place& place, size_t bytes);
  void set_anyway(Place& place, size_t bytes);
  void release(Places::iterator place);
  void progress(Place& place, size_t bytes);
  void keep(Place& place);
  bool fits(const Tenant& tenant, size_t own, size_t more) const;
  Place* slowest(size_t tenant, const Place& asking, Clock::time_point now);
  size_t index(int32_t tenant) const;

  const size_t most_;
  const std::chrono::milliseconds window_;
  mutable std::mutex mutex_;
  std::vector<Tenant> tenants_;  // nobody is the last
  bool shared_ = false;
  size_t total_ = 0;
  Places places_;
};

// A place, given back when it goes. Used by one thread at a time.
class HeldBytes {
 public:
  HeldBytes() = default;
  ~HeldBytes() { release(); }
  HeldBytes(HeldBytes&& other) noexcept;
  HeldBytes& operator=(HeldBytes&& other) noexcept;

  // Makes it `bytes`; fewer always fit. False, and nothing changes: there is no room, or the place was taken away.
  // REQUIRES: a place.
  bool set(size_t bytes);
  // The same for what is there in any case, room or not.
  void set_anyway(size_t bytes);
  // So many bytes came or went: what shows how slow it is.
  void progress(size_t bytes);
  void cannot_be_cut();  // any more
  void release();
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class SharedBytes;
  HeldBytes(std::shared_ptr<SharedBytes> pool, SharedBytes::Places::iterator place)
      : pool_(std::move(pool)), place_(place) {}

  std::shared_ptr<SharedBytes> pool_;
  SharedBytes::Places::iterator place_;
};

}  // namespace quire::server
