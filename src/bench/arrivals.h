// When requests are sent.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace quire::bench {

// Seconds after the start at which each of `count` requests is sent, rising, the first after a first interval.
// Intervals follow a gamma distribution of shape `burstiness` and mean 1 / rate: 1 makes a Poisson process, less comes
// in bursts, more evenly. They are scaled so that the last request is sent at exactly count / rate, as vLLM does: seeds
// then differ in when requests come, not in the load. An infinite rate sends all at once. REQUIRES: rate > 0,
// burstiness > 0.
std::vector<double> arrival_times(int64_t count, double rate, double burstiness, std::mt19937_64& random);

}  // namespace quire::bench
