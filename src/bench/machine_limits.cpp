#include "bench/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/stopwatch.h"

namespace quire::bench {
namespace {

constexpr int64_t kSteps = 100'000;
// Enough independent sums to hide the latency of two multiply-add units, few enough to stay in registers.
constexpr int kChains = 12;

// A loop of `kSteps` x kChains instructions on registers, and how many operations each of them is.
struct UnitTest {
  const char* name;
  double operations;  // of one instruction; a multiply-add counts two
  void (*loop)();
};

#if defined(__x86_64__)
using Vector256 = float __attribute__((vector_size(32)));
using Vector512 = float __attribute__((vector_size(64)));

// Inline assembly keeps the compiler from seeing that nothing is done with the sums.
__attribute__((target("avx2,fma"))) void float_avx2() {
  Vector256 sums[kChains] = {};
  const Vector256 factor = {};
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[i]) : "x"(factor));
  }
}

__attribute__((target("avx512f"))) void float_avx512() {
  Vector512 sums[kChains] = {};
  const Vector512 factor = {};
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[i]) : "v"(factor));
  }
}

// Byte products in pairs to 16 bits, those in pairs to 32 bits, added up: the widest exact way that AVX2 has.
__attribute__((target("avx2"))) void int8_avx2() {
  Vector256 sums[kChains] = {};
  Vector256 bytes = {};
  Vector256 ones = {};
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      Vector256 pairs;
      asm volatile(
          "vpmaddubsw %2, %2, %1\n\t"
          "vpmaddwd %3, %1, %1\n\t"
          "vpaddd %1, %0, %0"
          : "+x"(sums[i]), "=&x"(pairs)
          : "x"(bytes), "x"(ones));
    }
  }
}

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512_vnni() {
  Vector512 sums[kChains] = {};
  const Vector512 bytes = {};
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(bytes));
  }
}

UnitTest float_unit() {
  if (__builtin_cpu_supports("avx512f")) return {"AVX-512 FMA", 2 * 16, float_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {"AVX2 FMA", 2 * 8, float_avx2};
  return {"", 0, nullptr};
}
UnitTest int8_unit() {
  if (__builtin_cpu_supports("avx512vnni")) return {"AVX-512 VNNI", 2 * 64, int8_avx512_vnni};
  if (__builtin_cpu_supports("avx2")) return {"AVX2 maddubs, madd, add", 2 * 32, int8_avx2};
  return {"", 0, nullptr};
}
#else
UnitTest float_unit() {
  return {"", 0, nullptr};
}
UnitTest int8_unit() {
  return {"", 0, nullptr};
}
#endif

// What any machine can run, left to the compiler's vectors.
volatile float portable_result;
void portable_loop() {
  float sums[16] = {};
  for (int64_t step = 0; step < kSteps; ++step) {
    for (float& sum : sums) sum = sum * 0.5f + 0.5f;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  portable_result = total;
}

double operations_per_second(ThreadPool& pool, const UnitTest& unit) {
  const double seconds = least_seconds(0.15, [&] { pool.run([&](int) { unit.loop(); }); });
  return unit.operations * kSteps * kChains * pool.num_threads() / seconds;
}

// Over memory of the kernels' own allocator: its pages may be larger than the usual ones, and are then read faster.
Result<double> read_bytes_per_second(ThreadPool& pool, Allocator& allocator) {
  constexpr int64_t kValues = (256 << 20) / static_cast<int64_t>(sizeof(uint64_t));
  Buffer memory(allocator, kValues * sizeof(uint64_t));
  if (memory.data() == nullptr) return resource_exhausted("no memory to read from ({} MB)", (kValues * 8) >> 20);
  std::fill_n(memory.as<uint64_t>(), kValues, uint64_t{1});
  std::vector<uint64_t> results(static_cast<size_t>(pool.num_threads()));
  const int64_t share = kValues / pool.num_threads();
  const double seconds = least_seconds(0.4, [&] {
    pool.run([&](int thread) {
      constexpr int kSums = 8;
      uint64_t sums[kSums] = {};
      const uint64_t* from = memory.as<uint64_t>() + thread * share;
      for (int64_t i = 0; i + kSums <= share; i += kSums) {
        for (int j = 0; j < kSums; ++j) sums[j] += from[i + j];
      }
      uint64_t total = 0;
      for (const uint64_t sum : sums) total += sum;
      results[static_cast<size_t>(thread)] = total;
    });
    keep(results.data());
  });
  return static_cast<double>(share * pool.num_threads()) * sizeof(uint64_t) / seconds;
}

}  // namespace

Result<MachineLimits> measure_machine(ThreadPool& pool, Allocator& allocator) {
  MachineLimits limits;
  UnitTest floats = float_unit();
  // One pass of the portable loop is 16 multiply-adds a step, counted in chains.
  if (floats.loop == nullptr) floats = {"compiler's vectors", 2.0 * 16 / kChains, portable_loop};
  limits.float_unit = floats.name;
  limits.float_flops = operations_per_second(pool, floats);
  if (const UnitTest bytes = int8_unit(); bytes.loop != nullptr) {
    limits.int8_unit = bytes.name;
    limits.int8_ops = operations_per_second(pool, bytes);
  }
  QUIRE_ASSIGN_OR_RETURN(limits.memory_bytes_per_second, read_bytes_per_second(pool, allocator));
  constexpr int kRegions = 100;
  limits.parallel_region_seconds = least_seconds(0.1,
                                                 [&] {
                                                   for (int i = 0; i < kRegions; ++i) pool.run([](int) {});
                                                 }) /
                                   kRegions;
  return limits;
}

}  // namespace quire::bench
