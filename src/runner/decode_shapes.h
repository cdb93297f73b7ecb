// The shapes that steps of one token a sequence are given, so that few recordings serve all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace quire::runner {

// A batch of num_sequences tokens, one each, whose block tables have rows of num_blocks blocks.
struct DecodeShape {
  int32_t num_sequences = 0;
  int32_t num_blocks = 0;
  bool shares = false;  // some of them read the same blocks, which is told with their tables
  auto operator<=>(const DecodeShape&) const = default;
};

class DecodeShapes {
 public:
  DecodeShapes() = default;  // none
  // Of up to largest_step sequences of up to max_model_len tokens. REQUIRES: both at least 1.
  DecodeShapes(int32_t largest_step, int64_t max_model_len, int32_t block_size);

  // 1, 2, 4, 8, by steps of 8 to 256, by steps of 16, and the largest.
  const std::vector<int32_t>& sizes() const { return sizes_; }
  // The smallest that holds so many sequences whose longest context is of so many tokens; none for more sequences than
  // the largest has. A longer context than the shortest shapes have, 512 tokens, goes to the next of twice the length.
  std::optional<DecodeShape> shape_of(size_t num_sequences, int64_t longest_context) const;
  // Of the longest contexts.
  int32_t most_blocks() const { return most_blocks_; }
  int32_t block_size() const { return block_size_; }

 private:
  std::vector<int32_t> sizes_;
  int32_t block_size_ = 1;
  int32_t most_blocks_ = 0;
};

}  // namespace quire::runner
