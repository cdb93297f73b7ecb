// An adapter as an engine knows it: docs/adapters.md.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

struct AdapterInfo {
  std::string name;
  std::string path;
  bool loaded = false;    // in memory
  int32_t users = 0;      // answers that use it
  int32_t rank = 0;       // the largest; 0: it was never loaded
  int64_t bytes = 0;      // in memory; the same
  uint64_t revision = 0;  // of its files; the same
};

}  // namespace quire
