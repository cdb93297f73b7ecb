// Numbers of an adapter's factors on their way from a file to the form in which products read them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/low_rank.h"
#include "tensor/stored_values.h"
#include "tensor/tensor.h"

namespace quire::runner {

// Whether no number has all bits of its exponent set, a word of 64 bits at a time: adding its lowest bit to an exponent
// carries into the sign's place, from which the sign was taken, where all are set, and nowhere else.
inline bool all_finite(DType dtype, const void* data, int64_t count) {
  constexpr uint64_t kTwo = 0x0000'0001'0000'0001;
  constexpr uint64_t kFour = 0x0001'0001'0001'0001;
  const bool wide = dtype == DType::kF32;
  const uint64_t exponent = wide ? 0x7f80'0000 * kTwo : (dtype == DType::kF16 ? 0x7c00 : 0x7f80) * kFour;
  const uint64_t lowest = wide ? 0x0080'0000 * kTwo : (dtype == DType::kF16 ? 0x0400 : 0x0080) * kFour;
  const uint64_t signs = wide ? 0x8000'0000 * kTwo : 0x8000 * kFour;
  const auto* at = static_cast<const uint8_t*>(data);
  const int64_t bytes = row_bytes(dtype, count);
  uint64_t carried = 0;
  const auto look = [&](const uint8_t* from, size_t size) {
    uint64_t word = 0;
    std::memcpy(&word, from, size);
    carried |= (word & exponent) + lowest;
  };
  const int64_t whole = bytes / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) look(at + i, 8);
  if (whole < bytes) look(at + whole, static_cast<size_t>(bytes - whole));
  return (carried & signs) == 0;
}

// Numbers of a tensor as `dtype`: the tensor's own where it has it.
class Numbers {
 public:
  Numbers(const TensorView& view, DType dtype) : data_(view.data) {
    if (view.dtype == dtype) return;
    const int64_t count = view.shape.num_elements();
    memory_.resize(static_cast<size_t>(row_bytes(dtype, count)));
    std::vector<float> floats(static_cast<size_t>(count));
    read_stored_row(view.dtype, view.data, count, floats.data());
    for (size_t i = 0; i < floats.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(memory_.data() + i * 4, &floats[i], 4);
      } else {
        const uint16_t code = dtype == DType::kF16 ? float_to_half(floats[i]) : float_to_bfloat16(floats[i]);
        std::memcpy(memory_.data() + i * 2, &code, 2);
      }
    }
    data_ = memory_.data();
  }
  const void* data() const { return data_; }

 private:
  std::vector<uint8_t> memory_;
  const void* data_;
};

// Where row n of the model's q or k stands in an adapter of the other order.
struct HeadOrder {
  enum class Turn { kNone, kToNeighbours, kToHalves };
  Turn turn = Turn::kNone;
  int64_t head_dim = 1;

  int64_t source_of(int64_t n) const {
    if (turn == Turn::kNone) return n;
    const int64_t head = n / head_dim * head_dim;
    const int64_t i = n % head_dim;
    if (turn == Turn::kToNeighbours) return head + i % 2 * (head_dim / 2) + i / 2;
    return head + i % (head_dim / 2) * 2 + i / (head_dim / 2);
  }
};

// [size, rank] to tiles of 16 columns, as ops::LowRankPart has them. Whole tiles are read a row at a time.
template <typename Code>
void pack_up(const Code* from, int64_t size, int64_t rank, const HeadOrder& order, bool paired, Code* to) {
  constexpr int64_t kColumns = ops::kLowRankColumns;
  for (int64_t n = 0; n < size; ++n) {
    const Code* row = from + order.source_of(n) * rank;
    Code* column = to + ops::low_rank_up_place(n, 0, rank, paired);
    if (!paired) {
      for (int64_t r = 0; r < rank; ++r) column[r * kColumns] = row[r];
      continue;
    }
    int64_t r = 0;
    for (; r + 2 <= rank; r += 2) std::memcpy(column + r * kColumns, row + r, 2 * sizeof(Code));
    if (r < rank) column[r * kColumns] = row[r];
  }
}

template <typename Code>
void transpose(const Code* from, int64_t rows, int64_t columns, Code* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) to[column * rows + row] = from[row * columns + column];
  }
}

}  // namespace quire::runner
