#include "comm/network_group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"

namespace quire::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kLongestEnd = 1000;  // short enough for MPI to send it at once
constexpr std::chrono::milliseconds kFlush{2000};
constexpr std::chrono::milliseconds kReason{500};  // how long the reason of an end may be on its way

// Between one look and the next.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds spin) : spin_(spin), begun_(SteadyClock::now()) {}
  // False: it has slept, so that it is time to look whether waiting makes sense.
  bool pause() {
    const auto waited = SteadyClock::now() - begun_;
    if (waited < spin_) {
      for (int i = 0; i < kPauses; ++i) relax();
      return true;
    }
    if (++tries_ <= kYields) {
      std::this_thread::yield();
      return true;
    }
    // A sixteenth of what was waited: it comes too late by no more than that.
    std::this_thread::sleep_for(std::clamp<SteadyClock::duration>(waited / 16, kShortestNap, kLongestNap));
    return false;
  }

 private:
  static constexpr int kPauses = 32;
  static constexpr int kYields = 4;
  static constexpr std::chrono::microseconds kShortestNap{20};
  static constexpr std::chrono::microseconds kLongestNap{2000};

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const std::chrono::microseconds spin_;
  const SteadyClock::time_point begun_;
  int tries_ = 0;
};

}  // namespace

class NetworkGroup::Turn {
 public:
  explicit Turn(NetworkGroup& group) : lock_(group.turn_, std::defer_lock) {
    group.wanting_.fetch_add(1);
    lock_.lock();
    group.wanting_.fetch_sub(1);
  }
  // Without one where others want it; whoever asks so asks again.
  Turn(NetworkGroup& group, std::try_to_lock_t how) : lock_(group.turn_, std::defer_lock) {
    if (group.wanting_.load() == 0) (void)lock_.try_lock();
    (void)how;
  }
  bool has_it() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

NetworkGroup::NetworkGroup(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

NetworkGroup::~NetworkGroup() {
  if (goes_on()) end(fmt::format("rank {} has ended", rank()));
  flush(kFlush);
  if (lost_) transport_->leave_others_behind();
}

Status NetworkGroup::write(int to, Tag tag, std::string message) {
  if (static_cast<int64_t>(message.size()) > kLongestMessage) {
    return invalid_argument("a message of {} bytes: expected at most {}", message.size(), kLongestMessage);
  }
  if (!goes_on()) return status();
  if (to == rank()) {
    {
      const std::lock_guard lock(own_mutex_);
      own_[tag].push_back(std::move(message));
    }
    own_bell_.notify_all();
    return {};
  }
  Status trouble;
  {
    const Turn turn(*this);
    reap();
    Outgoing& out = outgoing_.emplace_back();
    out.message = std::move(message);
    auto begun =
        transport_->send(out.message.data(), static_cast<int64_t>(out.message.size()), to, static_cast<int>(tag));
    if (begun.ok()) {
      out.request = *begun;
      reap();
      return {};
    }
    outgoing_.pop_back();
    trouble = begun.status();
  }
  end_by(trouble);
  return status();
}

Result<std::string> NetworkGroup::read(int from, Tag tag, Microseconds spin) {
  if (from == rank()) return read_own(tag);
  Backoff backoff(spin);
  while (goes_on()) {
    auto taken = take_message(from, tag, spin);
    if (!taken.ok()) {
      end_by(taken.status());
      break;
    }
    if (taken->has_value()) return std::move(**taken);
    if (!backoff.pause()) look_for_ends();
  }
  return status();
}

// The next message, if one has begun to come; what is left of it is waited for.
Result<std::optional<std::string>> NetworkGroup::take_message(int from, Tag tag, Microseconds spin) {
  std::optional<int64_t> length;
  {
    const Turn turn(*this, std::try_to_lock);
    if (!turn.has_it()) return std::optional<std::string>();
    reap();
    QUIRE_ASSIGN_OR_RETURN(length, transport_->probe(from, static_cast<int>(tag)));
  }
  if (!length) return std::optional<std::string>();
  std::string message(static_cast<size_t>(*length), '\0');
  Transfer whole{.peer = from, .receives = message.data(), .bytes = *length};
  QUIRE_RETURN_IF_ERROR(carry_out({&whole, 1}, static_cast<int>(tag), spin));
  return std::optional<std::string>(std::move(message));
}

Result<std::string> NetworkGroup::read_own(Tag tag) {
  constexpr std::chrono::milliseconds kLook{20};
  std::unique_lock lock(own_mutex_);
  std::deque<std::string>& queue = own_[tag];
  while (goes_on() && !own_bell_.wait_for(lock, kLook, [&] { return !queue.empty(); })) {
  }
  if (queue.empty()) return unavailable("{}", reason_);
  std::string message = std::move(queue.front());
  queue.pop_front();
  return message;
}

bool NetworkGroup::has_message(int from, Tag tag) {
  if (from == rank()) {
    const std::lock_guard lock(own_mutex_);
    return !own_[tag].empty();
  }
  const Turn turn(*this);
  const auto found = transport_->probe(from, static_cast<int>(tag));
  return found.ok() && found->has_value();
}

Status NetworkGroup::carry_out(std::span<Transfer> transfers, int tag, Microseconds spin) {
  if (!goes_on()) return status();
  Status trouble;
  int64_t bytes = 0;
  {
    const Turn turn(*this);
    for (Transfer& one : transfers) {
      bytes += one.bytes;
      auto begun = one.sends != nullptr ? transport_->send(one.sends, one.bytes, one.peer, tag)
                                        : transport_->receive(one.receives, one.bytes, one.peer, tag);
      one.is_done = !begun.ok();
      one.request = begun.ok() ? *begun : nullptr;
      if (!begun.ok() && trouble.ok()) trouble = begun.status();
    }
  }
  // What is on its way comes on while it is asked after, so a nap would hold it up: awake for as long as 0.5 GB/s take.
  if (spin.count() > 0) spin += Microseconds(bytes / 500);
  Backoff backoff(spin);
  while (trouble.ok()) {
    {
      const Turn turn(*this, std::try_to_lock);
      if (turn.has_it() && try_all(transfers, trouble)) return {};
    }
    if (!trouble.ok() || backoff.pause()) continue;
    look_for_ends();
    if (!goes_on()) break;
  }
  give_up(transfers);
  if (!trouble.ok()) end_by(trouble);
  return status();
}

// Whether all are done.
bool NetworkGroup::try_all(std::span<Transfer> transfers, Status& trouble) {
  bool all = true;
  for (Transfer& one : transfers) {
    if (one.is_done) continue;
    const auto came = transport_->test(one.request);
    one.is_done = !came.ok() || came->has_value();
    if (!came.ok()) {
      if (trouble.ok()) trouble = came.status();
      return false;
    }
    if (!one.is_done) {
      all = false;
    } else if (one.receives != nullptr && **came != one.bytes) {
      trouble = data_loss("rank {} has sent {} bytes where rank {} expected {}", one.peer, **came, rank(), one.bytes);
      return false;
    }
  }
  return all;
}

void NetworkGroup::give_up(std::span<Transfer> transfers) {
  const Turn turn(*this);
  for (Transfer& one : transfers) {
    if (!one.is_done) transport_->give_up(std::exchange(one.request, nullptr));
  }
}

void NetworkGroup::reap() {
  std::erase_if(outgoing_, [this](Outgoing& out) {
    const auto done = transport_->test(out.request);
    return !done.ok() || done->has_value();
  });
}

void NetworkGroup::end(std::string_view reason, How how) {
  {
    const std::lock_guard lock(own_mutex_);
    lost_ = lost_ || how == How::kLost;
    if (ended_.load()) return;
    reason_ = std::string(reason.substr(0, kLongestEnd));
    ended_.store(true, std::memory_order_release);
  }
  own_bell_.notify_all();
  std::string text(1, static_cast<char>(how));
  text += reason.substr(0, kLongestEnd);
  if (rank() != 0) return send_end(0, text);
  for (int other = 1; other < size(); ++other) send_end(other, text);
}

void NetworkGroup::end_by(const Status& trouble) {
  const auto limit = SteadyClock::now() + kReason;
  while (goes_on() && SteadyClock::now() < limit) {
    look_for_ends();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  end(trouble.message(), How::kLost);
}

void NetworkGroup::send_end(int to, std::string_view text) {
  const Turn turn(*this);
  Outgoing& out = outgoing_.emplace_back();
  out.message = text;
  const auto begun =
      transport_->send(out.message.data(), static_cast<int64_t>(text.size()), to, static_cast<int>(Tag::kEnd));
  if (begun.ok()) {
    out.request = *begun;
  } else {
    outgoing_.pop_back();
  }
}

void NetworkGroup::look_for_ends() {
  if (rank() != 0) return take_end(0);
  for (int other = 1; other < size(); ++other) take_end(other);
}

// A short message: it comes at once or not at all.
void NetworkGroup::take_end(int from) {
  std::string text;
  {
    const Turn turn(*this);
    reap();
    const auto length = transport_->probe(from, static_cast<int>(Tag::kEnd));
    if (length.ok() && !length->has_value()) return;
    if (!length.ok()) {
      text = "l" + length.status().message();
    } else if (**length < 1 || **length > static_cast<int64_t>(kLongestEnd) + 1) {
      text = fmt::format("lrank {} ends the group with a message of {} bytes", from, **length);
    } else {
      text.resize(static_cast<size_t>(**length));
      auto begun = transport_->receive(text.data(), **length, from, static_cast<int>(Tag::kEnd));
      if (!begun.ok()) return;
      Transport::Request request = *begun;
      const auto limit = SteadyClock::now() + kFlush;
      while (true) {
        const auto came = transport_->test(request);
        if (came.ok() && came->has_value()) break;
        if (!came.ok() || SteadyClock::now() > limit) {
          if (came.ok()) transport_->give_up(request);
          text = fmt::format("lrank {} has ended, and why cannot be read", from);
          break;
        }
        std::this_thread::yield();
      }
    }
  }
  end(std::string_view(text).substr(1), text.front() == static_cast<char>(How::kLost) ? How::kLost : How::kInOrder);
}

void NetworkGroup::flush(std::chrono::milliseconds most) {
  const auto limit = SteadyClock::now() + most;
  Backoff backoff(Microseconds(0));
  while (true) {
    {
      const Turn turn(*this);
      reap();
      if (outgoing_.empty()) return;
      if (SteadyClock::now() > limit) {
        for (Outgoing& out : outgoing_) transport_->give_up(out.request);
        const std::lock_guard lock(own_mutex_);
        lost_ = true;
        return;
      }
    }
    backoff.pause();
  }
}

bool NetworkGroup::is_lost() const {
  const std::lock_guard lock(own_mutex_);
  return lost_;
}

Status NetworkGroup::status() const {
  if (goes_on()) return {};
  const std::lock_guard lock(own_mutex_);
  return unavailable("{}", reason_);
}

}  // namespace quire::comm
