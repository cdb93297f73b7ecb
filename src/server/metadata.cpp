#include "server/metadata.h"

#include <fmt/format.h>

namespace quire::server {
namespace json = boost::json;

json::value read_metadata(JsonFields& fields) {
  const json::object* metadata = fields.object("metadata");
  if (metadata == nullptr) return nullptr;
  constexpr size_t kMostPairs = 16;
  constexpr size_t kMostName = 64;
  constexpr size_t kMostValue = 512;
  bool good = metadata->size() <= kMostPairs;
  for (const auto& [name, value] : *metadata) {
    good = good && name.size() <= kMostName && value.is_string() && value.get_string().size() <= kMostValue;
  }
  if (!good) {
    fields.fail("metadata", fmt::format("metadata takes {} strings of {} bytes, under names of {}.", kMostPairs,
                                        kMostValue, kMostName));
  }
  return *metadata;
}

}  // namespace quire::server
