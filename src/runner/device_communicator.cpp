#include "runner/device_communicator.h"

#include <algorithm>
#include <compare>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "types/memory_plan.h"

namespace quire::runner {
namespace {

constexpr int64_t kLeastStaging = int64_t{4} << 20;

// One call of the host's communicator on staged numbers. A recording calls it again, so that it stays.
struct StagedCall {
  enum class Kind : uint8_t { kSum, kSumOfPart, kAll, kColumns, kBroadcast, kSend, kReceive, kMeet };
  comm::Communicator* host = nullptr;
  std::byte* staging = nullptr;
  Kind kind = Kind::kMeet;
  int64_t bytes = 0;                  // of a rank; of kColumns: of a row
  int64_t num_rows = 0;               // of kColumns
  int peer = 0;                       // from whom, to whom, or whose
  std::vector<int64_t> columns = {};  // of kColumns: first and count of each rank's
  auto operator<=>(const StagedCall&) const = default;
};

void carry_out(const void* opaque) {
  const StagedCall& call = *static_cast<const StagedCall*>(opaque);
  const auto size = static_cast<size_t>(call.bytes);
  const std::span<std::byte> bytes(call.staging, size);
  const std::span<float> floats(reinterpret_cast<float*>(call.staging), size / sizeof(float));
  const size_t all = size * static_cast<size_t>(call.host->size());
  switch (call.kind) {
    case StagedCall::Kind::kSum:
      return call.host->all_reduce(floats);
    case StagedCall::Kind::kSumOfPart: {
      const std::span<float> every(floats.data(), all / sizeof(float));
      return call.host->reduce_scatter(every, {every.data() + every.size(), floats.size()});
    }
    case StagedCall::Kind::kAll:
      return call.host->all_gather(bytes, {call.staging + size, all});
    case StagedCall::Kind::kColumns: {
      std::vector<comm::ColumnRange> columns;
      for (size_t i = 0; i < call.columns.size(); i += 2) columns.push_back({call.columns[i], call.columns[i + 1]});
      return call.host->gather_columns({floats.data(), call.num_rows, static_cast<int64_t>(floats.size())}, columns,
                                       call.peer);
    }
    case StagedCall::Kind::kBroadcast:
      return call.host->broadcast(bytes, call.peer);
    case StagedCall::Kind::kSend:
      return call.host->send(bytes, call.peer);
    case StagedCall::Kind::kReceive:
      return call.host->receive(bytes, call.peer);
    case StagedCall::Kind::kMeet:
      return call.host->barrier();
  }
}

class DeviceCommunicator final : public comm::Communicator {
 public:
  DeviceCommunicator(ops::Backend& backend, comm::Communicator& host, int64_t staging_bytes, DeviceWays ways)
      : backend_(backend),
        host_(host),
        staging_(backend.host_allocator(), static_cast<size_t>(staging_bytes)),
        link_(std::move(ways.link)),
        // Two numbers have one sum.
        link_sums_(link_ != nullptr && (!ways.one_order || host.size() == 2)) {
    if (link_ != nullptr) packed_ = Buffer(backend.allocator(), static_cast<size_t>(staging_bytes));
  }
  ~DeviceCommunicator() override { backend_.synchronise(); }

  bool has_memory() const { return staging_.data() != nullptr && (link_ == nullptr || packed_.data() != nullptr); }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  Status status() const override {
    return link_ != nullptr && !link_->status().ok() ? link_->status() : host_.status();
  }

  void all_reduce(std::span<float> values) override {
    if (link_sums_ || (link_ != nullptr && link_->adds_in_order(values.data(), std::ssize(values))))
      return link_->all_reduce(values.data(), std::ssize(values));
    in_pieces(values.size_bytes(), staging_.bytes(), [&](size_t begin, size_t count) {
      float* piece = values.data() + begin / sizeof(float);
      fetch(piece, count);
      call({.kind = StagedCall::Kind::kSum, .bytes = static_cast<int64_t>(count)});
      put_back(piece, count);
    });
  }

  void reduce_scatter(std::span<const float> values, std::span<float> sum) override {
    QUIRE_CHECK(values.size() == sum.size() * ranks());
    in_pieces(sum.size_bytes(), staging_.bytes() / (ranks() + 1), [&](size_t begin, size_t count) {
      const auto* from = reinterpret_cast<const std::byte*>(values.data()) + begin;
      for (size_t q = 0; q < ranks(); ++q) fetch(from + q * sum.size_bytes(), count, q * count);
      call({.kind = StagedCall::Kind::kSumOfPart, .bytes = static_cast<int64_t>(count)});
      put_back(reinterpret_cast<std::byte*>(sum.data()) + begin, count, ranks() * count);
    });
  }

  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == own.size() * ranks());
    in_pieces(own.size(), staging_.bytes() / (ranks() + 1), [&](size_t begin, size_t count) {
      fetch(own.data() + begin, count);
      call({.kind = StagedCall::Kind::kAll, .bytes = static_cast<int64_t>(count)});
      for (size_t q = 0; q < ranks(); ++q) put_back(all.data() + q * own.size() + begin, count, (1 + q) * count);
    });
  }

  void gather_columns(const comm::MatrixView& matrix, std::span<const comm::ColumnRange> columns, int root) override {
    QUIRE_CHECK(columns.size() == ranks());
    int64_t width = 0;
    std::vector<int64_t> ranges;
    for (const comm::ColumnRange& range : columns) {
      width = std::max(width, range.first + range.count);
      ranges.insert(ranges.end(), {range.first, range.count});
    }
    if (width == 0) return;
    const auto row_bytes = static_cast<int64_t>(sizeof(float)) * width;
    const int64_t most = static_cast<int64_t>(staging_.bytes()) / row_bytes;
    QUIRE_CHECK_MSG(most > 0, "a matrix that is wider than was said");
    if (link_ != nullptr) return gather_by_link(matrix, columns, root);
    const auto shape_of = [&](const comm::ColumnRange& range, int64_t num_rows) {
      return ops::DeviceMemory::CopyShape{.row_bytes = static_cast<size_t>(range.count) * sizeof(float),
                                          .num_rows = static_cast<size_t>(num_rows),
                                          .device_stride = static_cast<size_t>(matrix.row_stride) * sizeof(float),
                                          .host_stride = static_cast<size_t>(row_bytes)};
    };
    for (int64_t row = 0; row < matrix.num_rows; row += most) {
      const int64_t num_rows = std::min(most, matrix.num_rows - row);
      float* rows = matrix.data + row * matrix.row_stride;
      auto* staged = staging_.as<float>();
      const comm::ColumnRange& own = columns[static_cast<size_t>(rank())];
      if (root != rank()) backend_.copy_to_host(staged + own.first, rows + own.first, shape_of(own, num_rows));
      call({.kind = StagedCall::Kind::kColumns,
            .bytes = row_bytes,
            .num_rows = num_rows,
            .peer = root,
            .columns = ranges});
      if (root != kEverybody && root != rank()) continue;
      for (size_t q = 0; q < ranks(); ++q) {
        if (static_cast<int>(q) == rank()) continue;
        backend_.copy_to_device(rows + columns[q].first, staged + columns[q].first, shape_of(columns[q], num_rows));
      }
    }
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    in_pieces(bytes.size(), staging_.bytes(), [&](size_t begin, size_t count) {
      if (rank() == root) fetch(bytes.data() + begin, count);
      call({.kind = StagedCall::Kind::kBroadcast, .bytes = static_cast<int64_t>(count), .peer = root});
      if (rank() != root) put_back(bytes.data() + begin, count);
    });
  }

  void send(std::span<const std::byte> bytes, int to) override {
    if (link_ != nullptr) {
      const ops::DeviceLink::Transfer one{const_cast<std::byte*>(bytes.data()), bytes.size(), to, /*sends=*/true};
      return link_->transfer({&one, 1});
    }
    in_pieces(bytes.size(), staging_.bytes(), [&](size_t begin, size_t count) {
      fetch(bytes.data() + begin, count);
      call({.kind = StagedCall::Kind::kSend, .bytes = static_cast<int64_t>(count), .peer = to});
    });
  }

  void receive(std::span<std::byte> bytes, int from) override {
    if (link_ != nullptr) {
      const ops::DeviceLink::Transfer one{bytes.data(), bytes.size(), from, /*sends=*/false};
      return link_->transfer({&one, 1});
    }
    in_pieces(bytes.size(), staging_.bytes(), [&](size_t begin, size_t count) {
      call({.kind = StagedCall::Kind::kReceive, .bytes = static_cast<int64_t>(count), .peer = from});
      put_back(bytes.data() + begin, count);
    });
  }

  void barrier() override { call({.kind = StagedCall::Kind::kMeet}); }

 private:
  size_t ranks() const { return static_cast<size_t>(size()); }

  // Whole floats each.
  template <typename Body>
  static void in_pieces(size_t bytes, size_t most, const Body& body) {
    most = most / sizeof(float) * sizeof(float);
    for (size_t begin = 0; begin < bytes; begin += most) body(begin, std::min(most, bytes - begin));
  }

  void fetch(const void* device, size_t bytes, size_t offset = 0) {
    backend_.copy_to_host(staging_.as<std::byte>() + offset, device, {.row_bytes = bytes});
  }
  void put_back(void* device, size_t bytes, size_t offset = 0) {
    backend_.copy_to_device(device, staging_.as<std::byte>() + offset, {.row_bytes = bytes});
  }

  void gather_by_link(const comm::MatrixView& matrix, std::span<const comm::ColumnRange> columns, int root) {
    int64_t width = 0;  // of all, each by itself
    for (const comm::ColumnRange& range : columns) width += range.count;
    const int64_t most = static_cast<int64_t>(packed_.bytes() / sizeof(float)) / width;
    QUIRE_CHECK_MSG(most > 0, "a matrix that is wider than was said");
    for (int64_t row = 0; row < matrix.num_rows; row += most) {
      float* rows = matrix.data + row * matrix.row_stride;
      gather_rows_by_link({rows, std::min(most, matrix.num_rows - row), matrix.row_stride}, columns, root);
    }
  }

  // Messages have no gaps: columns are packed beside each other, rank by rank. What ranks share is sent by each.
  void gather_rows_by_link(const comm::MatrixView& matrix, std::span<const comm::ColumnRange> columns, int root) {
    std::vector<ops::DeviceLink::Transfer> transfers;
    std::vector<float*> packed(columns.size());
    const bool takes = root == kEverybody || root == rank();
    const auto copy = [&](const comm::ColumnRange& range, float* dense, bool packs) {
      float* in_matrix = matrix.data + range.first;
      backend_(ops::CopyHeadsArgs{.in = packs ? in_matrix : dense,
                                  .in_token_stride = packs ? matrix.row_stride : range.count,
                                  .in_head_stride = range.count,
                                  .num_tokens = matrix.num_rows,
                                  .num_heads = 1,
                                  .size = range.count,
                                  .out = packs ? dense : in_matrix,
                                  .out_token_stride = packs ? range.count : matrix.row_stride,
                                  .out_head_stride = range.count});
    };
    int64_t used = 0;
    for (size_t q = 0; q < columns.size(); ++q) {
      const int peer = static_cast<int>(q);
      const bool is_own = peer == rank();
      if (columns[q].count == 0 || (is_own ? root == rank() : !takes)) continue;
      packed[q] = packed_.as<float>() + used;
      used += matrix.num_rows * columns[q].count;
      QUIRE_CHECK(static_cast<size_t>(used) * sizeof(float) <= packed_.bytes());
      if (!is_own) transfers.push_back({packed[q], bytes_of(matrix, columns[q]), peer, /*sends=*/false});
    }
    const auto self = static_cast<size_t>(rank());
    if (packed[self] != nullptr) {
      copy(columns[self], packed[self], /*packs=*/true);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank() || (root != kEverybody && root != peer)) continue;
        transfers.push_back({packed[self], bytes_of(matrix, columns[self]), peer, /*sends=*/true});
      }
    }
    link_->transfer(transfers);
    for (size_t q = 0; q < columns.size(); ++q) {
      if (packed[q] != nullptr && q != self) copy(columns[q], packed[q], /*packs=*/false);
    }
  }
  static size_t bytes_of(const comm::MatrixView& matrix, const comm::ColumnRange& range) {
    return static_cast<size_t>(matrix.num_rows * range.count) * sizeof(float);
  }

  // There are as many different calls as steps have sizes.
  void call(StagedCall wanted) {
    wanted.host = &host_;
    wanted.staging = staging_.as<std::byte>();
    backend_.call_on_host(carry_out, &*calls_.insert(std::move(wanted)).first);
  }

  ops::Backend& backend_;
  comm::Communicator& host_;
  Buffer staging_;
  std::unique_ptr<ops::DeviceLink> link_;  // nullptr: there is none
  const bool link_sums_;
  Buffer packed_;  // the device's, of a link's messages
  std::set<StagedCall> calls_;
};

}  // namespace

Result<std::unique_ptr<comm::Communicator>> make_device_communicator(ops::Backend& backend, comm::Communicator& host,
                                                                     DeviceWays ways) {
  // Columns of several ranks may be the same ones (kv heads), and each sends its own.
  const int64_t row = ways.widest_row * static_cast<int64_t>(sizeof(float)) * (ways.link == nullptr ? 1 : host.size());
  const int64_t bytes = std::max(kLeastStaging, row);
  auto communicator = std::make_unique<DeviceCommunicator>(backend, host, bytes, std::move(ways));
  if (!communicator->has_memory()) {
    return resource_exhausted("no pinned memory of {}, or none of the device's, for what ranks exchange",
                              format_bytes(bytes));
  }
  return std::unique_ptr<comm::Communicator>(std::move(communicator));
}

std::unique_ptr<ops::DeviceLink> link_ranks(ops::Backend& backend, comm::Communicator& host) {
  const ops::LinkGroup group{.rank = host.rank(),
                             .size = host.size(),
                             .gather = [&host](std::span<const std::byte> own, std::span<std::byte> all) {
                               host.all_gather(own, all);
                               return host.status();
                             }};
  Result<std::unique_ptr<ops::DeviceLink>> link = backend.link(group);
  const bool tells = host.rank() == 0;
  if (link.ok()) {
    if (tells) log_info("{} ranks exchange by {}", host.size(), (*link)->description());
    return std::move(*link);
  }
  if (tells) log_warning("{} ranks exchange by way of the host: {}", host.size(), link.status().message());
  return nullptr;
}

}  // namespace quire::runner
