#include "types/repetition.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire {
namespace {

// How many of the last tokens equal the one `shift` before them, counted up to `most`.
size_t matching_tail(std::span<const TokenId> tokens, size_t shift, size_t most) {
  size_t length = 0;
  while (length < most && tokens[tokens.size() - 1 - length] == tokens[tokens.size() - 1 - length - shift]) ++length;
  return length;
}

}  // namespace

void matching_tails(std::span<const TokenId> tokens, std::vector<size_t>& lengths) {
  const size_t size = tokens.size();
  const auto from_end = [&](size_t i) { return tokens[size - 1 - i]; };
  lengths.assign(size, 0);
  size_t begin = 0;  // the match that reaches furthest: [begin, end)
  size_t end = 0;
  for (size_t shift = 1; shift < size; ++shift) {
    size_t length = shift < end ? std::min(end - shift, lengths[shift - begin]) : 0;
    while (shift + length < size && from_end(length) == from_end(shift + length)) ++length;
    lengths[shift] = length;
    if (shift + length > end) {
      begin = shift;
      end = shift + length;
    }
  }
}

bool ends_in_repetition(std::span<const TokenId> tokens, const RepetitionDetection& detection) {
  if (detection.max_pattern_size <= 0 || detection.min_count < 2) return false;
  const auto count = static_cast<size_t>(detection.min_count);
  const auto smallest = static_cast<size_t>(std::max(detection.min_pattern_size, 1));
  const size_t largest = std::min(static_cast<size_t>(detection.max_pattern_size), tokens.size() / count);
  if (smallest > largest) return false;
  // Copies of one pattern: every token but those of the first copy equals the one a pattern's size before it.
  const std::span<const TokenId> tail = tokens.last(largest * count);
  size_t budget = 4 * tail.size();  // text that nearly repeats at many sizes must not cost their product
  for (size_t size = smallest; size <= largest; ++size) {
    const size_t wanted = size * (count - 1);
    const size_t length = matching_tail(tail, size, wanted);
    if (length == wanted) return true;
    if (length < budget) {
      budget -= length;
      continue;
    }
    std::vector<size_t> lengths;
    matching_tails(tail, lengths);
    for (size_t other = size + 1; other <= largest; ++other) {
      if (lengths[other] >= other * (count - 1)) return true;
    }
    return false;
  }
  return false;
}

}  // namespace quire
