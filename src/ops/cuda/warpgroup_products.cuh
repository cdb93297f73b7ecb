// Products of a warpgroup, four warps of Hopper (compiled for 9.0a alone): tiles of codes of F8_E4M3 in shared memory,
// multiplied while the threads go on. As PTX's manual says of wgmma; the emulated device computes them when they are
// waited for.
//
// A tile has rows of 128 codes below each other and begins at an address of 1,024; of each row the vector of 16 bytes
// at column c lies at c ^ row % 8 (the manual's swizzle of 128 bytes), so that eight rows' vectors of one column lie in
// different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef __CUDACC__
#include <tensor_cores_on_host.h>
#endif

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_HAS_WARPGROUPS 1
#else
#define QUIRE_HAS_WARPGROUPS 0
#endif

namespace quire::ops::cuda {

inline constexpr int kWarpgroup = 128;      // threads
inline constexpr int kSwizzledBytes = 128;  // of a tile's row
inline constexpr int kSwizzledAlign = 1024;
inline constexpr int kCodesAtOnce = 32;  // columns of a product

// Where a vector of a row lies, from the tile's beginning.
__device__ inline int swizzled(int row, int vector) {
  return row * kSwizzledBytes + (vector ^ row % 8) * 16;
}

#if QUIRE_HAS_WARPGROUPS

// What this thread has written to shared memory, or copied there and waited for, is there for products that begin after
// a barrier.
__device__ inline void show_to_products() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Before the first product of a step: sums that threads have used may be written.
__device__ inline void begin_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Products since the last commit are a group, which is waited for as one.
__device__ inline void commit_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  cuda_on_host::commit_products();
#endif
}

// Until at most kGroups groups are under way.
template <int kGroups>
__device__ inline void wait_for_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#else
  cuda_on_host::wait_for_products(kGroups);
#endif
}
// The compiler may not use these sums earlier.
template <int kCount>
__device__ inline void hold([[maybe_unused]] float (&sums)[kCount]) {
#ifdef __CUDACC__
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
#endif
}

#ifdef __CUDACC__
// A tile by its address in shared memory, from which a row's columns begin: groups of 8 rows are 1,024 bytes apart.
__device__ inline uint64_t tile_descriptor(const uint8_t* tile) {
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(tile));
  constexpr uint64_t kSwizzleOf128 = uint64_t{1} << 62;
  return kSwizzleOf128 | uint64_t{kSwizzledAlign >> 4} << 32 | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
#endif

#define QUIRE_EIGHT_SUMS(i)                                                                                     \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])

// sums = left * right, or += where adds is not 0: 64 rows of the left tile by kColumns rows of the right one, over
// kCodesAtOnce columns from where both pointers are. Thread t has of left row t / 32 * 16 + t % 32 / 4, then of that
// and 8, two neighbours of every 8 of right's from 2 (t % 4) on.
template <int kColumns>
__device__ inline void multiply_64_n_32(float (&sums)[kColumns / 2], const uint8_t* left, const uint8_t* right,
                                        int adds) {
  static_assert(kColumns == 64 || kColumns == 128);
#ifdef __CUDACC__
  const uint64_t of_left = tile_descriptor(left);
  const uint64_t of_right = tile_descriptor(right);
  if constexpr (kColumns == 64) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, adds, 1, 1;\n}"
        : QUIRE_EIGHT_SUMS(0), QUIRE_EIGHT_SUMS(8), QUIRE_EIGHT_SUMS(16), QUIRE_EIGHT_SUMS(24)
        : "l"(of_left), "l"(of_right), "r"(adds));
  } else {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, adds, 1, 1;\n}"
        : QUIRE_EIGHT_SUMS(0), QUIRE_EIGHT_SUMS(8), QUIRE_EIGHT_SUMS(16), QUIRE_EIGHT_SUMS(24), QUIRE_EIGHT_SUMS(32),
          QUIRE_EIGHT_SUMS(40), QUIRE_EIGHT_SUMS(48), QUIRE_EIGHT_SUMS(56)
        : "l"(of_left), "l"(of_right), "r"(adds));
  }
#else
  cuda_on_host::multiply_64_n_32(sums, kColumns, left, right, adds != 0);
#endif
}

#undef QUIRE_EIGHT_SUMS
#endif  // QUIRE_HAS_WARPGROUPS

}  // namespace quire::ops::cuda
