// What ranks that hold parts of one model exchange numbers by. Every rank of a group makes the same calls in the same
// order, each from one thread at a time.
//
// Sums go in the order of the ranks, ((x0 + x1) + x2) + ..., whatever the size of a message and whoever comes first: a
// group of one size gives the same bits every time, and every rank has the same ones.
//
// Layers have nobody to hand an error to in the middle of a step. So a communicator remembers its first failure (a peer
// that died, a group that was ended): from then on no call waits, what calls leave in memory means nothing, and whoever
// runs the steps asks status() before a result is believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace quire::comm {

// Columns [first, first + count) of a matrix.
struct ColumnRange {
  int64_t first = 0;
  int64_t count = 0;
};

// [num_rows, ...] floats whose rows are row_stride floats apart.
struct MatrixView {
  float* data = nullptr;
  int64_t num_rows = 0;
  int64_t row_stride = 0;
};

class Communicator {
 public:
  static constexpr int kEverybody = -1;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // values: those of all ranks added up, on every rank. As many on each.
  virtual void all_reduce(std::span<float> values) = 0;
  // sum: part rank() of size() equal parts of what all_reduce(values) would give. REQUIRES: values.size() == size() *
  // sum.size().
  virtual void reduce_scatter(std::span<const float> values, std::span<float> sum) = 0;
  // all: own of each rank, in their order. As many bytes on each. REQUIRES: all.size() == size() * own.size().
  virtual void all_gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  // Each rank has written its own columns of the matrix, columns[rank()]; `root`, or everybody, is given the others'.
  // Ranges may overlap where ranks have computed the same. REQUIRES: columns.size() == size().
  virtual void gather_columns(const MatrixView& matrix, std::span<const ColumnRange> columns, int root) = 0;
  // Those of root, on every rank.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // To another rank, which receives as many: messages between two ranks arrive in the order in which they were sent.
  virtual void send(std::span<const std::byte> bytes, int to) = 0;
  virtual void receive(std::span<std::byte> bytes, int from) = 0;
  // Returns when all ranks have called it.
  virtual void barrier() = 0;

  // The first failure: unavailable, saying which rank and why.
  virtual Status status() const = 0;
};

// A group of one.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace quire::comm
