#include "server/random_id.h"

#include <random>

#include <fmt/format.h>

namespace quire::server {

std::string random_id(std::string_view prefix) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}{:08x}", prefix, device(), device(), device(), device());
}

}  // namespace quire::server
