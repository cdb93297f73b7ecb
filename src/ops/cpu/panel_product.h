// What products of one weight and of several share: how their rows are grouped, which panels a kernel is given, when
// other threads are worth waking.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_panels.h"

namespace quire::ops::cpu {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Groups of rows are multiples of it: of every kernel's tile of rows.
inline constexpr int64_t kGroupUnit = 12;

// Rows that go through a weight's panels together, at most: their inputs stay in the second cache meanwhile.
constexpr int64_t most_rows_together(int64_t row_bytes) {
  constexpr int64_t kMostBytes = 256 << 10;
  constexpr int64_t kMostRows = 96;
  return std::clamp(kMostBytes / row_bytes, 2 * kGroupUnit, kMostRows) / kGroupUnit * kGroupUnit;
}

// The distance between rows that are kept together. Rows a multiple of 1 KiB apart would meet in a few sets of the
// first cache, and a tile's rows drive each other out (a width of 4096 floats: every row in the same one; bfloat16
// products had half their speed).
constexpr int64_t spread_row_bytes(int64_t bytes) {
  const int64_t lines = (bytes + 63) / 64;
  return (lines % 16 == 0 ? lines + 1 : lines) * 64;
}

// Whether rows of floats so far apart are better copied to where they do not collide.
constexpr bool rows_collide(int64_t row_bytes, int64_t num_rows) {
  constexpr int64_t kLeastRows = 4;
  return row_bytes % 1024 == 0 && num_rows > kLeastRows;
}

inline void copy_row(const float* x, int64_t k, uint8_t* row) {
  std::memcpy(row, x, static_cast<size_t>(k) * sizeof(float));
}

// Whether a row becomes whole numbers of 8 bits by scales of the checkpoint's own, which kernels take as they are.
inline bool has_own_rounding(const InputForm& form) {
  return form.rounding == RowRounding::kInt8 && form.zero == 0 && form.factor == 1 && form.order == nullptr &&
         form.group % 32 == 0;
}

// What rows are made into for a weight's kernel.
struct RowCoder {
  Activations activations = kFloatRows;
  CodeRowKernel code_row = copy_row;
  CodeOwnRowKernel code_own_row = nullptr;  // where has_own_rounding() of all that they meet

  // A row as a weight takes it, rounded for its kernel.
  void code(const InputForm& form, const float* x, int64_t k, uint8_t* row) const {
    if (code_own_row != nullptr) return code_own_row({.scale = form.scale, .group = form.group}, x, k, row);
    if (form.is_plain()) return code_row(x, k, row);
    std::vector<float> formed(static_cast<size_t>(k));
    form_input(form, x, k, formed.data());
    code_row(formed.data(), k, row);
  }
};

// A kernel's work on panels [panel, panel + num_panels) of a weight; the rows, bias, out and scratch are left to fill.
inline LinearTile tile_of(const PackedPanels& weight, int64_t panel, int64_t num_panels) {
  LinearTile tile{};
  tile.panels = weight.panel(panel);
  tile.panel_bytes = weight.panel_bytes();
  tile.num_panels = num_panels;
  tile.k = weight.columns();
  tile.columns = std::min(num_panels * kPanelColumns, weight.rows() - panel * kPanelColumns);
  return tile;
}

// Works through all pieces, which take so many multiply-adds together.
inline void for_pieces(ThreadPool& pool, int64_t pieces, int64_t products,
                       FunctionRef<void(int64_t begin, int64_t end, int thread)> body) {
  // Less than this is done sooner than another thread has begun.
  constexpr int64_t kLeastProducts = 65536;
  if (pool.num_threads() == 1 || products < kLeastProducts) {
    body(0, pieces, 0);
  } else {
    pool.parallel_ranges(pieces, body);
  }
}

}  // namespace quire::ops::cpu
