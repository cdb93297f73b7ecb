#include "server/random_id.h"

#include <openssl/rand.h>

#include <fmt/format.h>

#include "base/check.h"
#include "server/digest.h"

namespace quire::server {

// A body of some megabytes may have a hundred thousand items that are given an id each: a std::random_device, made
// anew, takes tens of microseconds for one where the processor is a virtual one.
std::string random_id(std::string_view prefix) {
  char bytes[16];
  QUIRE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes), sizeof(bytes)) == 1);
  return fmt::format("{}{}", prefix, hex({bytes, sizeof(bytes)}));
}

}  // namespace quire::server
