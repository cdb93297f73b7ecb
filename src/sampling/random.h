// Random numbers by counter: a number is a function of its key and its index, without a state to
// carry along, so a request draws the same numbers in whatever batch, order or thread its tokens
// are sampled.
#pragma once

#include <array>
#include <cstdint>

namespace quire::sampling {

// Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// What a number is drawn for: numbers of different streams are independent of each other.
enum class RandomStream : uint32_t { kToken = 0, kExcludeTopChoices = 1, kDraft = 2, kAcceptance = 3 };

// Uniform in [0, 1), a multiple of 2^-53: the key is the seed, the counter the index and the stream.
double uniform(uint64_t seed, uint64_t index, RandomStream stream = RandomStream::kToken);

}  // namespace quire::sampling
