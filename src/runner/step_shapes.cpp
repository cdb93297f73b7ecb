#include "runner/step_shapes.h"

#include <algorithm>

namespace quire::runner {
namespace {

constexpr int64_t kShortestContext = 512;

// Powers of two to 8, then by `step`, above 256 by twice that, and the largest.
std::vector<int32_t> sizes_up_to(int32_t largest, int32_t step) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < largest; size += size < 8      ? size
                                                 : size < step ? step - size
                                                 : size < 256  ? step
                                                               : 2 * step)
    sizes.push_back(size);
  sizes.push_back(largest);
  return sizes;
}

// nullptr: none holds so many.
const int32_t* smallest_of(const std::vector<int32_t>& sizes, int64_t count) {
  const auto size = std::ranges::lower_bound(sizes, count);
  return count <= 0 || size == sizes.end() ? nullptr : &*size;
}

}  // namespace

StepShapes::StepShapes(int32_t largest_step, int64_t max_model_len, int32_t block_size, int32_t most_tokens)
    : sizes_(sizes_up_to(largest_step, 8)),
      mixed_sizes_(sizes_up_to(most_tokens, 16)),
      block_size_(block_size),
      most_blocks_(static_cast<int32_t>((max_model_len + block_size - 1) / block_size)) {}

std::optional<DecodeShape> StepShapes::shape_of(size_t num_sequences, int64_t longest_context) const {
  const int32_t* size = smallest_of(sizes_, static_cast<int64_t>(num_sequences));
  if (size == nullptr) return std::nullopt;
  int64_t context = kShortestContext;
  while (context < longest_context) context *= 2;
  const int64_t blocks = (context + block_size_ - 1) / block_size_;
  return DecodeShape{*size, static_cast<int32_t>(std::min<int64_t>(blocks, most_blocks_))};
}

std::optional<MixedShape> StepShapes::mixed_shape_of(int64_t num_tokens) const {
  const int32_t* size = smallest_of(mixed_sizes_, num_tokens);
  return size == nullptr ? std::nullopt : std::optional(MixedShape{*size});
}

}  // namespace quire::runner
