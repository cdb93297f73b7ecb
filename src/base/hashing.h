// Hashing of bytes. Not for security, but hard to predict from outside where the seed is secret.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// XXH3, 64 bits.
uint64_t hash_bytes(const void* data, size_t size, uint64_t seed);

}  // namespace quire
