// The emulated device: what kernels may rely on, and what it finds wrong with them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda {

namespace {

using testing::OnCard;

std::vector<float> count_to(size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// out[block] = the sum of the block's part of x; threads beyond `size` leave before anyone waits.
__global__ void sum_blocks(const float* __restrict__ x, int size, float* out) {
  begin_kernel();
  __shared__ float sums[kWarp];
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= size) return;
  const int left = min(size - static_cast<int>(blockIdx.x * blockDim.x), static_cast<int>(blockDim.x));
  const int warps = (left + kWarp - 1) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float sum = x[i];
  const int lanes = min(kWarp, left - warp * kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_down_sync(kAllLanes, sum, offset);
    if (lane + offset < lanes) sum += other;
  }
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int w = 0; w < warps; ++w) sum += sums[w];
  out[blockIdx.x] = sum;
}

TEST(CudaOnHost, BlocksSumThroughShufflesAndSharedMemoryWithPartialWarpsAndEarlyExits) {
  for (const int size : {1, 31, 32, 33, 100, 256, 999, 1024, 2500}) {
    for (const unsigned threads : {32u, 48u, 256u, 1024u}) {
      for (const bool reverse : {false, true}) {
        quire_cuda_on_host_reverse(reverse);
        const OnCard<float> x(count_to(static_cast<size_t>(size)));
        const unsigned blocks = ceil_div(size, threads);
        const OnCard<float> out(std::vector<float>(blocks, -1.0f));
        launch(sum_blocks, blocks, threads, 0, nullptr, x.data(), size, out.data());
        for (unsigned b = 0; b < blocks; ++b) {
          const int first = static_cast<int>(b * threads) + 1;
          const int last = std::min(static_cast<int>((b + 1) * threads), size);
          EXPECT_EQ(out.read()[b], static_cast<float>((first + last) * (last - first + 1) / 2))
              << size << " " << threads;
        }
      }
    }
  }
  quire_cuda_on_host_reverse(false);
}

__global__ void sum_warps(const float* x, float* sums, float* maxima) {
  begin_kernel();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[i] = warp_sum(x[i]);
  maxima[i] = warp_max(x[i]);
}

TEST(CudaOnHost, WarpsSumAndFindTheirLargest) {
  const OnCard<float> x(count_to(256));
  const OnCard<float> sums(count_to(256));
  const OnCard<float> maxima(count_to(256));
  launch(sum_warps, 2, 128, 0, nullptr, x.data(), sums.data(), maxima.data());
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(sums.read()[static_cast<size_t>(i)], static_cast<float>(i / 32 * 32 * 32 + 33 * 16));
    EXPECT_EQ(maxima.read()[static_cast<size_t>(i)], static_cast<float>(i / 32 * 32 + 32));
  }
}

// Half warps meet by themselves, then all; a lane reads what its neighbours had.
__global__ void meet_in_halves(int* out) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x);
  int value = lane;
  for (int round = 0; round < 4; ++round) {
    value = lane < 16 ? __shfl_xor_sync(0xffffu, value, 1) : __shfl_up_sync(0xffff0000u, value, 1, 16);
    value += __shfl_sync(kAllLanes, value, round);
  }
  const unsigned odd = __ballot_sync(kAllLanes, lane % 2);
  const int any = __any_sync(kAllLanes, lane == 7);
  const int all = __all_sync(kAllLanes, lane < 31);
  __syncwarp();
  out[lane] = value + (odd == 0xaaaaaaaau ? 1000 : 0) + (any ? 2000 : 0) + (all ? 4000 : 0);
}

TEST(CudaOnHost, LanesMeetInGroups) {
  std::vector<int> expected(32);
  std::iota(expected.begin(), expected.end(), 0);
  for (int round = 0; round < 4; ++round) {
    std::vector<int> next(32);
    for (size_t i = 0; i < 32; ++i) next[i] = i < 16 ? expected[i ^ 1] : expected[i == 16 ? 16 : i - 1];
    for (size_t i = 0; i < 32; ++i) expected[i] = next[i] + next[static_cast<size_t>(round)];
  }
  for (int& value : expected) value += 3000;
  const OnCard<int> out(std::vector<int>(32, -1));
  launch(meet_in_halves, 1, 32, 0, nullptr, out.data());
  EXPECT_EQ(out.read(), expected);
}

__global__ void turn_round(float* x, int size) {
  begin_kernel();
  auto* copy = dynamic_shared<float>();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) copy[i] = x[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) x[i] = copy[size - 1 - i];
}
__global__ void read_unwritten(float* out) {
  begin_kernel();
  out[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}
__global__ void do_not_wait(float* x) {
  x[0] = 1.0f;
}

__global__ void write_too_far(int at) {
  begin_kernel();
  dynamic_shared<float>()[at] = 1.0f;
}

TEST(CudaOnHost, DynamicSharedMemoryBeginsAsGarbage) {
  const OnCard<float> x(count_to(1000));
  launch(turn_round, 1, 96, 1000 * sizeof(float), nullptr, x.data(), 1000);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(x.read()[static_cast<size_t>(i)], static_cast<float>(1000 - i));
  launch(read_unwritten, 1, 8, 32, nullptr, x.data());
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(x.read()[i]));
}

TEST(CudaOnHost, SharedMemoryBeyondTheUsualMustBeAskedFor) {
  const OnCard<float> x(count_to(20000));
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 32;
  config.dynamicSmemBytes = 80000;
  EXPECT_EQ(cudaLaunchKernelEx(&config, turn_round, x.data(), 20000), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(turn_round, cudaFuncAttributeMaxDynamicSharedMemorySize, 80000), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, turn_round, x.data(), 20000), cudaSuccess);
  EXPECT_EQ(x.read()[0], 20000.0f);
  config.blockDim = 1025;
  EXPECT_EQ(cudaLaunchKernelEx(&config, turn_round, x.data(), 20000), cudaErrorInvalidConfiguration);
}

__global__ void count(int* counts, float* sum, int* largest) {
  begin_kernel();
  const auto thread = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * 100 + static_cast<int>(threadIdx.y);
  atomicAdd(&counts[thread % 7], 1);
  atomicAdd(sum, 0.5f);
  atomicMax(largest, thread);
}

TEST(CudaOnHost, AtomicsCountAcrossBlocks) {
  const OnCard<int> counts(std::vector<int>(7, 0));
  const OnCard<float> sum({0.0f});
  const OnCard<int> largest({-1});
  launch(count, dim3(3, 2), dim3(1, 100), 0, nullptr, counts.data(), sum.data(), largest.data());
  const std::vector<int> read = counts.read();
  EXPECT_EQ(std::accumulate(read.begin(), read.end(), 0), 600);
  EXPECT_EQ(read[0], 86);
  EXPECT_EQ(sum.read()[0], 300.0f);
  EXPECT_EQ(largest.read()[0], 599);
}

TEST(CudaOnHost, PointersAreKnownForWhatTheyAre) {
  void* device = nullptr;
  void* host = nullptr;
  std::vector<char> own(8192);
  ASSERT_EQ(cudaMalloc(&device, 100), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&host, 100), cudaSuccess);
  cudaPointerAttributes attributes;
  const auto type = [&](void* at) {
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, at), cudaSuccess);
    return attributes.type;
  };
  EXPECT_EQ(type(device), cudaMemoryTypeDevice);
  EXPECT_EQ(type(static_cast<char*>(device) + 99), cudaMemoryTypeDevice);
  EXPECT_EQ(type(host), cudaMemoryTypeHost);
  EXPECT_EQ(attributes.devicePointer, host);
  EXPECT_EQ(type(own.data()), cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault), cudaSuccess);
  EXPECT_EQ(type(own.data() + 8191), cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(type(own.data()), cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaMemcpy(device, own.data(), 101, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(own.data(), host, 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_EQ(cudaFree(own.data()), cudaErrorInvalidValue);
}

TEST(CudaOnHost, MemoryRunsOutAndComesBack) {
  size_t before = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  void* most = nullptr;
  void* more = nullptr;
  ASSERT_EQ(cudaMalloc(&most, before - 4096), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 8192), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(most), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 8192), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  size_t after = 0;
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before, after);
}

TEST(CudaOnHost, LateStreamsAreAsFarAsSomebodyWaitsForThem) {
  const OnCard<float> x(count_to(4));
  const OnCard<float> y(4, 0.0f);
  cudaStream_t late = nullptr;
  cudaStream_t other = nullptr;
  cudaEvent_t copied = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&late, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&copied), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(y.data(), x.data(), 16, cudaMemcpyDeviceToDevice, late), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(copied, late), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(x.data(), 0, 16, late), cudaSuccess);
  EXPECT_EQ(y.read()[3], 0.0f);
  ASSERT_EQ(cudaStreamWaitEvent(other, copied), cudaSuccess);
  EXPECT_EQ(y.read()[3], 4.0f);
  EXPECT_EQ(x.read()[3], 4.0f);
  ASSERT_EQ(cudaStreamSynchronize(late), cudaSuccess);
  EXPECT_EQ(x.read()[3], 0.0f);
  EXPECT_EQ(cudaEventDestroy(copied), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(late), cudaSuccess);
}

TEST(CudaOnHost, EveryHalfIsItself) {
  for (unsigned code = 0; code < 0x10000u; ++code) {
    const auto bits = static_cast<unsigned short>(code);
    const float value = __half2float(__ushort_as_half(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(__half_as_ushort(__float2half_rn(value)), bits);
    const float brain = __bfloat162float(__ushort_as_bfloat16(bits));
    if (!std::isnan(brain)) {
      ASSERT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(brain)), bits);
    }
    const int exponent = std::max(static_cast<int>(code >> 10 & 31), 1);
    const unsigned units = (code & 1023) + ((code >> 10 & 31) == 0 ? 0u : 1024u);
    if ((code & 0x7c00u) != 0x7c00u) {
      ASSERT_EQ(std::fabs(value), std::ldexp(static_cast<float>(units), exponent - 25));
    }
  }
  EXPECT_EQ(__half_as_ushort(__float2half_rn(65519.0f)), 0x7bff);
  EXPECT_EQ(__half_as_ushort(__float2half_rn(65520.0f)), 0x7c00);
  EXPECT_EQ(__half_as_ushort(__float2half_rn(0x1.8p-25f)), 0x0001);
  EXPECT_EQ(__half_as_ushort(__float2half_rn(0x1p-25f)), 0x0000);
  EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16_rn(1.00390625f)), 0x3f80);
}

// --- mistakes

using CudaOnHostDeathTest = ::testing::Test;

TEST(CudaOnHostDeathTest, TheHostCannotReadWhatIsTheCards) {
  const OnCard<float> x(count_to(100));
  EXPECT_EQ(x.read()[99], 100.0f);
  EXPECT_DEATH(std::fprintf(stderr, "%f", static_cast<double>(x.data()[0])), "");
  quire_cuda_on_host_protect(false);
  EXPECT_EQ(x.data()[99], 100.0f);
  quire_cuda_on_host_protect(true);
  EXPECT_DEATH(x.data()[0] = 1, "");
}

__global__ void wait_apart(float* out) {
  begin_kernel();
  if (threadIdx.x < 40) {
    __syncthreads();
    out[0] = 1;
  } else {
    out[1] = __shfl_xor_sync(kAllLanes, out[2], 1);
  }
}
__global__ void shuffle_apart(float* out) {
  begin_kernel();
  out[0] = threadIdx.x < 16 ? warp_max(2.0f) : static_cast<float>(__ballot_sync(kAllLanes, 1));
}

TEST(CudaOnHostDeathTest, ThreadsThatWaitForEachOtherForEverAreFound) {
  const OnCard<float> x(count_to(100));
  EXPECT_DEATH(launch(wait_apart, dim3(2, 3), 64, 0, nullptr, x.data()),
               "deadlock: .* of block \\(0, 0, 0\\) of a grid of 2 x 3 x 1 blocks .* 64 threads live, 40 at "
               "__syncthreads, 24 waiting for lanes");
  EXPECT_DEATH(launch(shuffle_apart, 1, 32, 0, nullptr, x.data()), "different calls");
}

TEST(CudaOnHostDeathTest, KernelsThatDoNotWaitForThoseBeforeThemAreFound) {
  const OnCard<float> x(count_to(1));
  EXPECT_DEATH(launch(do_not_wait, 1, 1, 0, nullptr, x.data()), "did not wait for them");
}

TEST(CudaOnHostDeathTest, WritesPastTheEndAreFound) {
  EXPECT_DEATH(launch(write_too_far, 1, 1, 16, nullptr, 4), "past the end of shared memory|AddressSanitizer");
  EXPECT_DEATH(
      {
        void* memory = nullptr;
        cudaMalloc(&memory, 100);
        launch(turn_round, 1, 32, 108, nullptr, static_cast<float*>(memory), 27);
        cudaFree(memory);
      },
      "past the end of device memory|AddressSanitizer");
}

}  // namespace
}  // namespace quire::ops::cuda
