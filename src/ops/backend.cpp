#include "ops/backend.h"

#include <cstring>

namespace quire::ops {

void Backend::upload(void* device, const void* host, size_t bytes) {
  if (bytes != 0) std::memcpy(device, host, bytes);
}

void Backend::download(void* host, const void* device, size_t bytes) {
  if (bytes != 0) std::memcpy(host, device, bytes);
}

}  // namespace quire::ops
