// How much longer than usual this build may take for what tests have a limit of time for: sanitizers take theirs.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define QUIRE_SLOWED_DOWN
#endif
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define QUIRE_SLOWED_DOWN
#endif

namespace quire {

#ifdef QUIRE_SLOWED_DOWN
inline constexpr int kSlowdown = 15;
#else
inline constexpr int kSlowdown = 1;
#endif

}  // namespace quire
