#include "ops/cpu/packed_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/cpu/kernels.h"

namespace quire::ops::cpu {
namespace {

// Where the 16 columns of a panel lie in the checkpoint; nullptr: padding.
using PanelRows = std::array<const uint8_t*, kPanelColumns>;

template <typename T>
void pack_values(const PanelRows& rows, int64_t k, uint8_t* out) {
  for (size_t column = 0; column < kPanelColumns; ++column) {
    uint8_t* to = out + column * sizeof(T);
    if (rows[column] == nullptr) {
      for (int64_t i = 0; i < k; ++i) std::memset(to + i * kPanelColumns * sizeof(T), 0, sizeof(T));
      continue;
    }
    for (int64_t i = 0; i < k; ++i)
      std::memcpy(to + i * kPanelColumns * sizeof(T), rows[column] + i * sizeof(T), sizeof(T));
  }
}

// `scales` f16 values (d, or d and m) before the q of each block.
void pack_scales(const PanelRows& rows, int64_t offset, int scales, uint8_t* out) {
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

void pack_nibbles(const PanelRows& rows, int64_t k, int scales, uint8_t* out) {
  static constexpr uint8_t kNothing[16] = {};
  const int64_t block_bytes = scales * 2 + 16;
  for (int64_t block = 0; block < k / 32; ++block) {
    const int64_t offset = block * block_bytes;
    pack_scales(rows, offset, scales, out);
    out += scales * 2 * kPanelColumns;
    for (size_t j = 0; j < kPanelColumns / 2; ++j) {
      const auto quants = [&](const uint8_t* row) { return row == nullptr ? kNothing : row + offset + scales * 2; };
      const uint8_t* left = quants(rows[j]);
      const uint8_t* right = quants(rows[j + kPanelColumns / 2]);
      for (size_t i = 0; i < 16; ++i) {
        out[i * 8 + j] = static_cast<uint8_t>((left[i] & 0x0f) | (right[i] << 4));
        out[(i + 16) * 8 + j] = static_cast<uint8_t>((left[i] >> 4) | (right[i] & 0xf0));
      }
    }
    out += 32 * 8;
  }
}

void pack_bytes(const PanelRows& rows, int64_t k, uint8_t* out) {
  for (int64_t block = 0; block < k / 32; ++block) {
    const int64_t offset = block * 34;
    pack_scales(rows, offset, 1, out);
    out += 2 * kPanelColumns;
    for (size_t column = 0; column < kPanelColumns; ++column) {
      for (size_t i = 0; i < 32; ++i) {
        out[i * kPanelColumns + column] =
            rows[column] == nullptr ? uint8_t{0} : rows[column][offset + 2 + static_cast<int64_t>(i)];
      }
    }
    out += 32 * kPanelColumns;
  }
}

void pack_panel(DType dtype, const PanelRows& rows, int64_t k, uint8_t* out) {
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
      break;
  }
  check_failed("a weight format", __FILE__, __LINE__, name(dtype));
}

bool has_panels(DType dtype) {
  return dtype != DType::kI32 && dtype != DType::kI64;
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
    PanelRows panel_rows{};
    const int64_t first = panel * kPanelColumns;
    for (int64_t column = 0; column < std::min<int64_t>(kPanelColumns, rows - first); ++column) {
      panel_rows[static_cast<size_t>(column)] = sources[static_cast<size_t>(first + column)];
    }
    pack_panel(dtype, panel_rows, columns, out + panel * panel_bytes);
  });
  return std::unique_ptr<PackedPanels>(new PackedPanels(dtype, rows, columns, std::move(data)));
}

}  // namespace quire::ops::cpu
