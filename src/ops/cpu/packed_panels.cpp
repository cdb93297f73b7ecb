#include "ops/cpu/packed_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/panel_layout.h"
#include "ops/cpu/stored_blocks.h"
#include "ops/quantise.h"

namespace quire::ops::cpu {
namespace {

// Where the 16 columns of a tile lie in the checkpoint; nullptr: padding.
using TileRows = std::array<const uint8_t*, kTileColumns>;

// Blocks of kBlockBytes a column, of one or two values.
template <size_t kBlockBytes>
void pack_values(const TileRows& rows, int64_t row_bytes, uint8_t* out) {
  constexpr auto kStep = static_cast<int64_t>(kPanelColumns * kBlockBytes);
  constexpr auto kBytes = static_cast<int64_t>(kBlockBytes);
  const int64_t whole = row_bytes / kBytes;
  for (size_t column = 0; column < kTileColumns; ++column) {
    uint8_t* to = out + column * kBlockBytes;
    if (rows[column] == nullptr) {
      for (int64_t i = 0; i * kBytes < row_bytes; ++i) std::memset(to + i * kStep, 0, kBlockBytes);
      continue;
    }
    for (int64_t i = 0; i < whole; ++i) std::memcpy(to + i * kStep, rows[column] + i * kBytes, kBlockBytes);
    if (whole * kBytes == row_bytes) continue;
    std::memset(to + whole * kStep, 0, kBlockBytes);
    std::memcpy(to + whole * kStep, rows[column] + whole * kBytes, static_cast<size_t>(row_bytes - whole * kBytes));
  }
}

// The codes of a group of one column into the planes of its tile, 64 bytes a plane: see packed_panels.h.
void pack_codes(const PanelLayout& layout, const StoredGroup& group, size_t column, uint8_t* planes) {
  constexpr size_t kPlaneBytes = 4 * kTileColumns;
  const auto put = [&](size_t plane, uint32_t word) {
    std::memcpy(planes + plane * kPlaneBytes + column * 4, &word, sizeof(word));
  };
  const auto& quads = group.quads;
  if (layout.low_bits == 8) {
    for (size_t j = 0; j < 8; ++j) put(j, quads[j]);
    return;
  }
  const auto put_pairs = [&](size_t plane, int shift) {
    for (size_t p = 0; p < 2; ++p) {
      uint32_t word = 0;
      for (size_t j = 0; j < 4; ++j) word |= ((quads[4 * p + j] >> shift) & 0x03030303u) << (2 * j);
      put(plane + p, word);
    }
  };
  if (layout.low_bits == 4) {
    for (size_t j = 0; j < 4; ++j) put(j, (quads[j] & 0x0f0f0f0fu) | (quads[j + 4] & 0x0f0f0f0fu) << 4);
  } else {
    put_pairs(0, 0);
  }
  const auto high_plane = static_cast<size_t>(layout.low_bits);  // as many planes as bits
  if (layout.high_bits == 2) put_pairs(high_plane, layout.low_bits);
  if (layout.high_bits == 1) {
    uint32_t word = 0;
    for (size_t j = 0; j < 8; ++j) word |= ((quads[j] >> layout.low_bits) & 0x01010101u) << j;
    put(high_plane, word);
  }
}

// One block of a tile. `offset`: of the block in the checkpoint's rows.
void pack_block(DType dtype, const PanelLayout& layout, const TileRows& rows, int64_t offset, uint8_t* out) {
  const int head_bytes = layout.heads * layout.head_bytes + layout.zero_bytes;
  const int group_bytes = kTileColumns * (layout.column_bytes() - head_bytes) / layout.groups();
  for (size_t column = 0; column < kTileColumns; ++column) {
    if (rows[column] == nullptr) continue;  // `out` is zeros
    const uint8_t* block = rows[column] + offset;
    for (int head = 0; head < layout.heads; ++head) {
      const uint32_t bits = stored_head(dtype, block, head);
      const size_t at = static_cast<size_t>(head) * kTileColumns + column;
      std::memcpy(out + at * static_cast<size_t>(layout.head_bytes), &bits, static_cast<size_t>(layout.head_bytes));
    }
    if (layout.zero_bytes > 0) {
      uint8_t* zeros = out + layout.heads * layout.head_bytes * kTileColumns;
      std::memcpy(zeros + column * static_cast<size_t>(layout.zero_bytes), coded_zero(dtype, block),
                  static_cast<size_t>(layout.zero_bytes));
    }
    uint8_t* group_out = out + head_bytes * kTileColumns;
    for (int group = 0; group < layout.groups(); ++group) {
      const StoredGroup codes = stored_group(dtype, block, group);
      for (int i = 0; i < layout.small_scales; ++i)
        group_out[static_cast<size_t>(i) * kTileColumns + column] = codes.small_scales[static_cast<size_t>(i)];
      pack_codes(layout, codes, column, group_out + layout.small_scales * kTileColumns);
      group_out += group_bytes;
    }
  }
}

// The columns of `rows`, in every second block from `out` on.
void pack_tile(DType dtype, const TileRows& rows, int64_t k, uint8_t* out) {
  const PanelLayout layout = *panel_layout(dtype);
  if (layout.value_bytes > 0) {
    const int64_t row_bytes = k * layout.value_bytes;
    if (layout.column_bytes() == 4) return pack_values<4>(rows, row_bytes, out);
    return layout.column_bytes() == 2 ? pack_values<2>(rows, row_bytes, out) : pack_values<1>(rows, row_bytes, out);
  }
  const int64_t block_bytes = int64_t{kTileColumns} * layout.column_bytes();
  for (int64_t block = 0; block < k / layout.block_steps; ++block) {
    uint8_t* block_out = out + 2 * block * block_bytes;
    if (rows[kTileColumns - 1] == nullptr) std::memset(block_out, 0, static_cast<size_t>(block_bytes));
    pack_block(dtype, layout, rows, block * info(dtype).block_bytes, block_out);
  }
}

int64_t panel_bytes_for(DType dtype, int64_t columns) {
  const PanelLayout layout = *panel_layout(dtype);
  const int64_t blocks = (columns + layout.block_steps - 1) / layout.block_steps;
  return kPanelColumns * (layout.column_bytes() * blocks + layout.panel_scales * row_scales(dtype, columns));
}

// The scales of a tile's columns, which lie behind their rows' values: `count` a row, out of each a panel's columns
// apart.
void pack_scales(const TileRows& rows, int64_t k, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    for (size_t column = 0; column < kTileColumns; ++column) {
      float scale = 0;
      if (rows[column] != nullptr)
        std::memcpy(&scale, rows[column] + k + i * static_cast<int64_t>(sizeof(scale)), sizeof(scale));
      scale *= kF8E4M3PanelFactor;
      std::memcpy(out + column * sizeof(scale), &scale, sizeof(scale));
    }
    out += kPanelColumns * sizeof(float);
  }
}

int64_t panels_for(int64_t rows) {
  return (rows + kPanelColumns - 1) / kPanelColumns;
}

}  // namespace

int64_t PackedPanels::bytes_for(DType dtype, int64_t rows, int64_t columns) {
  if (!panel_layout(dtype)) return 0;
  return panels_for(rows) * panel_bytes_for(dtype, columns);
}

int64_t PackedPanels::num_panels() const {
  return panels_for(rows_);
}

int64_t PackedPanels::panel_bytes() const {
  return panel_bytes_for(dtype_, columns_);
}

namespace {

// The rows of all parts as they lie in the checkpoint.
class StoredRows {
 public:
  explicit StoredRows(std::span<const TensorView> parts) {
    for (const TensorView& part : parts) {
      for (int64_t row = 0; row < part.shape[0]; ++row) {
        rows_.push_back({static_cast<const uint8_t*>(part.data) + row * quantised_row_bytes(part.dtype, part.shape[1]),
                         part.dtype});
      }
    }
  }
  struct Row {
    const uint8_t* data;
    DType dtype;
  };
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  const Row& operator[](int64_t row) const { return rows_[static_cast<size_t>(row)]; }

  TileRows tile(int64_t first) const {
    TileRows tile{};
    for (int64_t column = 0; column < std::min<int64_t>(kTileColumns, size() - first); ++column)
      tile[static_cast<size_t>(column)] = (*this)[first + column].data;
    return tile;
  }

 private:
  std::vector<Row> rows_;
};

// The same rounded to another format, a tile at a time: memory for 16 rows of it and one of floats.
class RoundedRows {
 public:
  RoundedRows(const StoredRows& rows, DType dtype, int64_t columns, const Kernels& kernels)
      : rows_(rows),
        dtype_(dtype),
        columns_(columns),
        row_bytes_(quantised_row_bytes(dtype, columns)),
        kernels_(kernels),
        floats_(static_cast<size_t>(columns)),
        rounded_(static_cast<size_t>(kTileColumns * row_bytes_)) {}

  TileRows tile(int64_t first) {
    TileRows tile{};
    for (int64_t column = 0; column < std::min<int64_t>(kTileColumns, rows_.size() - first); ++column) {
      const StoredRows::Row& row = rows_[first + column];
      uint8_t* out = rounded_.data() + column * row_bytes_;
      kernels_.dequantise[static_cast<size_t>(row.dtype)](row.data, columns_, floats_.data());
      kernels_.quantise(dtype_, floats_.data(), columns_, out);
      tile[static_cast<size_t>(column)] = out;
    }
    return tile;
  }

 private:
  const StoredRows& rows_;
  DType dtype_;
  int64_t columns_;
  int64_t row_bytes_;
  const Kernels& kernels_;
  std::vector<float> floats_;
  std::vector<uint8_t> rounded_;
};

// The shape [rows, columns] of all parts above each other.
std::pair<int64_t, int64_t> stacked_shape(std::span<const TensorView> parts) {
  QUIRE_CHECK(!parts.empty());
  int64_t rows = 0;
  const int64_t columns = parts[0].shape.rank() == 2 ? parts[0].shape[1] : 0;
  for (const TensorView& part : parts) {
    QUIRE_CHECK(part.shape.rank() == 2 && part.shape[1] == columns && columns % info(part.dtype).block_values == 0);
    rows += part.shape[0];
  }
  QUIRE_CHECK(rows > 0 && columns > 0);
  return {rows, columns};
}

}  // namespace

// make_rows(): what gives a thread the rows of tiles, by tile(first row).
template <typename MakeRows>
Result<std::unique_ptr<PackedPanels>> PackedPanels::make(DType dtype, int64_t rows, int64_t columns,
                                                         const MakeRows& make_rows, Allocator& allocator,
                                                         ThreadPool& pool) {
  const int64_t bytes = bytes_for(dtype, rows, columns);
  Buffer data(allocator, static_cast<size_t>(bytes));
  if (data.data() == nullptr) {
    return resource_exhausted("no memory for a packed weight [{}, {}] of {}: {} bytes", rows, columns, name(dtype),
                              bytes);
  }
  const PanelLayout layout = *panel_layout(dtype);
  const int64_t panel_bytes = panel_bytes_for(dtype, columns);
  auto* out = data.as<uint8_t>();
  // As products cut them: on a machine of several nodes a panel's pages then lie where they are read.
  pool.parallel_ranges(panels_for(rows), [&](int64_t begin, int64_t end, int) {
    auto&& from = make_rows();
    for (int64_t first = begin * kPanelColumns; first < end * kPanelColumns; first += kTileColumns) {
      // The blocks of a panel's second tile lie between those of its first.
      uint8_t* tile_out = out + first / kPanelColumns * panel_bytes + first % kPanelColumns * layout.column_bytes();
      const TileRows tile = from.tile(first);
      pack_tile(dtype, tile, columns, tile_out);
      if (layout.panel_scales == 0) continue;
      const int64_t scales = row_scales(dtype, columns);
      pack_scales(tile, columns, scales,
                  out + (first / kPanelColumns + 1) * panel_bytes -
                      (scales * kPanelColumns - first % kPanelColumns) * layout.panel_scales);
    }
  });
  return std::unique_ptr<PackedPanels>(new PackedPanels(dtype, rows, columns, std::move(data)));
}

Result<std::unique_ptr<PackedPanels>> PackedPanels::pack(std::span<const TensorView> parts, Allocator& allocator,
                                                         ThreadPool& pool) {
  QUIRE_CHECK(!parts.empty());
  const DType dtype = parts[0].dtype;
  if (!panel_layout(dtype)) {
    return unimplemented("a weight of {} has no kernel: expected F32, F16, BF16 or one of GGUF's blocks", name(dtype));
  }
  const auto [rows, columns] = stacked_shape(parts);
  for (const TensorView& part : parts) QUIRE_CHECK(part.dtype == dtype);
  const StoredRows stored(parts);
  return make(
      dtype, rows, columns, [&]() -> const StoredRows& { return stored; }, allocator, pool);
}

Result<std::unique_ptr<PackedPanels>> PackedPanels::quantise(std::span<const TensorView> parts, DType dtype,
                                                             const Kernels& kernels, Allocator& allocator,
                                                             ThreadPool& pool) {
  const auto [rows, columns] = stacked_shape(parts);
  const StoredRows stored(parts);
  return make(
      dtype, rows, columns, [&, columns = columns] { return RoundedRows(stored, dtype, columns, kernels); }, allocator,
      pool);
}

}  // namespace quire::ops::cpu
