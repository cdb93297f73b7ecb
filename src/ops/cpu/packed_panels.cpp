#include "ops/cpu/packed_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/cpu/kernels.h"

namespace quire::ops::cpu {
namespace {

// Where the 16 columns of a tile lie in the checkpoint; nullptr: padding.
using TileRows = std::array<const uint8_t*, kTileColumns>;

template <typename T>
void pack_values(const TileRows& rows, int64_t k, uint8_t* out) {
  constexpr int64_t kStep = kPanelColumns * sizeof(T);
  for (size_t column = 0; column < kTileColumns; ++column) {
    uint8_t* to = out + column * sizeof(T);
    if (rows[column] == nullptr) {
      for (int64_t i = 0; i < k; ++i) std::memset(to + i * kStep, 0, sizeof(T));
      continue;
    }
    for (int64_t i = 0; i < k; ++i) {
      std::memcpy(to + i * kStep, rows[column] + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    }
  }
}

// `scales` f16 values (d, or d and m) before the q of each block.
void pack_scales(const TileRows& rows, int64_t offset, int scales, uint8_t* out) {
  for (int scale = 0; scale < scales; ++scale) {
    for (const uint8_t* row : rows) {
      if (row == nullptr) {
        std::memset(out, 0, 2);
      } else {
        std::memcpy(out, row + offset + scale * 2, 2);
      }
      out += 2;
    }
  }
}

void pack_nibbles(const TileRows& rows, int64_t k, int scales, uint8_t* out) {
  static constexpr uint8_t kNothing[16] = {};
  const int64_t block_bytes = scales * 2 + 16;
  for (int64_t block = 0; block < k / 32; ++block) {
    const int64_t offset = block * block_bytes;
    pack_scales(rows, offset, scales, out);
    uint8_t* steps = out + scales * 2 * kTileColumns;
    for (size_t j = 0; j < kTileColumns / 2; ++j) {
      const auto quants = [&](const uint8_t* row) { return row == nullptr ? kNothing : row + offset + scales * 2; };
      const uint8_t* left = quants(rows[j]);
      const uint8_t* right = quants(rows[j + kTileColumns / 2]);
      for (size_t i = 0; i < 16; ++i) {
        steps[i * 8 + j] = static_cast<uint8_t>((left[i] & 0x0f) | (right[i] << 4));
        steps[(i + 16) * 8 + j] = static_cast<uint8_t>((left[i] >> 4) | (right[i] & 0xf0));
      }
    }
    out += kPanelColumns * block_bytes;
  }
}

void pack_bytes(const TileRows& rows, int64_t k, uint8_t* out) {
  for (int64_t block = 0; block < k / 32; ++block) {
    const int64_t offset = block * 34;
    pack_scales(rows, offset, 1, out);
    uint8_t* steps = out + 2 * kTileColumns;
    for (size_t column = 0; column < kTileColumns; ++column) {
      const uint8_t* row = rows[column];
      for (size_t i = 0; i < 32; ++i) {
        steps[i * kTileColumns + column] = row == nullptr ? uint8_t{0} : row[offset + 2 + static_cast<int64_t>(i)];
      }
    }
    out += kPanelColumns * 34;
  }
}

void pack_tile(DType dtype, const TileRows& rows, int64_t k, uint8_t* out) {
  switch (dtype) {
    case DType::kF32:
      return pack_values<uint32_t>(rows, k, out);
    case DType::kF16:
    case DType::kBF16:
      return pack_values<uint16_t>(rows, k, out);
    case DType::kQ4_0:
      return pack_nibbles(rows, k, 1, out);
    case DType::kQ4_1:
      return pack_nibbles(rows, k, 2, out);
    case DType::kQ8_0:
      return pack_bytes(rows, k, out);
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  check_failed("a weight format", __FILE__, __LINE__, name(dtype));
}

bool has_panels(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
      return true;
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return false;
  }
  return false;
}

int64_t panels_for(int64_t rows) {
  return (rows + kPanelColumns - 1) / kPanelColumns;
}

}  // namespace

int64_t PackedPanels::bytes_for(DType dtype, int64_t rows, int64_t columns) {
  if (!has_panels(dtype)) return 0;
  return panels_for(rows) * kPanelColumns * row_bytes(dtype, columns);
}

int64_t PackedPanels::num_panels() const {
  return panels_for(rows_);
}

int64_t PackedPanels::panel_bytes() const {
  return kPanelColumns * row_bytes(dtype_, columns_);
}

Result<std::unique_ptr<PackedPanels>> PackedPanels::pack(std::span<const TensorView> parts, Allocator& allocator,
                                                         ThreadPool& pool) {
  QUIRE_CHECK(!parts.empty());
  const DType dtype = parts[0].dtype;
  if (!has_panels(dtype)) {
    return unimplemented("a weight of {} has no kernel: expected F32, F16, BF16, Q4_0, Q4_1 or Q8_0", name(dtype));
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
  const int64_t panel_bytes = kPanelColumns * row_bytes(dtype, columns);
  auto* out = data.as<uint8_t>();
  pool.parallel_for(panels_for(rows), [&](int64_t panel, int) {
    uint8_t* tile_out = out + panel * panel_bytes;
    for (int64_t first = panel * kPanelColumns; first < (panel + 1) * kPanelColumns; first += kTileColumns) {
      TileRows tile_rows{};
      for (int64_t column = 0; column < std::min<int64_t>(kTileColumns, rows - first); ++column)
        tile_rows[static_cast<size_t>(column)] = sources[static_cast<size_t>(first + column)];
      pack_tile(dtype, tile_rows, columns, tile_out);
      tile_out += kTileColumns * info(dtype).block_bytes;
    }
  });
  return std::unique_ptr<PackedPanels>(new PackedPanels(dtype, rows, columns, std::move(data)));
}

}  // namespace quire::ops::cpu
