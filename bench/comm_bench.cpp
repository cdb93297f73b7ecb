// What an all-reduce between processes takes, beside a copy of the same bytes, and beside what bringing as many over
// from another rank takes at least: bench_comm [ranks]. Each rank is kept to a core of its own where there are as many.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "comm/shared_communicator.h"
#include "comm/shared_copy.h"
#include "comm/shared_segment.h"

namespace {

using namespace quire;

double seconds_of(const auto& body, int rounds) {
  std::vector<double> times;
  for (int repetition = 0; repetition < 15; ++repetition) {
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) body();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds);
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return times[7];
}

constexpr size_t kMostFloats = size_t{512} * 4096;

// Each rank's numbers are written to memory that is shared, past the caches as all large messages are, and read by the
// rank after it. crossing: of every rank, kMostFloats.
double cross(comm::Communicator& communicator, std::span<float> crossing, std::span<const float> values, int rounds) {
  const auto of = [&](int rank) { return crossing.subspan(static_cast<size_t>(rank) * kMostFloats, values.size()); };
  const std::span<const float> other = of((communicator.rank() + 1) % communicator.size());
  std::vector<float> sum(values.size());
  return seconds_of(
      [&] {
        comm::copy_to_shared(values.data(), of(communicator.rank()).data(), values.size_bytes());
        communicator.barrier();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = values[i] + other[i];
        asm volatile("" : : "r"(sum.data()) : "memory");
        communicator.barrier();
      },
      rounds);
}

void measure(comm::Communicator& communicator, std::span<float> crossing, size_t rows, size_t columns) {
  std::vector<float> values(rows * columns, 0.0f);
  std::vector<float> copy(values.size());
  const int rounds = static_cast<int>(std::clamp<size_t>((size_t{1} << 24) / values.size(), 20, 5000));
  communicator.barrier();
  const double reduced = seconds_of([&] { communicator.all_reduce(values); }, rounds);
  communicator.barrier();
  const double copied = seconds_of(
      [&] {
        std::memcpy(copy.data(), values.data(), values.size() * sizeof(float));
        asm volatile("" : : "r"(copy.data()) : "memory");
      },
      rounds);
  communicator.barrier();
  const double crossed = cross(communicator, crossing, values, rounds);
  if (communicator.rank() != 0) return;
  std::printf("%4zu x %4zu floats: all-reduce %8.1f us, crossing %8.1f us, %.2f times, copy %8.1f us, %.2f times\n",
              rows, columns, reduced * 1e6, crossed * 1e6, reduced / crossed, copied * 1e6, reduced / copied);
}

int run_rank(const comm::SharedSegment& segment, const comm::SharedSegment& numbers,
             const comm::SharedGroupShape& shape, int rank) {
  const std::vector<int> cores = usable_cores();
  if (static_cast<int>(cores.size()) >= shape.num_ranks) keep_to_cores({cores[static_cast<size_t>(rank)]});
  auto communicator = comm::join_shared_group(segment.data(), shape, {.rank = rank});
  if (!communicator.ok()) return 1;
  const std::span crossing(reinterpret_cast<float*>(numbers.data()),
                           static_cast<size_t>(numbers.bytes()) / sizeof(float));
  for (const size_t rows : {size_t{1}, size_t{8}, size_t{32}, size_t{512}}) {
    for (const size_t columns : {size_t{576}, size_t{4096}}) measure(**communicator, crossing, rows, columns);
  }
  return (*communicator)->status().ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const comm::SharedGroupShape shape{.num_ranks = argc > 1 ? std::atoi(argv[1]) : 2};
  auto segment = comm::SharedSegment::create(comm::shared_group_bytes(shape));
  auto numbers = comm::SharedSegment::create(static_cast<int64_t>(kMostFloats * sizeof(float)) * shape.num_ranks);
  if (!segment.ok() || !numbers.ok()) return 1;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::fflush(stdout);
    if (fork() == 0) std::exit(run_rank(*segment, *numbers, shape, rank));
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed += status != 0 ? 1 : 0;
  return failed;
}
