#include "comm/shared_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace quire::comm {

void copy_to_shared(const void* from, void* to, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLong = 32 << 10;
  constexpr size_t kLine = 64;
  if (bytes >= kLong) {
    auto* out = static_cast<uint8_t*>(to);
    const auto* in = static_cast<const uint8_t*>(from);
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
    std::memcpy(out, in, head);
    const size_t lines = (bytes - head) / kLine;
    for (size_t line = 0; line < lines; ++line) {
      const auto* source = reinterpret_cast<const float*>(in + head + line * kLine);
      auto* target = reinterpret_cast<float*>(out + head + line * kLine);
      for (int i = 0; i < 4; ++i) _mm_stream_ps(target + 4 * i, _mm_loadu_ps(source + 4 * i));
    }
    const size_t done = head + lines * kLine;
    std::memcpy(out + done, in + done, bytes - done);
    _mm_sfence();
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace quire::comm
