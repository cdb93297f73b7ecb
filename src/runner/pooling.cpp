#include "runner/pooling.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire::runner {

void HiddenPool::Part::add(const float* row, int64_t position, const Span& prompt) {
  if (type == PoolingType::kCls && position > prompt.from) return;
  if (type == PoolingType::kLast && position < prompt.length - 1) return;
  if (type == PoolingType::kMax) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto number = static_cast<double>(row[i]);
      // NaN stays, to be told at the end.
      if (weight == 0 || number > numbers[i] || std::isnan(number)) numbers[i] = number;
    }
    weight = 1;
    return;
  }
  const double times = type == PoolingType::kWeightedMean ? static_cast<double>(position + 1) : 1;
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += times * static_cast<double>(row[i]);
  weight += times;
}

double HiddenPool::Part::divisor() const {
  return type == PoolingType::kMeanSqrtLength ? std::sqrt(weight) : weight;
}

void HiddenPool::take(std::span<const PoolingType> types, const float* states, int64_t first, int64_t count,
                      const Span& prompt, int64_t size) {
  // A prompt without a text behind it: its last token.
  const Span counted{.from = std::min(prompt.from, prompt.length - 1), .length = prompt.length};
  const int64_t end = first + count;
  const int64_t begin = std::max(first, next_);
  // The cache may have had what comes before; of the last token alone nobody misses it.
  QUIRE_CHECK((types.size() == 1 && types[0] == PoolingType::kLast) || begin == next_);
  next_ = std::max(next_, end);
  for (size_t i = parts_.size(); i < types.size(); ++i) {
    parts_.push_back({types[i], std::vector<double>(static_cast<size_t>(size))});
  }
  for (int64_t position = std::max(begin, counted.from); position < std::min(end, prompt.length); ++position) {
    for (Part& part : parts_) part.add(states + (position - first) * size, position, counted);
  }
}

Result<std::vector<float>> HiddenPool::vector() const {
  std::vector<float> vector;
  for (const Part& part : parts_) {
    QUIRE_CHECK(part.weight > 0);
    const double divisor = part.divisor();
    for (const double number : part.numbers) vector.push_back(static_cast<float>(number / divisor));
  }
  if (std::ranges::all_of(vector, [](float number) { return std::isfinite(number); })) return vector;
  return internal_error("the model's hidden states are not finite numbers, so that there is nothing to pool");
}

}  // namespace quire::runner
