#include "ops/cpu/packed_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/panel_layout.h"
#include "ops/cpu/stored_blocks.h"

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
  const int head_bytes = layout.heads * layout.head_bytes;
  const int group_bytes = kTileColumns * (layout.column_bytes() - head_bytes) / layout.groups();
  for (size_t column = 0; column < kTileColumns; ++column) {
    if (rows[column] == nullptr) continue;  // `out` is zeros
    const uint8_t* block = rows[column] + offset;
    for (int head = 0; head < layout.heads; ++head) {
      const uint32_t bits = stored_head(dtype, block, head);
      const size_t at = static_cast<size_t>(head) * kTileColumns + column;
      std::memcpy(out + at * static_cast<size_t>(layout.head_bytes), &bits, static_cast<size_t>(layout.head_bytes));
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
    return layout.column_bytes() == 4 ? pack_values<4>(rows, row_bytes, out) : pack_values<2>(rows, row_bytes, out);
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
  return kPanelColumns * layout.column_bytes() * ((columns + layout.block_steps - 1) / layout.block_steps);
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

Result<std::unique_ptr<PackedPanels>> PackedPanels::pack(std::span<const TensorView> parts, Allocator& allocator,
                                                         ThreadPool& pool) {
  QUIRE_CHECK(!parts.empty());
  const DType dtype = parts[0].dtype;
  if (!panel_layout(dtype)) {
    return unimplemented("a weight of {} has no kernel: expected F32, F16, BF16 or one of GGUF's blocks", name(dtype));
  }
  int64_t rows = 0;
  const int64_t columns = parts[0].shape.rank() == 2 ? parts[0].shape[1] : 0;
  QUIRE_CHECK(columns > 0 && columns % info(dtype).block_values == 0);
  for (const TensorView& part : parts) {
    QUIRE_CHECK(part.dtype == dtype && part.shape.rank() == 2 && part.shape[1] == columns);
    rows += part.shape[0];
  }
  QUIRE_CHECK(rows > 0);

  const int64_t bytes = bytes_for(dtype, rows, columns);
  Buffer data(allocator, static_cast<size_t>(bytes));
  if (data.data() == nullptr) {
    return resource_exhausted("no memory for a packed weight [{}, {}] of {}: {} bytes", rows, columns, name(dtype),
                              bytes);
  }
  std::vector<const uint8_t*> sources;
  sources.reserve(static_cast<size_t>(rows));
  for (const TensorView& part : parts) {
    for (int64_t row = 0; row < part.shape[0]; ++row) {
      sources.push_back(static_cast<const uint8_t*>(part.data) + row * row_bytes(dtype, columns));
    }
  }
  const int64_t panel_bytes = panel_bytes_for(dtype, columns);
  auto* out = data.as<uint8_t>();
  // As products cut them: on a machine of several nodes a panel's pages then lie where they are read.
  pool.parallel_ranges(panels_for(rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin * kPanelColumns; first < end * kPanelColumns; first += kTileColumns) {
      TileRows tile_rows{};
      for (int64_t column = 0; column < std::min<int64_t>(kTileColumns, rows - first); ++column)
        tile_rows[static_cast<size_t>(column)] = sources[static_cast<size_t>(first + column)];
      // The blocks of a panel's second tile lie between those of its first.
      uint8_t* tile_out =
          out + first / kPanelColumns * panel_bytes + first % kPanelColumns * panel_layout(dtype)->column_bytes();
      pack_tile(dtype, tile_rows, columns, tile_out);
    }
  });
  return std::unique_ptr<PackedPanels>(new PackedPanels(dtype, rows, columns, std::move(data)));
}

}  // namespace quire::ops::cpu
