#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/peer_sum.h"

namespace quire::ops::cuda {
namespace {

__device__ float4* quads_of(PeerArea& area, uint32_t round) {
  return reinterpret_cast<float4*>(area.halves[round & 1]);
}

// Each block has the same quads on every rank, and so waits for the others' blocks of its number alone.
template <typename Body>
__device__ void for_own_quads(const PeerSum& sum, const Body& body) {
  for (int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; i < sum.count / 4; i += kSumBlocks * kSumThreads)
    body(i);
}

__device__ void lay_open(const PeerSum& sum, uint32_t round) {
  const auto* values = reinterpret_cast<const float4*>(sum.values);
  float4* open = quads_of(*sum.areas[sum.rank], round);
  for_own_quads(sum, [&](int64_t i) { open[i] = values[i]; });
  // Each thread's numbers are seen by all cards before the block goes on to say so.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x < static_cast<unsigned>(sum.size)) {
    volatile uint32_t* came = &sum.areas[threadIdx.x]->came[blockIdx.x][sum.rank];
    *came = round;
  }
}

__device__ void add_up_all(const PeerSum& sum, uint32_t round) {
  PeerArea& own = *sum.areas[sum.rank];
  if (threadIdx.x < static_cast<unsigned>(sum.size)) {
    const volatile uint32_t* came = &own.came[blockIdx.x][threadIdx.x];
    // Another may be a round ahead; the numbers of rounds begin anew at their largest.
    for (int64_t looks = 0; static_cast<int32_t>(*came - round) < 0 && (sum.most_looks == 0 || looks < sum.most_looks);)
      looks += 1;
    __threadfence_system();
  }
  __syncthreads();
  auto* values = reinterpret_cast<float4*>(sum.values);
  for_own_quads(sum, [&](int64_t i) {
    float4 all = quads_of(*sum.areas[0], round)[i];
    for (int rank = 1; rank < sum.size; ++rank) {
      const float4 other = quads_of(*sum.areas[rank], round)[i];
      all = make_float4(all.x + other.x, all.y + other.y, all.z + other.z, all.w + other.w);
    }
    values[i] = all;
  });
  if (threadIdx.x == 0) own.rounds[blockIdx.x] = round;
}

__device__ uint32_t next_round(const PeerSum& sum) {
  return sum.areas[sum.rank]->rounds[blockIdx.x] + 1;
}

#ifdef __CUDACC__
// All of its blocks are on the card at once, so that none waits for a rank that waits for another of its blocks.
__global__ void __launch_bounds__(kSumThreads) peer_sum(const PeerSum sum) {
  begin_kernel();
  const uint32_t round = next_round(sum);
  lay_open(sum, round);
  add_up_all(sum, round);
}
#else
// The emulated device runs one kernel at a time: what waits for another card's is a launch of its own.
__global__ void peer_sum_opened(const PeerSum sum) {
  begin_kernel();
  lay_open(sum, next_round(sum));
}
__global__ void peer_sum_added(const PeerSum sum) {
  begin_kernel();
  add_up_all(sum, next_round(sum));
}
#endif

}  // namespace

void add_up_peers(const PeerSum& sum, cudaStream_t stream) {
#ifdef __CUDACC__
  launch(peer_sum, kSumBlocks, kSumThreads, 0, stream, sum);
#else
  launch(peer_sum_opened, kSumBlocks, kSumThreads, 0, stream, sum);
  cuda_on_host::meet_cards(stream, sum.areas[0], sum.size);
  launch(peer_sum_added, kSumBlocks, kSumThreads, 0, stream, sum);
#endif
}

}  // namespace quire::ops::cuda
