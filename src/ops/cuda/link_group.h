// What ranks of a link say to each other by way of the host, before there is a link.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "ops/device_link.h"

namespace quire::ops::cuda {

// What each rank says of itself, for all to hear.
template <typename T>
Result<std::vector<T>> hear(const LinkGroup& group, const T& own) {
  std::vector<T> all(static_cast<size_t>(group.size));
  QUIRE_RETURN_IF_ERROR(group.gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  return all;
}

}  // namespace quire::ops::cuda
