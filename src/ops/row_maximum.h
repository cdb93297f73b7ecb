// indices[t] = the lowest index of the largest of in[t][..]; -1 where one of them is NaN or +inf, or none is above
// -inf. The greedy choice of a token, where nobody wants to see the logits.
#pragma once

#include <cstdint>

namespace quire::ops {

struct RowMaximumArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;            // over 0, fits 32 bits
  int32_t* indices = nullptr;  // [num_rows]
};

void check(const RowMaximumArgs& args);

// Of one row, on the host.
int32_t index_of_largest(const float* row, int64_t size);

}  // namespace quire::ops
