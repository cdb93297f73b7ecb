// Runs a kernel's grid: blocks one after the other, the threads of a block as fibers in turns. A thread runs until it
// waits for others or ends; a thread that has not begun takes over the fiber of one that ended, so that a block whose
// threads never wait is a loop.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "device_memory.h"
#include "fibers.h"
#include "idle_card.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace quire::ops::cuda {
// What dynamic_shared() of src/ops/cuda/device.cuh names.
alignas(128) thread_local unsigned char quire_dynamic_shared[256 << 10];
// g++ 12 calls the initialisation of a thread_local that is declared within a function whether there is one or not.
void initialise_quire_dynamic_shared() __asm__("_ZTHN5quire3ops4cuda20quire_dynamic_sharedE");
void initialise_quire_dynamic_shared() {}
}  // namespace quire::ops::cuda

// The same memory as FlashInfer's kernels name it.
namespace flashinfer {
extern thread_local unsigned char smem[256 << 10] __attribute__((alias("_ZN5quire3ops4cuda20quire_dynamic_sharedE")));
void initialise_smem() __asm__("_ZTHN10flashinfer4smemE");
void initialise_smem() {}
namespace mla {
extern thread_local unsigned char smem[256 << 10] __attribute__((alias("_ZN5quire3ops4cuda20quire_dynamic_sharedE")));
void initialise_smem() __asm__("_ZTHN10flashinfer3mla4smemE");
void initialise_smem() {}
}  // namespace mla
}  // namespace flashinfer

namespace quire::cuda_on_host {

unsigned running_thread = 0;

namespace {

using ops::cuda::quire_dynamic_shared;

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr size_t kMaxStaticShared = 48 << 10;  // without asking for more
constexpr size_t kMaxShared = 227 << 10;
constexpr unsigned kMaxGridYZ = 65535;
constexpr unsigned char kGarbage = 0xff;
constexpr size_t kRedZone = 256;  // behind the dynamic shared memory
constexpr unsigned char kRedByte = 0xa5;

struct Warp {
  unsigned alive = 0;
  unsigned runnable = 0;  // those that have not begun included
  unsigned begun = 0;
  unsigned meeting = 0;   // wait in meet_warp()
  unsigned at_block = 0;  // wait in meet_block()
  // Of the lanes that meet.
  uint64_t meetings[kWarp];  // see meeting_of()
  unsigned sources[kWarp];
  uint64_t values[kWarp];
  uint64_t given[kWarp];
};

// Lanes of the same mask that call the same are at the same meeting.
constexpr uint64_t meeting_of(WarpCall call, unsigned mask) {
  return uint64_t{mask} << 8 | static_cast<uint64_t>(call);
}
constexpr unsigned mask_of(uint64_t meeting) {
  return static_cast<unsigned>(meeting >> 8);
}
constexpr WarpCall call_of(uint64_t meeting) {
  return static_cast<WarpCall>(meeting & 0xff);
}

class Card {
 public:
  static Card& instance() {
    static Card& card = *new Card;
    return card;
  }

  cudaError_t run(const cudaLaunchConfig_t& config, bool overlaps, const void* kernel, void (*run_thread)(void*),
                  void* arguments);
  cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
  void remember(const void* kernel, LaunchByAddresses launch) { launches_[kernel] = launch; }
  LaunchByAddresses launch_of(const void* kernel) const {
    const auto launch = launches_.find(kernel);
    return launch == launches_.end() ? nullptr : launch->second;
  }
  void reverse(bool reverse) { reverse_ = reverse; }

  // Of the running thread.
  uint64_t meet_warp(WarpCall call, unsigned mask, uint64_t value, int source);
  void meet_block();
  void wait_for_kernels_before() { has_waited_[running_thread] = true; }

 private:
  void run_block(size_t shared_bytes);
  [[noreturn]] void work();
  int idle_fiber();
  int next_runnable() const;
  int first_of_other_warps(int own_warp) const;
  int first_lane(unsigned lanes) const {
    return reverse_ ? kWarp - 1 - std::countl_zero(lanes) : std::countr_zero(lanes);
  }
  void enter(int thread);
  void wait();
  void end_thread();
  void give_up(const char* what) const;
  bool complete(const Warp& warp, unsigned mask) const { return (warp.alive & mask & ~warp.meeting) == 0; }
  void let_go(Warp& warp, unsigned mask);
  void let_block_go();

  bool reverse_ = false;
  std::map<const void*, size_t> shared_limits_;
  std::map<const void*, LaunchByAddresses> launches_;

  // Of the launch.
  bool overlaps_ = false;
  void (*run_thread_)(void*) = nullptr;
  void* arguments_ = nullptr;
  int num_threads_ = 0;
  int num_warps_ = 0;
  std::array<uint3, kMaxThreads> indices_;

  // Of the block.
  std::array<Warp, kMaxWarps> warps_;
  int num_alive_ = 0;
  int num_at_block_ = 0;
  std::array<bool, kMaxThreads> has_waited_;  // for the kernels before
  std::array<int, kMaxThreads> fiber_of_;     // of threads that have begun

  Fibers fibers_{[] { instance().work(); }};
  std::vector<int> idle_;
};

// --- fibers

int Card::idle_fiber() {
  if (idle_.empty()) return fibers_.add();
  const int fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

// A fiber's whole life: threads that begin on it, one after the other.
[[noreturn]] void Card::work() {
  for (;;) {
    run_thread_(arguments_);
    end_thread();
    const int next = next_runnable();
    if (next < 0 && num_alive_ > 0) give_up("deadlock: every thread waits for another");
    if (next >= 0 && (warps_[static_cast<size_t>(next / kWarp)].begun >> (next % kWarp) & 1u) == 0) {
      enter(next);
      continue;
    }
    idle_.push_back(fibers_.running());
    if (next >= 0) enter(next);
    fibers_.switch_to(next >= 0 ? fiber_of_[static_cast<size_t>(next)] : Fibers::kHost);
  }
}

// --- threads

// The thread whose turn is after the running one's; -1: all wait or have ended. A warp runs on until it waits for
// others: what its lanes have on their stacks stays in the processor's nearest cache.
inline int Card::next_runnable() const {
  const int own_warp = static_cast<int>(running_thread / kWarp);
  const unsigned lane_bit = 1u << (running_thread % kWarp);
  const unsigned own = warps_[static_cast<size_t>(own_warp)].runnable;
  if (own != 0) {
    const unsigned later = own & (reverse_ ? lane_bit - 1 : ~(lane_bit | (lane_bit - 1)));
    return own_warp * kWarp + first_lane(later != 0 ? later : own);
  }
  return first_of_other_warps(own_warp);
}

int Card::first_of_other_warps(int own_warp) const {
  for (int i = 1, index = own_warp; i < num_warps_; ++i) {
    index += reverse_ ? -1 : 1;
    if (index < 0) index = num_warps_ - 1;
    if (index == num_warps_) index = 0;
    if (const unsigned lanes = warps_[static_cast<size_t>(index)].runnable; lanes != 0)
      return index * kWarp + first_lane(lanes);
  }
  return -1;
}

// Makes `thread` the running one, on the fiber that it has or else on the one that runs.
inline void Card::enter(int thread) {
  Warp& warp = warps_[static_cast<size_t>(thread / kWarp)];
  const unsigned bit = 1u << (thread % kWarp);
  if ((warp.begun & bit) == 0) {
    warp.begun |= bit;
    fiber_of_[static_cast<size_t>(thread)] = fibers_.running();
  }
  running_thread = static_cast<unsigned>(thread);
  threadIdx = indices_[static_cast<size_t>(thread)];
}

// The running thread has said what it waits for. Part of who calls it, as switch_to() wants.
[[gnu::always_inline]] inline void Card::wait() {
  const unsigned own = running_thread;
  const int next = next_runnable();
  if (next < 0) give_up("deadlock: every thread waits for another");
  if ((warps_[static_cast<size_t>(next / kWarp)].begun >> (next % kWarp) & 1u) != 0) {
    enter(next);
    fibers_.switch_to(fiber_of_[static_cast<size_t>(next)]);
  } else {
    const int fiber = idle_fiber();
    enter(next);
    fiber_of_[static_cast<size_t>(next)] = fiber;
    fibers_.switch_to(fiber);
  }
  if (running_thread != own) give_up("threads were mixed up: a bug of grid.cpp");
}

void Card::end_thread() {
  if (overlaps_ && !has_waited_[running_thread])
    give_up("a kernel that begins before those before it have ended did not wait for them");
  Warp& warp = warps_[running_thread / kWarp];
  const unsigned bit = 1u << (running_thread % kWarp);
  warp.alive &= ~bit;
  warp.runnable &= ~bit;
  --num_alive_;
  if (num_at_block_ > 0 && num_at_block_ == num_alive_) let_block_go();
  for (unsigned waiting = warp.meeting; waiting != 0; waiting &= waiting - 1) {
    const unsigned mask = mask_of(warp.meetings[std::countr_zero(waiting)]);
    if ((warp.meeting & waiting & -waiting) != 0 && complete(warp, mask)) let_go(warp, mask);
  }
}

void Card::give_up(const char* what) const {
  int in_warps = 0;
  for (int w = 0; w < num_warps_; ++w) in_warps += std::popcount(warps_[static_cast<size_t>(w)].meeting);
  std::fprintf(stderr,
               "cuda_on_host: %s: thread (%u, %u, %u) of block (%u, %u, %u) of a grid of %u x %u x %u blocks "
               "of %u x %u x %u; %d threads live, %d at __syncthreads, %d waiting for lanes of their warp\n",
               what, threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y,
               gridDim.z, blockDim.x, blockDim.y, blockDim.z, num_alive_, num_at_block_, in_warps);
  std::abort();
}

// --- meetings

void Card::let_block_go() {
  num_at_block_ = 0;
  for (int w = 0; w < num_warps_; ++w) {
    Warp& warp = warps_[static_cast<size_t>(w)];
    warp.runnable |= warp.at_block;
    warp.at_block = 0;
  }
}

[[gnu::always_inline]] inline void Card::meet_block() {
  Warp& warp = warps_[running_thread / kWarp];
  const unsigned bit = 1u << (running_thread % kWarp);
  warp.at_block |= bit;
  warp.runnable &= ~bit;
  if (++num_at_block_ == num_alive_) {
    let_block_go();
  } else {
    wait();
  }
}

void Card::let_go(Warp& warp, unsigned mask) {
  const unsigned group = mask & warp.alive;
  const uint64_t meeting = warp.meetings[std::countr_zero(group)];
  bool differ = mask_of(meeting) != mask;
  for (unsigned lane = 0; lane < kWarp; ++lane) differ |= (group >> lane & 1u) != 0 && warp.meetings[lane] != meeting;
  if (differ) give_up("lanes of a warp meet in different calls or with different masks");
  switch (call_of(meeting)) {
    case WarpCall::kSync:
      break;
    case WarpCall::kBallot: {
      uint64_t ballot = 0;
      for (unsigned left = group; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        ballot |= warp.values[lane] << lane;
      }
      for (unsigned left = group; left != 0; left &= left - 1) warp.given[std::countr_zero(left)] = ballot;
      break;
    }
    case WarpCall::kShuffle:
      // A lane that has no value to give gives garbage.
      if (group == ~0u) {
        for (unsigned lane = 0; lane < kWarp; ++lane) warp.given[lane] = warp.values[warp.sources[lane]];
        break;
      }
      for (unsigned left = group; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        const unsigned source = warp.sources[lane];
        warp.given[lane] = (group >> source & 1u) != 0 ? warp.values[source] : ~uint64_t{0};
      }
  }
  warp.meeting &= ~group;
  warp.runnable |= group;
}

[[gnu::always_inline]] inline uint64_t Card::meet_warp(WarpCall call, unsigned mask, uint64_t value, int source) {
  Warp& warp = warps_[running_thread / kWarp];
  const unsigned lane = running_thread % kWarp;
  const unsigned bit = 1u << lane;
  if ((mask & bit) == 0) give_up("a lane meets others with a mask that lacks it");
  warp.meetings[lane] = meeting_of(call, mask);
  warp.sources[lane] = static_cast<unsigned>(source) % kWarp;
  warp.values[lane] = value;
  warp.meeting |= bit;
  warp.runnable &= ~bit;
  if (complete(warp, mask)) {
    let_go(warp, mask);
  } else {
    wait();
  }
  return warp.given[lane];
}

// --- grids

void Card::run_block(size_t shared_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(quire_dynamic_shared, sizeof(quire_dynamic_shared));
#endif
  std::memset(quire_dynamic_shared, kGarbage, shared_bytes);
  std::memset(quire_dynamic_shared + shared_bytes, kRedByte, kRedZone);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(quire_dynamic_shared + shared_bytes, sizeof(quire_dynamic_shared) - shared_bytes);
#endif
  for (int w = 0; w < num_warps_; ++w) {
    const int lanes = std::min(kWarp, num_threads_ - w * kWarp);
    Warp& warp = warps_[static_cast<size_t>(w)];
    warp.alive = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    warp.runnable = warp.alive;
    warp.begun = warp.meeting = warp.at_block = 0;
  }
  num_alive_ = num_threads_;
  num_at_block_ = 0;
  has_waited_.fill(false);
  const int first = reverse_ ? num_threads_ - 1 : 0;
  const int fiber = idle_fiber();
  enter(first);
  fiber_of_[static_cast<size_t>(first)] = fiber;
  fibers_.switch_to(fiber);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(quire_dynamic_shared, sizeof(quire_dynamic_shared));
#endif
  for (size_t i = 0; i < kRedZone; ++i) {
    if (quire_dynamic_shared[shared_bytes + i] != kRedByte)
      give_up("something was written past the end of shared memory");
  }
}

cudaError_t Card::run(const cudaLaunchConfig_t& config, bool overlaps, const void* kernel, void (*run_thread)(void*),
                      void* arguments) {
  const auto limit = shared_limits_.find(kernel);
  const dim3 block = config.blockDim;
  const dim3 grid = config.gridDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > (limit == shared_limits_.end() ? kMaxStaticShared : limit->second))
    return cudaErrorInvalidValue;
  const DeviceMemory::Open open;
  overlaps_ = overlaps;
  run_thread_ = run_thread;
  arguments_ = arguments;
  num_threads_ = static_cast<int>(threads);
  num_warps_ = (num_threads_ + kWarp - 1) / kWarp;
  gridDim = grid;
  blockDim = block;
  for (unsigned i = 0; i < threads; ++i) indices_[i] = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t b = reverse_ ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    run_block(config.dynamicSmemBytes);
  }
  return cudaSuccess;
}

cudaError_t Card::set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > kMaxShared) return cudaErrorInvalidValue;
  shared_limits_[kernel] = std::max(static_cast<size_t>(value), kMaxStaticShared);
  return cudaSuccess;
}

}  // namespace

cudaError_t run_grid(const cudaLaunchConfig_t& config, bool overlaps, const void* kernel, void (*run_thread)(void*),
                     void* arguments) {
  if (DeviceMemory::idle()) {
    note(Call::kLaunch);
    return cudaSuccess;
  }
  const std::lock_guard lock(card_mutex());
  return Card::instance().run(config, overlaps, kernel, run_thread, arguments);
}
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const std::lock_guard lock(card_mutex());
  return Card::instance().set_attribute(kernel, attribute, value);
}
void remember(const void* kernel, LaunchByAddresses launch) {
  const std::lock_guard lock(card_mutex());
  Card::instance().remember(kernel, launch);
}
LaunchByAddresses launch_of(const void* kernel) {
  const std::lock_guard lock(card_mutex());
  return Card::instance().launch_of(kernel);
}
uint64_t meet_warp(WarpCall call, unsigned mask, uint64_t value, int source_lane) {
  return Card::instance().meet_warp(call, mask, value, source_lane);
}
void meet_block() {
  Card::instance().meet_block();
}
void wait_for_kernels_before() {
  Card::instance().wait_for_kernels_before();
}

}  // namespace quire::cuda_on_host

void quire_cuda_on_host_reverse(bool reverse) {
  const std::lock_guard lock(quire::cuda_on_host::card_mutex());
  quire::cuda_on_host::Card::instance().reverse(reverse);
}
