// Places in one piece of memory, of sizes that are powers of two: the buddy system (Knuth, The Art of Computer
// Programming, 2.5). Counts, no memory of its own: for lists on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace quire::runner {

// As long as places of `largest` are asked for by holders of one place each, fewer than size / largest of them, there
// is one whatever sizes those hold: a place lies within one aligned stretch of `largest`.
class Buddies {
 public:
  // Of `size` units, in places of `smallest` to `largest`. REQUIRES: both are powers of two; `largest` divides size.
  Buddies(int64_t size, int64_t smallest, int64_t largest);

  struct Place {
    int64_t begin = -1;  // below 0: none
    int64_t size = 0;
  };
  // The smallest place of at least so many units; none where there is none. REQUIRES: units <= largest.
  Place take(int64_t units);
  void give_back(const Place& place);

  int64_t size() const { return size_; }
  int64_t num_free() const;  // units
  int64_t largest() const { return largest_; }

 private:
  size_t order_of(int64_t units) const;  // of the smallest place that holds them
  int64_t size_of(size_t order) const { return smallest_ << order; }

  int64_t size_;
  int64_t smallest_;
  int64_t largest_;
  std::vector<std::set<int64_t>> free_;  // by order: where free places begin
};

}  // namespace quire::runner
