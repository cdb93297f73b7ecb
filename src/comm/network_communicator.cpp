#include "comm/network_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/ordered_sum.h"

namespace quire::comm {
namespace {

constexpr int64_t kPieceFloats = 1 << 20;  // of a sum: what is kept of the others' is as large
constexpr size_t kPieceBytes = 64 << 20;   // of messages that are kept nowhere between
constexpr int64_t kGathered = 8192;        // floats of a sum that is not worth dividing

class NetworkCommunicator final : public Communicator {
 public:
  NetworkCommunicator(NetworkGroup& group, NetworkRanks ranks)
      : group_(group),
        members_(std::move(ranks.members)),
        rank_(static_cast<int>(std::ranges::find(members_, group.rank()) - members_.begin())),
        sums_(static_cast<int>(Tag::kFirstOfNumbers) + 2 * ranks.number),
        messages_(sums_ + 1),
        spin_(ranks.spin),
        parts_(members_.size()) {
    QUIRE_CHECK(rank_ < size());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  Status status() const override { return group_.status(); }

  void all_reduce(std::span<float> values) override {
    const auto count = static_cast<int64_t>(values.size());
    for (int64_t begin = 0; begin < count; begin += kPieceFloats) {
      if (!reduce_piece(values.data() + begin, std::min(kPieceFloats, count - begin))) return;
    }
  }

  void reduce_scatter(std::span<const float> values, std::span<float> sum) override {
    QUIRE_CHECK(values.size() == sum.size() * static_cast<size_t>(size()));
    const auto part = static_cast<int64_t>(sum.size());
    for (int64_t begin = 0; begin < part; begin += kPieceFloats) {
      const int64_t count = std::min(kPieceFloats, part - begin);
      const auto own_part = [&](int q) { return values.data() + q * part + begin; };
      float* others = kept(count * size());
      for (int q = 0; q < size(); ++q) {
        if (q == rank_) continue;
        send_to(q, own_part(q), count);
        receive_from(q, others + q * count, count);
      }
      if (!carry_out(sums_)) return;
      for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = q == rank_ ? own_part(q) : others + q * count;
      add_up(parts_, count, sum.data() + begin);
    }
  }

  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == own.size() * static_cast<size_t>(size()));
    for (size_t begin = 0; begin < own.size(); begin += kPieceBytes) {
      const size_t count = std::min(kPieceBytes, own.size() - begin);
      const auto place_of = [&](int q) { return all.data() + static_cast<size_t>(q) * own.size() + begin; };
      for (int q = 0; q < size(); ++q) {
        if (q == rank_) continue;
        send_bytes(q, own.data() + begin, count);
        receive_bytes(q, place_of(q), count);
      }
      if (!carry_out(sums_)) return;
      std::memcpy(place_of(rank_), own.data() + begin, count);
    }
  }

  void gather_columns(const MatrixView& matrix, std::span<const ColumnRange> columns, int root) override {
    QUIRE_CHECK(columns.size() == static_cast<size_t>(size()));
    int64_t all = 0;
    for (const ColumnRange& range : columns) all += range.count;
    const int64_t rows = std::max<int64_t>(1, kPieceFloats / std::max<int64_t>(all, 1));
    for (int64_t row = 0; row < matrix.num_rows; row += rows) {
      if (!gather_rows(matrix, columns, root, row, std::min(rows, matrix.num_rows - row))) return;
    }
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      const size_t count = std::min(kPieceBytes, bytes.size() - begin);
      if (rank_ != root) {
        receive_bytes(root, bytes.data() + begin, count);
      } else {
        for (int q = 0; q < size(); ++q) {
          if (q != rank_) send_bytes(q, bytes.data() + begin, count);
        }
      }
      if (!carry_out(sums_)) return;
    }
  }

  void send(std::span<const std::byte> bytes, int to) override {
    QUIRE_CHECK(to >= 0 && to < size() && to != rank_);
    for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      send_bytes(to, bytes.data() + begin, std::min(kPieceBytes, bytes.size() - begin));
      if (!carry_out(messages_)) return;
    }
  }

  void receive(std::span<std::byte> bytes, int from) override {
    QUIRE_CHECK(from >= 0 && from < size() && from != rank_);
    for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      receive_bytes(from, bytes.data() + begin, std::min(kPieceBytes, bytes.size() - begin));
      if (!carry_out(messages_)) return;
    }
  }

  void barrier() override {
    const std::byte own{};
    std::vector<std::byte> all(members_.size());
    all_gather({&own, 1}, all);
  }

 private:
  bool reduce_piece(float* values, int64_t count) {
    if (size() == 1) return true;
    if (size() == 2 || count < kGathered) return reduce_gathered(values, count);
    const auto begin_of = [&](int q) { return count * q / size() / 16 * 16; };
    const auto count_of = [&](int q) { return (q + 1 == size() ? count : begin_of(q + 1)) - begin_of(q); };
    const int64_t own = count_of(rank_);
    float* own_values = values + begin_of(rank_);
    float* others = kept(own * size());
    for (int q = 0; q < size(); ++q) {
      if (q == rank_) continue;
      send_to(q, values + begin_of(q), count_of(q));
      receive_from(q, others + q * own, own);
    }
    if (!carry_out(sums_)) return false;
    for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = q == rank_ ? own_values : others + q * own;
    add_up(parts_, own, own_values);
    for (int q = 0; q < size(); ++q) {
      if (q == rank_) continue;
      send_to(q, own_values, own);
      receive_from(q, values + begin_of(q), count_of(q));
    }
    return carry_out(sums_);
  }

  bool reduce_gathered(float* values, int64_t count) {
    float* others = kept(count * size());
    for (int q = 0; q < size(); ++q) {
      if (q == rank_) continue;
      send_to(q, values, count);
      receive_from(q, others + q * count, count);
    }
    if (!carry_out(sums_)) return false;
    for (int q = 0; q < size(); ++q) parts_[static_cast<size_t>(q)] = q == rank_ ? values : others + q * count;
    add_up(parts_, count, values);
    return true;
  }

  // One rank's columns of the rows lie one row behind the other on the wire.
  bool gather_rows(const MatrixView& matrix, std::span<const ColumnRange> columns, int root, int64_t row,
                   int64_t num_rows) {
    const auto place = [&](int q, int64_t i) {
      return matrix.data + (row + i) * matrix.row_stride + columns[static_cast<size_t>(q)].first;
    };
    const auto width = [&](int q) { return columns[static_cast<size_t>(q)].count; };
    int64_t all = 0;
    for (const ColumnRange& range : columns) all += range.count;
    float* next = kept(num_rows * all);
    const bool takes = root == kEverybody || root == rank_;
    std::vector<float*> came(members_.size());
    for (int q = 0; q < size(); ++q) {
      came[static_cast<size_t>(q)] = next;
      next += num_rows * width(q);
      if (q != rank_ && takes) receive_from(q, came[static_cast<size_t>(q)], num_rows * width(q));
    }
    float* own = came[static_cast<size_t>(rank_)];
    if (root != rank_) {
      for (int64_t i = 0; i < num_rows; ++i) std::copy_n(place(rank_, i), width(rank_), own + i * width(rank_));
      for (int q = 0; q < size(); ++q) {
        if (q != rank_ && (root == kEverybody || root == q)) send_to(q, own, num_rows * width(rank_));
      }
    }
    if (!carry_out(sums_)) return false;
    for (int q = 0; takes && q < size(); ++q) {
      if (q == rank_) continue;
      const float* rows = came[static_cast<size_t>(q)];
      for (int64_t i = 0; i < num_rows; ++i) std::copy_n(rows + i * width(q), width(q), place(q, i));
    }
    return true;
  }

  float* kept(int64_t count) {
    if (static_cast<int64_t>(kept_.size()) < count) kept_.resize(static_cast<size_t>(count));
    return kept_.data();
  }
  void send_to(int q, const float* values, int64_t count) {
    send_bytes(q, values, static_cast<size_t>(count) * sizeof(float));
  }
  void receive_from(int q, float* values, int64_t count) {
    receive_bytes(q, values, static_cast<size_t>(count) * sizeof(float));
  }
  void send_bytes(int q, const void* data, size_t count) {
    if (count == 0) return;
    transfers_.push_back(
        {.peer = members_[static_cast<size_t>(q)], .sends = data, .bytes = static_cast<int64_t>(count)});
  }
  void receive_bytes(int q, void* data, size_t count) {
    if (count == 0) return;
    transfers_.push_back(
        {.peer = members_[static_cast<size_t>(q)], .receives = data, .bytes = static_cast<int64_t>(count)});
  }
  bool carry_out(int tag) {
    const bool done = group_.carry_out(transfers_, tag, spin_).ok();
    transfers_.clear();
    return done;
  }

  NetworkGroup& group_;
  const std::vector<int> members_;
  const int rank_;  // among them
  const int sums_;  // tags
  const int messages_;
  const std::chrono::microseconds spin_;
  std::vector<const float*> parts_;
  std::vector<float> kept_;  // what came from others
  std::vector<NetworkGroup::Transfer> transfers_;
};

}  // namespace

std::unique_ptr<Communicator> make_network_communicator(NetworkGroup& group, NetworkRanks ranks) {
  return std::make_unique<NetworkCommunicator>(group, std::move(ranks));
}

}  // namespace quire::comm
