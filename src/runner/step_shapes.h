// The shapes that steps are given, so that few recordings serve all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace quire::runner {

// A batch of num_sequences tokens, one each, whose block tables have rows of num_blocks blocks.
struct DecodeShape {
  int32_t num_sequences = 0;
  int32_t num_blocks = 0;
  bool shares = false;   // some of them read the same blocks, which is told with their tables
  int32_t adapters = 0;  // StepAdapters::recording_version(); 0: no row has one
  auto operator<=>(const DecodeShape&) const = default;
};
// A batch of so many tokens of however many sequences, with pieces of prompts among them: what its attention has to do
// differs from step to step, all else does not.
struct MixedShape {
  int32_t num_tokens = 0;
  int32_t adapters = 0;  // as DecodeShape has it
  auto operator<=>(const MixedShape&) const = default;
};
using StepShape = std::variant<DecodeShape, MixedShape>;

inline int32_t adapters_of(const StepShape& shape) {
  return std::visit([](const auto& one) { return one.adapters; }, shape);
}
inline StepShape with_adapters(StepShape shape, int32_t version) {
  std::visit([&](auto& one) { one.adapters = version; }, shape);
  return shape;
}

class StepShapes {
 public:
  StepShapes() = default;  // none
  // Steps that decode of up to largest_step sequences of up to max_model_len tokens; mixed ones of up to most_tokens.
  // REQUIRES: all at least 1.
  StepShapes(int32_t largest_step, int64_t max_model_len, int32_t block_size, int32_t most_tokens);

  // 1, 2, 4, 8, by steps of 8 to 256, by steps of 16, and the largest.
  const std::vector<int32_t>& sizes() const { return sizes_; }
  // The smallest that holds so many sequences whose longest context is of so many tokens; none for more sequences than
  // the largest has. A longer context than the shortest shapes have, 512 tokens, goes to the next of twice the length.
  std::optional<DecodeShape> shape_of(size_t num_sequences, int64_t longest_context) const;
  // The smallest that holds so many tokens, of 1, 2, 4, 8 and then by steps of 16 to 256, of 32, and the largest; none
  // for more tokens than that has.
  std::optional<MixedShape> mixed_shape_of(int64_t num_tokens) const;
  // Of the longest contexts.
  int32_t most_blocks() const { return most_blocks_; }
  int32_t block_size() const { return block_size_; }
  // Tokens that a mixed shape may have more than what it holds.
  static constexpr int32_t kMostLeftOver = 31;

 private:
  std::vector<int32_t> sizes_;
  std::vector<int32_t> mixed_sizes_;  // in tokens
  int32_t block_size_ = 1;
  int32_t most_blocks_ = 0;
};

}  // namespace quire::runner
