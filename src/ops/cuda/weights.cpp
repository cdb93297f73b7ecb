#include "ops/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::ops::cuda {

DType held_dtype(DType dtype) {
  return has_decoder(dtype) ? dtype : DType::kF32;
}

int64_t held_row_bytes(DType dtype, int64_t columns) {
  constexpr int64_t kAlign = 16;
  const int64_t row = quantised_row_bytes(held_dtype(dtype), columns);
  return (row + kAlign - 1) / kAlign * kAlign;
}

namespace {

// F8_E4M3_128 for the library: rows that share a scale, and how far apart the scales of two such squares are.
constexpr int64_t kScaleRows = 128;
int64_t square_stride(int64_t columns) {
  return (row_scales(DType::kF8E4M3_128, columns) + 3) / 4 * 4;
}
int64_t library_scale_bytes(DType dtype, int64_t rows, int64_t columns) {
  int64_t count = 0;
  if (dtype == DType::kF8E4M3) count = rows;
  if (dtype == DType::kF8E4M3_128) count = (rows + kScaleRows - 1) / kScaleRows * square_stride(columns);
  return count * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t held_bytes(DType dtype, int64_t rows, int64_t columns) {
  return rows * held_row_bytes(dtype, columns) + library_scale_bytes(dtype, rows, columns);
}

Result<std::unique_ptr<CudaMatrix>> CudaMatrix::make(std::span<const TensorView> parts, DType dtype, DType held,
                                                     Allocator& allocator) {
  auto matrix = std::unique_ptr<CudaMatrix>(new CudaMatrix());
  StoredMatrix& stored = matrix->stored_;
  matrix->dtype_ = dtype;
  stored.dtype = held;
  stored.columns = parts[0].shape[1];
  stored.row_bytes = held_row_bytes(held, stored.columns);
  for (const TensorView& part : parts) {
    QUIRE_CHECK(part.shape.rank() == 2 && part.shape[1] == stored.columns);
    stored.rows += part.shape[0];
  }
  if (stored.columns % info(dtype).block_values != 0) {
    return unimplemented("rows of {} values of {}: expected a multiple of {}", stored.columns, name(dtype),
                         info(dtype).block_values);
  }
  matrix->memory_ = std::make_shared<Buffer>(allocator, static_cast<size_t>(stored.rows * stored.row_bytes));
  const int64_t scale_bytes = library_scale_bytes(held, stored.rows, stored.columns);
  if (scale_bytes > 0) matrix->scales_ = Buffer(allocator, static_cast<size_t>(scale_bytes));
  if (matrix->memory_->data() == nullptr || (scale_bytes > 0 && matrix->scales_.data() == nullptr)) {
    return resource_exhausted("no memory on the card for a weight [{}, {}] of {} ({} bytes)", stored.rows,
                              stored.columns, name(dtype), stored.rows * stored.row_bytes);
  }
  stored.data = matrix->memory_->as<uint8_t>();
  return matrix;
}

Result<std::unique_ptr<CudaMatrix>> CudaMatrix::upload(std::span<const TensorView> parts, Allocator& allocator,
                                                       Uploader& uploader, cudaStream_t stream) {
  QUIRE_CHECK(!parts.empty());
  const DType dtype = parts[0].dtype;
  if (!is_weight_format(dtype) && !has_row_scales(dtype)) {
    return unimplemented("a weight of {} has no kernel: expected F32, F16, BF16 or one of GGUF's blocks", name(dtype));
  }
  QUIRE_ASSIGN_OR_RETURN(auto matrix, make(parts, dtype, held_dtype(dtype), allocator));
  const StoredMatrix& stored = matrix->stored_;
  auto* to = matrix->memory_->as<uint8_t>();
  const auto from_stride = static_cast<size_t>(quantised_row_bytes(dtype, stored.columns));
  const auto to_stride = static_cast<size_t>(stored.row_bytes);
  for (const TensorView& part : parts) {
    QUIRE_CHECK(part.dtype == dtype);
    const auto* from = static_cast<const uint8_t*>(part.data);
    const int64_t rows = part.shape[0];
    if (stored.dtype == dtype) {
      uploader.upload_rows(to, to_stride, from, from_stride, from_stride, rows);
    } else {
      uploader.upload_made(to, to_stride * static_cast<size_t>(rows), to_stride,
                           [&](size_t offset, size_t /*count*/, uint8_t* out) {
                             read_stored_row(dtype, from + offset / to_stride * from_stride, stored.columns,
                                             reinterpret_cast<float*>(out));
                           });
    }
    to += static_cast<size_t>(rows) * to_stride;
  }
  matrix->gather_scales(parts, uploader, stream);
  return matrix;
}

std::unique_ptr<CudaMatrix> CudaMatrix::of_table(const ResidentTable& table, DType dtype) {
  auto matrix = std::unique_ptr<CudaMatrix>(new CudaMatrix());
  const TensorView& rows = table.view;
  matrix->dtype_ = dtype;
  matrix->stored_ = {static_cast<const uint8_t*>(rows.data), rows.dtype, rows.shape[0], rows.shape[1],
                     table.row_stride};
  matrix->table_ = table.memory;
  return matrix;
}

void CudaMatrix::gather_scales(std::span<const TensorView> parts, Uploader& uploader, cudaStream_t stream) {
  if (stored_.dtype == DType::kF8E4M3) return gather_row_scales(stored_, scales_.as<float>(), stream);
  if (stored_.dtype != DType::kF8E4M3_128) return;
  const auto count = static_cast<size_t>(row_scales(stored_.dtype, stored_.columns)) * sizeof(float);
  std::vector<float> squares(scales_.bytes() / sizeof(float));
  int64_t row = 0;
  for (const TensorView& part : parts) {
    const auto* floats = static_cast<const uint8_t*>(part.data) + stored_.columns;
    for (int64_t i = 0; i < part.shape[0]; ++i, ++row) {
      float* square = squares.data() + row / kScaleRows * square_stride(stored_.columns);
      if (row % kScaleRows == 0) std::memcpy(square, floats, count);
      rows_agree_ = rows_agree_ && std::memcmp(square, floats, count) == 0;
      floats += quantised_row_bytes(stored_.dtype, stored_.columns);
    }
  }
  uploader.upload(scales_.data(), squares.data(), scales_.bytes());
}

Result<std::unique_ptr<CudaMatrix>> CudaMatrix::quantise(std::span<const TensorView> parts, DType dtype,
                                                         Allocator& allocator, Uploader& uploader, Buffer& scratch,
                                                         cudaStream_t stream) {
  QUIRE_CHECK(!parts.empty() && is_quantisation_format(dtype));
  QUIRE_ASSIGN_OR_RETURN(auto matrix, make(parts, dtype, dtype, allocator));
  const StoredMatrix& stored = matrix->stored_;
  auto* to = matrix->memory_->as<uint8_t>();
  for (const TensorView& part : parts) {
    QUIRE_CHECK(can_be_quantised(part.dtype));
    const int64_t from_stride = row_bytes(part.dtype, stored.columns);
    const int64_t staged_stride = held_row_bytes(part.dtype, stored.columns);
    const int64_t most =
        static_cast<int64_t>(scratch.bytes()) / (staged_stride + stored.columns * static_cast<int64_t>(sizeof(float)));
    QUIRE_CHECK(most > 0);
    for (int64_t row = 0; row < part.shape[0]; row += most) {
      const int64_t count = std::min(most, part.shape[0] - row);
      uploader.upload_rows(scratch.data(), static_cast<size_t>(staged_stride),
                           static_cast<const uint8_t*>(part.data) + row * from_stride, static_cast<size_t>(from_stride),
                           static_cast<size_t>(from_stride), count);
      const StoredMatrix staged{scratch.as<const uint8_t>(), part.dtype, count, stored.columns, staged_stride};
      auto* values = reinterpret_cast<float*>(scratch.as<uint8_t>() + count * staged_stride);
      expand_rows(staged, 0, count, values, stream);
      quantise_rows(dtype, values, count, stored.columns, to, stored.row_bytes, stream);
      to += count * stored.row_bytes;
    }
  }
  matrix->gather_scales(parts, uploader, stream);
  return matrix;
}

Status CudaMatrix::hold_input(InputForm form, Allocator& allocator, Uploader& uploader) {
  QUIRE_CHECK(form.rounding == RowRounding::kNone);
  if (form.order != nullptr) {
    QUIRE_CHECK(std::ssize(*form.order) == stored_.columns);
    order_ = Buffer(allocator, form.order->size() * sizeof(int32_t));
    if (order_.data() == nullptr)
      return resource_exhausted("no memory on the card for the order of a weight's {} inputs", form.order->size());
    uploader.upload(order_.data(), form.order->data(), order_.bytes());
  }
  set_input(std::move(form));
  return {};
}

CudaGroup::CudaGroup(std::vector<const PackedMatrix*> matrices, Allocator& allocator, Uploader& uploader)
    : PackedGroup(std::move(matrices)), addresses_(allocator, static_cast<size_t>(size()) * sizeof(const uint8_t*)) {
  QUIRE_CHECK_MSG(addresses_.data() != nullptr, "no memory on the card for the addresses of a group of weights");
  std::vector<const uint8_t*> addresses;
  for (int32_t i = 0; i < size(); ++i) addresses.push_back(static_cast<const CudaMatrix&>((*this)[i]).stored().data);
  uploader.upload(addresses_.data(), addresses.data(), addresses_.bytes());

  std::vector<float> factors;
  for (int32_t i = 0; i < size(); ++i) factors.push_back((*this)[i].input().factor);
  if (std::ranges::all_of(factors, [](float factor) { return factor == 1; })) return;
  factors_ = Buffer(allocator, factors.size() * sizeof(float));
  QUIRE_CHECK_MSG(factors_.data() != nullptr, "no memory on the card for the factors of a group of weights");
  uploader.upload(factors_.data(), factors.data(), factors_.bytes());
}

}  // namespace quire::ops::cuda
