// Ranks as threads of a test, whose messages go through memory in the order of MPI's rules.
#pragma once

#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport.h"

namespace quire::comm {

class MemoryNetwork : public std::enable_shared_from_this<MemoryNetwork> {
 public:
  explicit MemoryNetwork(int size) : size_(size) {}
  std::unique_ptr<Transport> join(int rank) { return std::make_unique<Rank>(shared_from_this(), rank); }
  // From now on messages to this rank cannot be sent.
  void cut_off(int rank) {
    const std::lock_guard lock(mutex_);
    cut_off_ = rank;
  }
  int num_waited_for() const {
    const std::lock_guard lock(mutex_);
    return num_waited_for_;
  }

 private:
  struct Posted {
    void* data = nullptr;
    int64_t bytes = 0;
    bool is_done = false;
    int64_t came = 0;
  };
  using Way = std::tuple<int, int, int>;  // from, to, tag

  class Rank final : public Transport {
   public:
    Rank(std::shared_ptr<MemoryNetwork> network, int rank) : network_(std::move(network)), rank_(rank) {}
    ~Rank() override {
      const std::lock_guard lock(network_->mutex_);
      if (!left_behind_) ++network_->num_waited_for_;
    }
    int rank() const override { return rank_; }
    int size() const override { return network_->size_; }

    Result<Request> send(const void* data, int64_t bytes, int to, int tag) override {
      const std::lock_guard lock(network_->mutex_);
      if (to == network_->cut_off_) return unavailable("rank {} cannot be reached", to);
      network_->messages_[{rank_, to, tag}].emplace_back(static_cast<const char*>(data), static_cast<size_t>(bytes));
      return Request(nullptr);
    }
    Result<Request> receive(void* data, int64_t bytes, int from, int tag) override {
      const std::lock_guard lock(network_->mutex_);
      Posted& posted = all_.emplace_back(Posted{.data = data, .bytes = bytes});
      waiting_[{from, rank_, tag}].push_back(&posted);
      return Request(&posted);
    }
    Result<std::optional<int64_t>> test(Request& request) override {
      if (request == nullptr) return std::optional<int64_t>(0);
      const std::lock_guard lock(network_->mutex_);
      for (auto& [way, posted] : waiting_) {
        auto& messages = network_->messages_[way];
        while (!posted.empty() && !messages.empty()) take(*posted.front(), messages), posted.pop_front();
      }
      Posted& own = *static_cast<Posted*>(request);
      if (!own.is_done) return std::optional<int64_t>();
      request = nullptr;
      if (own.came > own.bytes) return unavailable("a message of {} bytes where {} were expected", own.came, own.bytes);
      return std::optional<int64_t>(own.came);
    }
    Result<std::optional<int64_t>> probe(int from, int tag) override {
      const std::lock_guard lock(network_->mutex_);
      const auto& messages = network_->messages_[{from, rank_, tag}];
      return messages.empty() ? std::optional<int64_t>() : std::optional<int64_t>(messages.front().size());
    }
    void give_up(Request request) override {
      const std::lock_guard lock(network_->mutex_);
      for (auto& [way, posted] : waiting_) std::erase(posted, static_cast<Posted*>(request));
    }
    void leave_others_behind() override { left_behind_ = true; }

   private:
    static void take(Posted& posted, std::deque<std::string>& messages) {
      posted.is_done = true;
      posted.came = static_cast<int64_t>(messages.front().size());
      std::memcpy(posted.data, messages.front().data(), static_cast<size_t>(std::min(posted.came, posted.bytes)));
      messages.pop_front();
    }

    const std::shared_ptr<MemoryNetwork> network_;
    const int rank_;
    bool left_behind_ = false;
    std::list<Posted> all_;
    std::map<Way, std::deque<Posted*>> waiting_;
  };

  const int size_;
  mutable std::mutex mutex_;
  int cut_off_ = -1;
  int num_waited_for_ = 0;  // ranks whose end was in order
  std::map<Way, std::deque<std::string>> messages_;
};

}  // namespace quire::comm
