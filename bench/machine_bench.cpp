// What the machine can do at most: multiply-adds out of registers, bytes out of memory, and the price of waking the
// pool. The figures of ops_bench.cpp are to be read beside these.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

#if defined(__x86_64__)
typedef float F8 __attribute__((vector_size(32)));

constexpr int64_t kFmaSteps = 200000;
constexpr int kFmaChains = 12;

// 12 independent chains hide the latency of two multiply-add units.
__attribute__((target("avx2,fma"))) float fma_chains(float start) {
  F8 chains[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) {
    const float x = start + static_cast<float>(i);
    chains[i] = F8{x, x, x, x, x, x, x, x};
  }
  const F8 factor = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
  for (int64_t step = 0; step < kFmaSteps; ++step) {
    for (F8& chain : chains) chain = __builtin_ia32_vfmaddps256(chain, factor, factor);
  }
  float sum = 0;
  for (const F8& chain : chains) sum += chain[0];
  return sum;
}

void fma_peak(benchmark::State& state) {
  const CpuFeatures features = detect_cpu_features();
  if (!features.avx2 || !features.fma) {
    state.SkipWithError("this machine lacks AVX2 or FMA");
    return;
  }
  ThreadPool pool;
  for (auto _ : state) {
    pool.run([](int thread) { benchmark::DoNotOptimize(fma_chains(static_cast<float>(thread))); });
  }
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * 8 * kFmaChains * kFmaSteps * pool.num_threads(),
                                                benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(fma_peak)->UseRealTime()->Unit(benchmark::kMillisecond);
#endif

void memory_read(benchmark::State& state) {
  ThreadPool pool;
  const int64_t values = state.range(0) / static_cast<int64_t>(sizeof(uint64_t));
  const std::vector<uint64_t> memory(static_cast<size_t>(values), 1);
  const int64_t share = values / pool.num_threads();
  for (auto _ : state) {
    pool.run([&](int thread) {
      constexpr int kSums = 8;
      uint64_t sums[kSums] = {};
      const uint64_t* from = memory.data() + thread * share;
      for (int64_t i = 0; i + kSums <= share; i += kSums) {
        for (int j = 0; j < kSums; ++j) sums[j] += from[i + j];
      }
      benchmark::DoNotOptimize(sums);
    });
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(memory_read)->Arg(256 << 20)->UseRealTime()->Unit(benchmark::kMillisecond);

void empty_run(benchmark::State& state) {
  ThreadPool pool({.num_threads = static_cast<int>(state.range(0))});
  for (auto _ : state) pool.run([](int thread) { benchmark::DoNotOptimize(thread); });
}
BENCHMARK(empty_run)->Arg(1)->Arg(2)->UseRealTime();

void parallel_for_of_empty_tasks(benchmark::State& state) {
  ThreadPool pool;
  for (auto _ : state) {
    pool.parallel_for(state.range(0), [](int64_t task, int) { benchmark::DoNotOptimize(task); });
  }
}
BENCHMARK(parallel_for_of_empty_tasks)->Arg(8)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace quire
