// Sums of small messages straight out of the other cards' memory, in one launch: each rank lays its numbers open, tells
// the others, waits for theirs and adds up all (after the custom all-reduce of vLLM, and one-shot all-reduces before
// it). A sum's order is that of the ranks, ((x0 + x1) + x2) + ..., whatever its size.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace quire::ops::cuda {

inline constexpr int kMostPeers = 8;
inline constexpr int kSumBlocks = 32;    // of every launch, whose blocks meet those of the same number
inline constexpr int kSumThreads = 256;  // REQUIRES: kMostPeers at least
inline constexpr int64_t kMostSumBytes = int64_t{1} << 20;

// What a rank lays open, in its card's memory. All zeros at first.
struct PeerArea {
  // came[b][q]: the last round in which block b of rank q was ready. Written by rank q.
  uint32_t came[kSumBlocks][kMostPeers];
  uint32_t rounds[kSumBlocks];  // that block b of this rank has been through; its own
  // Of the round, even or odd. A rank writes to a half again two rounds later: by then all have come to the round
  // between, and so have read what was there.
  alignas(16) float halves[2][kMostSumBytes / sizeof(float)];
};

struct PeerSum {
  float* values = nullptr;  // are replaced by their sum
  int64_t count = 0;        // REQUIRES: a multiple of 4, at most kMostSumBytes
  int rank = 0;
  int size = 1;
  // So many looks at another's flag, then it is taken for ready whatever it says; 0: until it is.
  int64_t most_looks = 0;
  PeerArea* areas[kMostPeers] = {};  // of all ranks, in their order
};

// peer_sum.cu: in its turn on the stream, and may be captured. All ranks make the same calls in the same order.
void add_up_peers(const PeerSum& sum, cudaStream_t stream);

}  // namespace quire::ops::cuda
