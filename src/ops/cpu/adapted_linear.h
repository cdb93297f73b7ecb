// A product and what adapters add to it, as one region of work: while a product of many rows is computed, which leaves
// memory idle, the factors come that are met next, and they are met before others drive them out of the second cache.
#pragma once

#include <atomic>
#include <deque>
#include <vector>

#include "base/thread_pool.h"
#include "ops/adapted_linear.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/low_rank.h"
#include "ops/cpu/packed_panels.h"

namespace quire::ops::cpu {

// The rows of a product as its kernel takes them.
struct KernelRows {
  LinearKernel kernel;
  const uint8_t* rows;
  int64_t row_bytes;
  float* tiles;  // kLinearScratchFloats a thread
};

// Of whoever calls it again and again, so that steps do not take memory.
struct AdaptedScratch {
  std::vector<LowRankPiece> pieces;
  std::vector<float> shrunk;
  // Neighbouring panels, or others that are counted.
  struct Span {
    int64_t begin;
    int64_t end;
  };
  struct alignas(64) Thread {
    std::vector<MemoryRange> fetched;
    FetchQueue queue;  // of these
    Span panels;
    std::atomic<int64_t> next = 0;  // of the last of them, which others may take
  };
  std::deque<Thread> threads;
};

// Whether the product has enough columns to be cut, and so few rows that they go through a weight together; all columns
// of adapters lie in whole tiles of it.
bool can_multiply_adapted(const AdaptedLinearArgs& args, int64_t row_bytes, int threads);

// REQUIRES: can_multiply_adapted().
void multiply_adapted(const AdaptedLinearArgs& args, const KernelRows& rows, const Kernels& kernels, ThreadPool& pool,
                      AdaptedScratch& scratch);

}  // namespace quire::ops::cpu
