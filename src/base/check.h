// CHECK: a condition that only a bug of ours can break. It ends the process with the place and the
// reason; input that a user, a file or a client can get wrong is a Status instead.
#pragma once

#include <string_view>

namespace quire {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view detail);
}  // namespace quire

#define QUIRE_CHECK(condition)                                   \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      ::quire::check_failed(#condition, __FILE__, __LINE__, ""); \
  } while (false)

// QUIRE_CHECK_MSG(a == b, fmt::format("a is {}", a)): the detail is built only on failure.
#define QUIRE_CHECK_MSG(condition, detail)                             \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::quire::check_failed(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)

// Checked in debug builds (and sanitizer builds) only: invariants too dear for every step.
#ifdef NDEBUG
#define QUIRE_DCHECK(condition) \
  do {                          \
  } while (false && (condition))
#else
#define QUIRE_DCHECK(condition) QUIRE_CHECK(condition)
#endif
