// For test_ray.py: processes on the nodes of a Ray cluster, whatever they are.
//   ray_ranks LIBRARY RAY_API ADDRESS pack|spread RANKS CPUS END_SECONDS PROGRAM [ARGUMENT...]
// Says on which nodes they are, then waits until one has ended, which it says, or its own stdin has.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "comm/ray_ranks.h"

namespace {

using quire::comm::RayRanks;
using quire::comm::RayRanksOptions;
using quire::comm::RayStrategy;

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

int run(const RayRanksOptions& options) {
  auto started = RayRanks::start(options);
  if (!started.ok()) {
    say(started.status().message());
    return 2;
  }
  const std::unique_ptr<RayRanks> ranks = std::move(started).value();
  for (size_t rank = 1; rank <= options.environments.size(); ++rank)
    say(fmt::format("rank {}: {}", rank, ranks->node(static_cast<int>(rank))));
  pollfd in{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (poll(&in, 1, 20) == 0) {
    const quire::Status status = ranks->status();
    if (!status.ok()) {
      say(status.message());
      return 3;
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count < 9) return 64;
  RayRanksOptions options{.library = words[1], .ray_api = words[2], .address = words[3]};
  options.strategy = std::string(words[4]) == "spread" ? RayStrategy::kSpread : RayStrategy::kPack;
  for (int rank = 1; rank <= std::stoi(words[5]); ++rank)
    options.environments.push_back({fmt::format("QUIRE_TEST_RANK={}", rank)});
  options.cpus_per_rank = std::stoi(words[6]);
  options.end_timeout = std::chrono::seconds(std::stoi(words[7]));
  options.placement_timeout = std::chrono::seconds(5);
  options.start_timeout = std::chrono::seconds(30);
  options.program = words[8];
  options.arguments.assign(words + 9, words + count);
  options.folder = std::filesystem::current_path();
  return run(options);
}
