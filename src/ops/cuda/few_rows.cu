// Which kernel multiplies a few rows.
#include "base/check.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/stored_formats.cuh"

namespace quire::ops::cuda {
namespace {

bool multiples_of_four(int64_t a, int64_t b) {
  return a % 4 == 0 && b % 4 == 0;
}

void multiply(const GroupedRowsWork& work, const uint8_t* weight, cudaStream_t stream) {
  if (work.num_rows == 0 || work.num_groups == 0 || work.shape.rows == 0) return;
  FewRowsArgs args;
  args.work = work;
  args.weight = weight;
  args.aligned = reinterpret_cast<uintptr_t>(work.x) % 16 == 0 && multiples_of_four(work.x_stride, work.x_group_stride);
  // A group without rows costs next to nothing and another may have them all: where there are fewer rows than groups
  // those that have one will mostly have no more.
  int64_t rows = work.num_rows / work.num_groups;
  if (work.num_rows % work.num_groups * 4 > work.num_groups) ++rows;
  const bool known =
      with_decoder(work.shape.dtype, [&](auto type) { multiply_stored<type.value>(args, rows, stream); });
  QUIRE_CHECK_MSG(known, name(work.shape.dtype));
}

}  // namespace

void multiply_few_rows(const FewRowsWork& work, cudaStream_t stream) {
  multiply({.shape = work.weight,
            .num_groups = 1,
            .num_rows = work.num_rows,
            .x = work.x,
            .x_stride = work.x_stride,
            .bias = work.bias,
            .out = work.out,
            .out_stride = work.out_stride,
            .gate = work.gate},
           work.weight.data, stream);
}

void multiply_grouped_rows(const GroupedRowsWork& work, cudaStream_t stream) {
  multiply(work, nullptr, stream);
}

}  // namespace quire::ops::cuda
