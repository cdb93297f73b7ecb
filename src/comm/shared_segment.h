// Memory that processes share without a name: whoever has the descriptor has the memory, and when the last of them is
// gone, so is it. Nothing is left behind, and nobody can open it by guessing.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace quire::comm {

class SharedSegment {
 public:
  SharedSegment() = default;
  // Zeros. Pages that nobody has touched take nothing. The descriptor is closed on exec unless it is handed on. Errors:
  // resource_exhausted.
  static Result<SharedSegment> create(int64_t bytes);
  // Of another process's descriptor, which becomes this one's. Errors: invalid_argument for a descriptor that is no
  // such memory, or of another size.
  static Result<SharedSegment> open(int descriptor, int64_t bytes);
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  static Result<SharedSegment> map(int descriptor, int64_t bytes);
  void close();

  int descriptor_ = -1;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace quire::comm
