// Whose thread an engine's steps run on.
#pragma once

#include <cstdint>

namespace quire {

enum class Drive : uint8_t {
  kOwnThread,  // the engine's: requests are answered whatever their callers do
  kCaller,     // that of whoever calls step(): nothing happens in between
};

}  // namespace quire
