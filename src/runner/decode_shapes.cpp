#include "runner/decode_shapes.h"

#include <algorithm>

namespace quire::runner {
namespace {

constexpr int64_t kShortestContext = 512;

}  // namespace

DecodeShapes::DecodeShapes(int32_t largest_step, int64_t max_model_len, int32_t block_size)
    : block_size_(block_size), most_blocks_(static_cast<int32_t>((max_model_len + block_size - 1) / block_size)) {
  for (int32_t size = 1; size < largest_step; size += size < 8 ? size : size < 256 ? 8 : 16) sizes_.push_back(size);
  sizes_.push_back(largest_step);
}

std::optional<DecodeShape> DecodeShapes::shape_of(size_t num_sequences, int64_t longest_context) const {
  const auto size =
      std::ranges::find_if(sizes_, [&](int32_t each) { return static_cast<size_t>(each) >= num_sequences; });
  if (num_sequences == 0 || size == sizes_.end()) return std::nullopt;
  int64_t context = kShortestContext;
  while (context < longest_context) context *= 2;
  const int64_t blocks = (context + block_size_ - 1) / block_size_;
  return DecodeShape{*size, static_cast<int32_t>(std::min<int64_t>(blocks, most_blocks_))};
}

}  // namespace quire::runner
