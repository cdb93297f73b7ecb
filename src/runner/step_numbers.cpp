#include "runner/step_numbers.h"

#include <algorithm>

namespace quire::runner {

void StepNumbers::begin(size_t bytes) {
  used_ = 0;
  if (in_host_memory_ || bytes <= staged_.size()) return;
  const size_t size = std::max(bytes, 2 * staged_.size());
  backend_.synchronise();  // kernels may still read the old ones
  memory_ = Buffer();
  memory_ = Buffer(backend_.allocator(), size);
  QUIRE_CHECK_MSG(memory_.data() != nullptr, "no memory for the integers of a step");
  staged_.resize(size);
  ++num_places_;
}

const uint8_t* StepNumbers::add_bytes(const void* numbers, size_t bytes) {
  QUIRE_CHECK(used_ + bytes <= staged_.size());
  if (bytes != 0) std::memcpy(staged_.data() + used_, numbers, bytes);
  const uint8_t* at = memory_.as<uint8_t>() + used_;
  used_ += room(bytes);
  return at;
}

int64_t StepNumbers::upload() {
  if (in_host_memory_ || used_ == 0) return 0;
  const size_t bytes = std::min(used_, staged_.size());
  backend_.upload(memory_.data(), staged_.data(), bytes);
  return static_cast<int64_t>(bytes);
}

}  // namespace quire::runner
