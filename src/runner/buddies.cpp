#include "runner/buddies.h"

#include <bit>

#include "base/check.h"

namespace quire::runner {

Buddies::Buddies(int64_t size, int64_t smallest, int64_t largest)
    : size_(size), smallest_(smallest), largest_(largest), free_(order_of(largest) + 1) {
  const auto power = [](int64_t units) { return units > 0 && std::has_single_bit(static_cast<uint64_t>(units)); };
  QUIRE_CHECK(power(smallest) && power(largest) && smallest <= largest && size >= 0 && size % largest == 0);
  for (int64_t begin = 0; begin < size; begin += largest) free_.back().insert(begin);
}

size_t Buddies::order_of(int64_t units) const {
  size_t order = 0;
  while (size_of(order) < units) ++order;
  return order;
}

Buddies::Place Buddies::take(int64_t units) {
  QUIRE_CHECK(units <= largest_);
  const size_t wanted = order_of(units);
  size_t order = wanted;
  while (order < free_.size() && free_[order].empty()) ++order;
  if (order == free_.size()) return {};
  const int64_t begin = free_[order].extract(free_[order].begin()).value();
  while (order > wanted) {
    --order;
    free_[order].insert(begin + size_of(order));
  }
  return {.begin = begin, .size = size_of(wanted)};
}

void Buddies::give_back(const Place& place) {
  size_t order = order_of(place.size);
  int64_t begin = place.begin;
  QUIRE_CHECK(begin >= 0 && begin + place.size <= size_ && size_of(order) == place.size);
  for (; order + 1 < free_.size(); ++order) {
    const int64_t other = begin ^ size_of(order);
    if (free_[order].erase(other) == 0) break;
    begin = std::min(begin, other);
  }
  QUIRE_CHECK(free_[order].insert(begin).second);
}

int64_t Buddies::num_free() const {
  int64_t units = 0;
  for (size_t order = 0; order < free_.size(); ++order)
    units += static_cast<int64_t>(free_[order].size()) * size_of(order);
  return units;
}

}  // namespace quire::runner
