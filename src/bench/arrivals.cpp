#include "bench/arrivals.h"

#include <cmath>

#include "base/check.h"

namespace quire::bench {

std::vector<double> arrival_times(int64_t count, double rate, double burstiness, std::mt19937_64& random) {
  QUIRE_CHECK(rate > 0 && burstiness > 0);
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (std::isinf(rate) || times.empty()) return times;
  const double shape = std::isinf(burstiness) ? 1.0 : burstiness;  // not drawn from when infinite
  std::gamma_distribution<double> interval(shape, 1 / (rate * shape));
  double now = 0;
  for (double& time : times) {
    now += std::isinf(burstiness) ? 1 / rate : interval(random);
    time = now;
  }
  const double wanted = static_cast<double>(count) / rate;
  if (now > 0) {
    for (double& time : times) time *= wanted / now;
  }
  return times;
}

}  // namespace quire::bench
