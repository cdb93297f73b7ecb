// Which kernel multiplies the many rows of groups.
#include "ops/cuda/grouped_tiles.h"

#include "base/check.h"
#include "ops/cuda/decoded_formats.h"
#include "ops/cuda/stored_formats.cuh"

namespace quire::ops::cuda {

bool has_tiles(DType dtype) {
  return dtype != DType::kF32 && has_decoder(dtype);
}

void multiply_grouped_tiles(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  if (work.num_rows == 0 || work.num_groups == 0 || work.shape.rows == 0) return;
  bool done = false;
  with_decoded_format(work.shape.dtype,
                      [&](auto type) { done = multiply_panels<type.value>(work, scratch, scratch_bytes, stream); });
  if (done) return;
  const bool known = with_decoder(work.shape.dtype, [&](auto type) {
    if constexpr (type.value != DType::kF32) multiply_tiles<type.value>(work, stream);
  });
  QUIRE_CHECK_MSG(known && has_tiles(work.shape.dtype), name(work.shape.dtype));
}

}  // namespace quire::ops::cuda
