#include "comm/shared_communicator.h"

#include <sys/poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/bell.h"
#include "comm/ordered_sum.h"
#include "comm/shared_copy.h"

namespace quire::comm {
namespace {

constexpr uint32_t kGroupMark = 0x71726770;
constexpr size_t kLongestReason = 240;

struct RankState {
  Bell arrived;                     // how many meetings the rank has come to
  std::atomic<int32_t> process{0};  // 0: nobody has joined yet
  std::atomic<uint32_t> gone{0};    // it has left
};

struct GroupHeader {
  std::atomic<uint32_t> mark{0};
  std::atomic<uint32_t> num_ranks{0};
  std::atomic<int64_t> slot_bytes{0};
  std::atomic<uint32_t> ended{0};  // 1: somebody writes the reason; 2: it is there
  char reason[kLongestReason + 1] = {};
  RankState ranks[kMostRanks];
};

// A message on its way from one rank to another, one piece at a time.
struct alignas(64) Mailbox {
  Bell sent;
  Bell taken;
};

int64_t whole_lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

int64_t slots_offset() {
  return whole_lines(sizeof(GroupHeader));
}
int64_t mailboxes_offset(const SharedGroupShape& shape) {
  return slots_offset() + 2 * shape.num_ranks * shape.slot_bytes;
}
int64_t mailbox_bytes(const SharedGroupShape& shape) {
  return static_cast<int64_t>(sizeof(Mailbox)) + shape.slot_bytes;
}

Status reason_of(const GroupHeader& header) {
  if (header.ended.load(std::memory_order_acquire) == 0) return {};
  const bool told = header.ended.load(std::memory_order_acquire) == 2;
  const size_t length = strnlen(header.reason, kLongestReason);
  return unavailable("{}", told ? std::string_view(header.reason, length) : "the group was ended");
}

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(uint8_t* memory, const SharedGroupShape& shape, const SharedRankOptions& options)
      : memory_(memory),
        header_(*reinterpret_cast<GroupHeader*>(memory)),
        shape_(shape),
        rank_(options.rank),
        patience_{.spin = options.spin},
        watched_(static_cast<size_t>(shape.num_ranks), -1),
        parts_(static_cast<size_t>(shape.num_ranks)) {}

  ~SharedCommunicator() override {
    header_.ranks[rank_].gone.store(1);
    for (const int descriptor : watched_) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return shape_.num_ranks; }
  Status status() const override { return status_; }

  void all_reduce(std::span<float> values) override {
    const int64_t most = shape_.slot_bytes / static_cast<int64_t>(sizeof(float));
    for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(most)) {
      const int64_t count = std::min(most, static_cast<int64_t>(values.size() - begin));
      if (!reduce_piece(values.data() + begin, count)) return;
    }
  }

  void reduce_scatter(std::span<const float> values, std::span<float> sum) override {
    QUIRE_CHECK(values.size() == sum.size() * static_cast<size_t>(size()));
    const int64_t most = shape_.slot_bytes / static_cast<int64_t>(sizeof(float)) / size();
    const auto part = static_cast<int64_t>(sum.size());
    for (int64_t begin = 0; begin < part; begin += most) {
      const int64_t count = std::min(most, part - begin);
      begin_piece();
      for (int q = 0; q < size(); ++q) put(values.data() + q * part + begin, count, floats_of(rank_) + q * count);
      if (!meet()) return;
      for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = floats_of(q) + rank_ * count;
      add_up(parts_, count, sum.data() + begin);
    }
  }

  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == own.size() * static_cast<size_t>(size()));
    for (size_t begin = 0; begin < own.size(); begin += static_cast<size_t>(shape_.slot_bytes)) {
      const size_t count = std::min(static_cast<size_t>(shape_.slot_bytes), own.size() - begin);
      begin_piece();
      copy_to_shared(own.data() + begin, slot_of(rank_), count);
      if (!meet()) return;
      for (int q = 0; q < size(); ++q)
        std::memcpy(all.data() + static_cast<size_t>(q) * own.size() + begin, slot_of(q), count);
    }
  }

  void gather_columns(const MatrixView& matrix, std::span<const ColumnRange> columns, int root) override {
    QUIRE_CHECK(columns.size() == static_cast<size_t>(size()));
    int64_t widest = 1;
    for (const ColumnRange& range : columns) widest = std::max(widest, range.count);
    const int64_t most = shape_.slot_bytes / static_cast<int64_t>(sizeof(float));
    // So many rows, or so many columns of one row, at a time.
    const int64_t rows = std::max<int64_t>(1, most / widest);
    const int64_t width = std::min(widest, most);
    for (int64_t row = 0; row < matrix.num_rows; row += rows) {
      const int64_t count = std::min(rows, matrix.num_rows - row);
      for (int64_t first = 0; first < widest; first += width) {
        if (!gather_piece(matrix, columns, root, {row, count, first, width})) return;
      }
    }
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    for (size_t begin = 0; begin < bytes.size(); begin += static_cast<size_t>(shape_.slot_bytes)) {
      const size_t count = std::min(static_cast<size_t>(shape_.slot_bytes), bytes.size() - begin);
      begin_piece();
      if (rank_ == root) copy_to_shared(bytes.data() + begin, slot_of(root), count);
      if (!meet()) return;
      if (rank_ != root) std::memcpy(bytes.data() + begin, slot_of(root), count);
    }
  }

  void send(std::span<const std::byte> bytes, int to) override {
    QUIRE_CHECK(to >= 0 && to < size() && to != rank_);
    Mailbox& box = mailbox(rank_, to);
    for (size_t begin = 0; begin < bytes.size(); begin += static_cast<size_t>(shape_.slot_bytes)) {
      const size_t count = std::min(static_cast<size_t>(shape_.slot_bytes), bytes.size() - begin);
      const uint32_t before = box.sent.get();
      if (!wait(box.taken, [&] { return box.taken.get() == before; })) return;
      copy_to_shared(bytes.data() + begin, contents(box), count);
      box.sent.set(before + 1);
    }
  }

  void receive(std::span<std::byte> bytes, int from) override {
    QUIRE_CHECK(from >= 0 && from < size() && from != rank_);
    Mailbox& box = mailbox(from, rank_);
    for (size_t begin = 0; begin < bytes.size(); begin += static_cast<size_t>(shape_.slot_bytes)) {
      const size_t count = std::min(static_cast<size_t>(shape_.slot_bytes), bytes.size() - begin);
      const uint32_t before = box.taken.get();
      if (!wait(box.sent, [&] { return box.sent.get() != before; })) return;
      std::memcpy(bytes.data() + begin, contents(box), count);
      box.taken.set(before + 1);
    }
  }

  void barrier() override {
    begin_piece();
    (void)meet();
  }

 private:
  struct Piece {
    int64_t row = 0;
    int64_t num_rows = 0;
    int64_t first = 0;  // of each range's columns
    int64_t width = 0;
  };

  // The other half of the slots: whoever still reads the last piece is not disturbed, and the piece before that all
  // have read, for they have come to a meeting since.
  void begin_piece() { half_ = 1 - half_; }
  uint8_t* slot_of(int rank) const { return memory_ + slots_offset() + (2 * rank + half_) * shape_.slot_bytes; }
  static void put(const float* from, int64_t count, float* slot) {
    copy_to_shared(from, slot, static_cast<size_t>(count) * sizeof(float));
  }
  float* floats_of(int rank) const { return reinterpret_cast<float*>(slot_of(rank)); }
  Mailbox& mailbox(int from, int to) const {
    const int64_t index = int64_t{from} * size() + to;
    return *reinterpret_cast<Mailbox*>(memory_ + mailboxes_offset(shape_) + index * mailbox_bytes(shape_));
  }
  static uint8_t* contents(Mailbox& box) { return reinterpret_cast<uint8_t*>(&box) + sizeof(Mailbox); }

  bool reduce_piece(float* values, int64_t count) {
    constexpr int64_t kWorthDividing = 8192;  // floats
    begin_piece();
    if (count < kWorthDividing) {
      put(values, count, floats_of(rank_));
      if (!meet()) return false;
      for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = q == rank_ ? values : floats_of(q);
      add_up(parts_, count, values);
      return true;
    }
    const auto begin_of = [&](int q) { return count * q / size() / 16 * 16; };
    const auto end_of = [&](int q) { return q + 1 == size() ? count : begin_of(q + 1); };
    const int64_t begin = begin_of(rank_);
    const int64_t end = end_of(rank_);
    put(values, begin, floats_of(rank_));
    put(values + end, count - end, floats_of(rank_) + end);
    if (!meet()) return false;
    for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = (q == rank_ ? values : floats_of(q)) + begin;
    add_up(parts_, end - begin, values + begin);
    put(values + begin, end - begin, floats_of(rank_) + begin);  // its own part of its slot, which nobody has read
    if (!meet()) return false;
    for (int q = 0; q < size(); ++q) {
      if (q == rank_) continue;
      std::copy(floats_of(q) + begin_of(q), floats_of(q) + end_of(q), values + begin_of(q));
    }
    return true;
  }

  bool gather_piece(const MatrixView& matrix, std::span<const ColumnRange> columns, int root, const Piece& piece) {
    const auto each_row = [&](int q, auto&& copy) {
      const ColumnRange& range = columns[static_cast<size_t>(q)];
      const int64_t count = std::min(piece.width, range.count - piece.first);
      if (count <= 0) return;
      for (int64_t i = 0; i < piece.num_rows; ++i) {
        float* row = matrix.data + (piece.row + i) * matrix.row_stride + range.first + piece.first;
        copy(row, floats_of(q) + i * count, count);
      }
    };
    begin_piece();
    if (root != rank_) {
      each_row(rank_, [](const float* row, float* slot, int64_t count) { put(row, count, slot); });
    }
    if (!meet()) return false;
    if (root != kEverybody && root != rank_) return true;
    for (int q = 0; q < size(); ++q) {
      if (q == rank_) continue;
      each_row(q, [](float* row, const float* slot, int64_t count) { std::copy_n(slot, count, row); });
    }
    return true;
  }

  bool meet() {
    if (!status_.ok()) return false;
    ++meetings_;
    header_.ranks[rank_].arrived.set(meetings_);
    for (int q = 0; q < size(); ++q) {
      Bell& arrived = header_.ranks[q].arrived;
      const auto came = [&] { return static_cast<int32_t>(arrived.get() - meetings_) >= 0; };
      if (q != rank_ && !wait(arrived, came)) return false;
    }
    return true;
  }

  template <typename Ready>
  bool wait(Bell& bell, const Ready& ready) {
    if (!status_.ok()) return false;
    return wait_for(bell, patience_, ready, [&] { return all_are_there(ready); });
  }

  // False: status_ says what is wrong. A rank that has done its part may go: others may still be on their way to see
  // what they waited for.
  template <typename Ready>
  bool all_are_there(const Ready& ready) {
    status_ = reason_of(header_);
    if (!status_.ok()) return false;
    for (int q = 0; q < size(); ++q) {
      if (q == rank_ || !is_gone(q)) continue;
      if (ready()) return true;
      end_shared_group(memory_, fmt::format("rank {} of {} is gone", q, size()));
      status_ = reason_of(header_);
      return false;
    }
    return true;
  }

  bool is_gone(int q) {
    const RankState& other = header_.ranks[q];
    if (other.gone.load() != 0) return true;
    const int32_t process = other.process.load();
    if (process == 0 || process == getpid()) return false;
    int& descriptor = watched_[static_cast<size_t>(q)];
    if (descriptor < 0) {
      descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
      // No such process: gone. Where the system knows no such descriptors, whoever started the group watches it.
      if (descriptor < 0) return errno == ESRCH;
    }
    pollfd ended{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&ended, 1, 0) == 1;
  }

  uint8_t* const memory_;
  GroupHeader& header_;
  const SharedGroupShape shape_;
  const int rank_;
  const Patience patience_;
  uint32_t meetings_ = 0;
  int half_ = 0;
  std::vector<int> watched_;         // descriptors of the other ranks' processes; -1: none yet
  std::vector<const float*> parts_;  // scratch
  Status status_;
};

}  // namespace

int64_t shared_group_bytes(const SharedGroupShape& shape) {
  return mailboxes_offset(shape) + int64_t{shape.num_ranks} * shape.num_ranks * mailbox_bytes(shape);
}

Result<std::unique_ptr<Communicator>> join_shared_group(void* memory, const SharedGroupShape& shape,
                                                        const SharedRankOptions& options) {
  if (shape.num_ranks < 1 || shape.num_ranks > kMostRanks || shape.slot_bytes < 4096 || shape.slot_bytes % 64 != 0) {
    return invalid_argument("a group of {} ranks with pieces of {} bytes: expected 1 to {}, and whole lines of a cache",
                            shape.num_ranks, shape.slot_bytes, kMostRanks);
  }
  if (options.rank < 0 || options.rank >= shape.num_ranks) {
    return invalid_argument("rank {} of a group of {}", options.rank, shape.num_ranks);
  }
  auto& header = *static_cast<GroupHeader*>(memory);
  uint32_t nobody = 0;
  uint32_t no_ranks = 0;
  int64_t no_bytes = 0;
  const auto agrees = [](auto& field, auto& before, auto wanted) {
    return field.compare_exchange_strong(before, wanted) || before == wanted;
  };
  if (!agrees(header.mark, nobody, kGroupMark) ||
      !agrees(header.num_ranks, no_ranks, static_cast<uint32_t>(shape.num_ranks)) ||
      !agrees(header.slot_bytes, no_bytes, shape.slot_bytes)) {
    return invalid_argument("the shared memory is not that of a group of {} ranks", shape.num_ranks);
  }
  int32_t free = 0;
  if (!header.ranks[options.rank].process.compare_exchange_strong(free, getpid())) {
    return invalid_argument("rank {} of {} has joined already, as process {}", options.rank, shape.num_ranks, free);
  }
  return std::unique_ptr<Communicator>(
      std::make_unique<SharedCommunicator>(static_cast<uint8_t*>(memory), shape, options));
}

void end_shared_group(void* memory, std::string_view reason) {
  auto& header = *static_cast<GroupHeader*>(memory);
  uint32_t running = 0;
  if (!header.ended.compare_exchange_strong(running, 1)) return;
  const size_t length = std::min(reason.size(), kLongestReason);
  std::memcpy(header.reason, reason.data(), length);
  header.reason[length] = '\0';
  header.ended.store(2, std::memory_order_release);
}

Status shared_group_status(const void* memory) {
  return reason_of(*static_cast<const GroupHeader*>(memory));
}

}  // namespace quire::comm
