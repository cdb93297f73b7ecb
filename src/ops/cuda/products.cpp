#include "ops/cuda/products.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "ops/quantise.h"

namespace quire::ops::cuda {
namespace {

// Up to so many rows our own kernel of few rows is the fastest, and up to so many then tensor cores that codes are
// decoded for once, as `quire bench kernels` has measured it on an H100 and an H200 for weights of [4096, 4096] and
// [14336, 4096] (docs/cuda.md). The former decodes a weight again for each kFewRows rows; many rows of blocks of few
// bits are multiplied by weights expanded to F16.
constexpr int64_t kFewRowsOfHalves = 1;
constexpr int64_t kMostNumbersOfHalves = int64_t{32} << 20;  // of a weight for which that is so
constexpr int64_t kFewRowsOfEightBits = 3;
constexpr int64_t kFewRowsOfBlocks = 8;  // that have no tiles
struct MostRows {
  int64_t few;
  int64_t decoded;
};
constexpr MostRows kMostOfDecodedBlocks = {1, 64};
constexpr int64_t kLongColumns =
    8192;  // beyond, warps of our own kernel, a few weight rows each, are too few for one row too
constexpr MostRows kMostOfFloat8 = {2, 32};  // with a scale a row
// cuBLASLt has one algorithm for scales of rows, a block for every 128 by 128 of the outputs, each of which walks all
// columns alone: of a weight of [4096, 14336] 40 us for 32 to 256 rows, where products without scales take 21 to 28.
constexpr int64_t kMostScaledAfterwards = 512;

MatrixProduct product_of(const StoredMatrix& weight, const void* x, int64_t x_stride) {
  return {.dtype = weight.dtype,
          .x = x,
          .x_stride = x_stride,
          .weight = weight.data,
          .weight_stride = weight.row_bytes / row_bytes(weight.dtype, 1),
          .rows = weight.rows,
          .columns = weight.columns};
}

}  // namespace

Products::Way Products::way_of(const CudaMatrix& matrix, int64_t num_rows) const {
  if (batch_invariant_) return Way::kFew;
  const StoredMatrix& weight = matrix.stored();
  const bool decodes = rounds_activations_ && has_decoded_tiles(weight.dtype);
  if (kernels_ == ProductKernels::kFewRows) return Way::kFew;
  if (kernels_ == ProductKernels::kDecodedTiles && decodes) return Way::kDecoded;
  // The library for any number of rows leaves none to the others.
  const int64_t counted = kernels_ == ProductKernels::kLibrary ? std::numeric_limits<int64_t>::max() : num_rows;
  const bool has_eight_bits = matrix.library_scales() != nullptr && weight.rows % 16 == 0 &&
                              weight.columns % (weight.dtype == DType::kF8E4M3_128 ? kScaleColumns : int64_t{16}) == 0;
  const Float8Products f8 = library_->f8();
  const bool multiplies_f8 =
      f8 == Float8Products::kScaled || (f8 == Float8Products::kPlain && weight.dtype == DType::kF8E4M3);
  if (has_eight_bits && rounds_activations_ && multiplies_f8) {
    if (weight.dtype != DType::kF8E4M3) return counted <= kFewRowsOfEightBits ? Way::kFew : Way::kEightBit;
    if (counted <= kMostOfFloat8.few) return Way::kFew;
    return counted <= kMostOfFloat8.decoded ? Way::kDecoded : Way::kEightBit;
  }
  if (info(weight.dtype).block_values > 1 || has_row_scales(weight.dtype)) {
    const int64_t few = !decodes ? kFewRowsOfBlocks : weight.columns > kLongColumns ? 0 : kMostOfDecodedBlocks.few;
    if (counted <= few) return Way::kFew;
    return decodes && counted <= kMostOfDecodedBlocks.decoded ? Way::kDecoded : Way::kExpanded;
  }
  const bool floats = weight.dtype == DType::kF32;
  const bool is_small = weight.rows * weight.columns <= kMostNumbersOfHalves;
  if (counted <= (floats ? kFewRows : is_small ? kFewRowsOfHalves : 0)) return Way::kFew;
  return floats ? Way::kFloats : Way::kRounded;
}

DType Products::input_dtype(const CudaMatrix& matrix, int64_t num_rows) const {
  if (!matrix.input().is_plain()) return DType::kF32;
  const Way way = way_of(matrix, num_rows);
  // Where the library has refused a product of 8 bits, the next best takes floats. Codes of long rows, and those with
  // scales of blocks, come from 16 bits, half the bytes on the way there.
  const StoredMatrix& weight = matrix.stored();
  if (way == Way::kEightBit && !told_.contains({weight.dtype, weight.rows, weight.columns}))
    return weight.dtype == DType::kF8E4M3 && may_be_coded(weight.columns) ? DType::kF8E4M3 : DType::kBF16;
  return way == Way::kRounded ? weight.dtype : DType::kF32;
}

bool Products::takes_few_rows(const CudaMatrix& matrix, int64_t num_rows) const {
  return matrix.input().is_plain() && way_of(matrix, num_rows) == Way::kFew;
}

// Rows as a weight's input() wants them lie in the last quarter of the scratch: as many at once as there is room for.
void Products::multiply(const LinearArgs& args) {
  const auto& matrix = static_cast<const CudaMatrix&>(*args.weight);
  if (matrix.input().is_plain()) return multiply_plain(args, matrix);
  const int64_t columns = matrix.columns();
  const int64_t whole = scratch_bytes_;
  constexpr int64_t kAlign = 256;
  scratch_bytes_ = whole * 3 / 4 / kAlign * kAlign;
  half_of_scratch_ = scratch_bytes_ / 2 / kAlign * kAlign;
  auto* formed = reinterpret_cast<float*>(scratch_.as<uint8_t>() + scratch_bytes_);
  const int64_t most = (whole - scratch_bytes_) / row_bytes(DType::kF32, columns);
  QUIRE_CHECK(most > 0);
  for (int64_t row = 0; row < args.num_rows; row += most) {
    LinearArgs some = args;
    some.num_rows = std::min(most, args.num_rows - row);
    form_rows(args.x.floats() + row * args.x_stride, args.x_stride, some.num_rows, columns, matrix.order(),
              matrix.input().factor, formed, stream_);
    some.x = formed;
    some.x_stride = columns;
    some.out = args.out.from(row * args.out_stride);
    multiply_plain(some, matrix);
  }
  scratch_bytes_ = whole;
  half_of_scratch_ = whole / 2;
}

void Products::multiply_plain(const LinearArgs& args, const CudaMatrix& matrix) {
  const Way way = way_of(matrix, args.num_rows);
  if (way == Way::kFew) return multiply_ourselves(args, matrix.stored());
  if (way == Way::kDecoded) return multiply_by_tiles(args, matrix.stored());
  Status done = multiply_as(way, args, matrix);
  if (done.ok()) return;
  tell_of(done, matrix.stored());
  // Tensor cores of 16 bits are the next best.
  const bool floats = args.x.dtype == DType::kF32 && args.out.dtype == DType::kF32;
  if (way == Way::kEightBit && floats && multiply_as(Way::kExpanded, args, matrix).ok()) return;
  multiply_ourselves(args, matrix.stored());
}

void Products::tell_of(const Status& refusal, const StoredMatrix& weight) {
  if (!told_.emplace(weight.dtype, weight.rows, weight.columns).second) return;
  log_warning("{}; products with this weight are computed by kernels that are slower", refusal.message());
}

Status Products::multiply_as(Way way, const LinearArgs& args, const CudaMatrix& matrix) {
  const StoredMatrix& weight = matrix.stored();
  switch (way) {
    case Way::kFloats:
      return multiply_by_library(args, product_of(weight, args.x.floats(), args.x_stride), 0, args.num_rows);
    case Way::kRounded:
      return multiply_rounded(args, weight);
    case Way::kEightBit:
      return multiply_eight_bit(args, matrix);
    case Way::kExpanded:
      return multiply_expanded(args, weight);
    case Way::kFew:
    case Way::kDecoded:
      break;
  }
  multiply_ourselves(args, weight);
  return {};
}

// Floats in and out; numbers of 16 bits become floats in one half of the scratch, and come from floats in the other.
void Products::multiply_ourselves(const LinearArgs& args, const StoredMatrix& weight) {
  const bool widens = args.x.dtype != DType::kF32;
  const bool rounds = args.out.dtype != DType::kF32;
  int64_t most = args.num_rows;
  if (widens) most = std::min(most, half_of_scratch_ / row_bytes(DType::kF32, weight.columns));
  if (rounds) most = std::min(most, half_of_scratch_ / row_bytes(DType::kF32, weight.rows));
  QUIRE_CHECK(most > 0);
  auto* widened = scratch_.as<float>();
  auto* sums = reinterpret_cast<float*>(scratch_.as<uint8_t>() + half_of_scratch_);
  for (int64_t row = 0; row < args.num_rows; row += most) {
    const int64_t count = std::min(most, args.num_rows - row);
    const Rows x = args.x.from(row * args.x_stride);
    const OutRows out = args.out.from(row * args.out_stride);
    if (x.dtype == DType::kF8E4M3) {
      const float* scales = coded_scales(args.x, args.num_rows, weight.columns);
      widen_coded_rows(static_cast<const uint8_t*>(x.data), scales + row, count, weight.columns, widened, stream_);
    } else if (widens) {
      convert_rows(x, args.x_stride, count, weight.columns, widened, weight.columns, stream_);
    }
    multiply_few_rows({.weight = weight,
                       .x = widens ? widened : x.floats(),
                       .x_stride = widens ? weight.columns : args.x_stride,
                       .num_rows = count,
                       .bias = args.bias,
                       .out = rounds ? sums : out.floats(),
                       .out_stride = rounds ? weight.rows : args.out_stride},
                      stream_);
    if (rounds) convert_rows(sums, weight.rows, count, weight.rows, out, args.out_stride, stream_);
  }
}

// As many rows at once as there is room for, mostly all.
void Products::multiply_by_tiles(const LinearArgs& args, const StoredMatrix& weight) {
  int64_t most = args.num_rows;
  while (most > 1 && decoded_scratch_bytes(most, weight, args.out.dtype) > scratch_bytes_) most = (most + 1) / 2;
  for (int64_t row = 0; row < args.num_rows; row += most) {
    multiply_decoded({.weight = weight,
                      .x = args.x.from(row * args.x_stride),
                      .x_stride = args.x_stride,
                      .num_rows = std::min(most, args.num_rows - row),
                      .bias = args.bias,
                      .out = args.out.from(row * args.out_stride),
                      .out_stride = args.out_stride,
                      .scratch = scratch_.data(),
                      .scratch_bytes = scratch_bytes_},
                     stream_);
  }
}

// Rows [first, first + count) of what was asked for.
Status Products::multiply_by_library(const LinearArgs& args, MatrixProduct product, int64_t first, int64_t count) {
  product.num_rows = count;
  product.bias = args.bias;
  product.out = args.out.from(first * args.out_stride);
  product.out_stride = args.out_stride;
  return library_->multiply(product, library_workspace_.data(), stream_);
}

// x is rounded as the weight is, unless it comes so: as many rows at once as the scratch has room for.
Status Products::multiply_rounded(const LinearArgs& args, const StoredMatrix& weight) {
  if (args.x.dtype == weight.dtype)
    return multiply_by_library(args, product_of(weight, args.x.data, args.x_stride), 0, args.num_rows);
  const int64_t most = scratch_bytes_ / row_bytes(weight.dtype, weight.columns);
  QUIRE_CHECK(most > 0);
  for (int64_t row = 0; row < args.num_rows; row += most) {
    const int64_t count = std::min(most, args.num_rows - row);
    round_rows(args.x.floats() + row * args.x_stride, {.stride = args.x_stride}, count, weight.columns, weight.dtype,
               scratch_.data(), stream_);
    QUIRE_RETURN_IF_ERROR(multiply_by_library(args, product_of(weight, scratch_.data(), weight.columns), row, count));
  }
  return {};
}

// Codes of as many rows as there is room for and their scales lie in the first half of the scratch. The library adds
// no floats to products of 8 bits, and those of scaled blocks it makes of whole fours of rows: what is left over is
// filled up with zeros and comes out in the second half. Few rows do so together: copying them costs less than
// reading the weight a second time. Where the library has no scales, or is slow with them, sums come out without and
// are multiplied then.
Status Products::multiply_eight_bit(const LinearArgs& args, const CudaMatrix& matrix) {
  constexpr int64_t kMostCopied = 512;
  const StoredMatrix& weight = matrix.stored();
  const bool blocks = weight.dtype == DType::kF8E4M3_128;
  const int64_t unit = blocks ? 4 : 1;
  const int64_t most = half_of_scratch_ / quantised_row_bytes(weight.dtype, weight.columns) / unit * unit;
  const int64_t most_copied = std::min(kMostCopied, half_of_scratch_ / row_bytes(DType::kF32, weight.rows));
  QUIRE_CHECK(most > 0 && most_copied >= unit);
  if (args.x.dtype == DType::kF8E4M3) {
    const float* scales = coded_scales(args.x, args.num_rows, weight.columns);
    return multiply_codes(args, matrix,
                          {static_cast<const uint8_t*>(args.x.data), scales, args.num_rows, args.num_rows}, 0);
  }
  auto* codes = scratch_.as<uint8_t>();
  for (int64_t row = 0, count = 0; row < args.num_rows; row += count) {
    count = std::min(most, args.num_rows - row);
    if (count > most_copied) count -= count % unit;
    const int64_t padded = (count + unit - 1) / unit * unit;
    auto* scales = reinterpret_cast<float*>(codes + padded * weight.columns);
    const Rows x = args.x.from(row * args.x_stride);
    if (blocks) {
      round_blocks_to_f8(x, args.x_stride, count, padded, weight.columns, codes, scales, stream_);
    } else {
      round_rows_to_f8(x, args.x_stride, count, weight.columns, codes, weight.columns, scales, stream_);
    }
    QUIRE_RETURN_IF_ERROR(multiply_codes(args, matrix, {codes, scales, count, padded}, row));
  }
  return {};
}

Status Products::multiply_codes(const LinearArgs& args, const CudaMatrix& matrix, const Coded& x, int64_t first) {
  const StoredMatrix& weight = matrix.stored();
  const bool blocks = weight.dtype == DType::kF8E4M3_128;
  MatrixProduct product = product_of(weight, x.codes, weight.columns);
  const bool afterwards = !blocks && weight.columns > kLongColumns && x.num_rows <= kMostScaledAfterwards;
  const bool scaled = library_->f8() == Float8Products::kScaled && !afterwards;
  if (scaled) {
    product.x_scales = x.scales;
    product.weight_scales = matrix.library_scales();
  }
  product.num_rows = x.padded;
  product.out = args.out.from(first * args.out_stride);
  product.out_stride = args.out_stride;
  const OutRows out = product.out;
  if (x.padded != x.num_rows) {
    product.out = OutRows(scratch_.as<uint8_t>() + half_of_scratch_, out.dtype);
    product.out_stride = weight.rows;
  }
  QUIRE_RETURN_IF_ERROR(library_->multiply(product, library_workspace_.data(), stream_));
  finish_rows(
      {.rows = scaled ? nullptr : x.scales, .columns = scaled ? nullptr : matrix.library_scales(), .bias = args.bias},
      x.num_rows, weight.rows, product.out, product.out_stride, out, args.out_stride, stream_);
  return {};
}

// In F16, as exact as the tensor cores' way with floats (TF32), twice as fast and half the memory; or in floats.
Status Products::multiply_expanded(const LinearArgs& args, const StoredMatrix& weight) {
  if (!rounds_activations_) return multiply_by_expanded(args, weight);
  const int64_t row_size = row_bytes(DType::kF16, weight.columns);
  const int64_t most = half_of_scratch_ / (row_size + static_cast<int64_t>(sizeof(float)));
  QUIRE_CHECK(most > 0);
  for (int64_t row = 0; row < args.num_rows; row += most) {
    LinearArgs some = args;
    some.num_rows = std::min(most, args.num_rows - row);
    some.x = {scratch_.data(), DType::kF16};
    some.x_stride = weight.columns;
    some.bias = nullptr;
    some.out = args.out.from(row * args.out_stride);
    auto* factors = reinterpret_cast<float*>(scratch_.as<uint8_t>() + some.num_rows * row_size);
    round_rows_in_range(args.x.floats() + row * args.x_stride, args.x_stride, some.num_rows, weight.columns,
                        scratch_.data(), factors, stream_);
    QUIRE_RETURN_IF_ERROR(multiply_by_expanded(some, weight));
    finish_rows({.rows = factors, .bias = args.bias}, some.num_rows, weight.rows, some.out.floats(), args.out_stride,
                some.out.floats(), args.out_stride, stream_);
  }
  return {};
}

// The weight in the dtype of x, as many of its rows at once as the second half of the scratch has room for.
Status Products::multiply_by_expanded(const LinearArgs& args, const StoredMatrix& weight) {
  auto* expanded = scratch_.as<uint8_t>() + half_of_scratch_;
  const int64_t most = half_of_scratch_ / row_bytes(args.x.dtype, weight.columns);
  QUIRE_CHECK(most > 0);
  for (int64_t row = 0; row < weight.rows; row += most) {
    const int64_t count = std::min(most, weight.rows - row);
    expand_rows(weight, row, count, {expanded, args.x.dtype}, stream_);
    const MatrixProduct product = {.dtype = args.x.dtype,
                                   .x = args.x.data,
                                   .x_stride = args.x_stride,
                                   .weight = expanded,
                                   .weight_stride = weight.columns,
                                   .num_rows = args.num_rows,
                                   .rows = count,
                                   .columns = weight.columns,
                                   .bias = args.bias == nullptr ? nullptr : args.bias + row,
                                   .out = args.out.from(row),
                                   .out_stride = args.out_stride};
    QUIRE_RETURN_IF_ERROR(library_->multiply(product, library_workspace_.data(), stream_));
  }
  return {};
}

}  // namespace quire::ops::cuda
