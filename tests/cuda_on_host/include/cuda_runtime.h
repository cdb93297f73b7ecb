// The language and the intrinsics that quire's kernels use, for the emulated device: plain C++, one thread of a
// block after the other (grid.cpp). Warnings of `#pragma unroll` are for -Wno-unknown-pragmas.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((unused))
#define __grid_constant__
// One OS thread runs all of a block, and one block at a time.
#define __shared__ thread_local
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// --- vectors

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define QUIRE_VECTORS(name, type, alignment)                        \
  struct alignas(2 * alignment) name##2 {                           \
    type x, y;                                                      \
  };                                                                \
  struct alignas(4 * alignment > 16 ? 16 : 4 * alignment) name##4 { \
    type x, y, z, w;                                                \
  };                                                                \
  inline name##2 make_##name##2(type x, type y) {                   \
    return {x, y};                                                  \
  }                                                                 \
  inline name##4 make_##name##4(type x, type y, type z, type w) {   \
    return {x, y, z, w};                                            \
  }
QUIRE_VECTORS(char, signed char, 1)
QUIRE_VECTORS(uchar, unsigned char, 1)
QUIRE_VECTORS(short, short, 2)
QUIRE_VECTORS(ushort, unsigned short, 2)
QUIRE_VECTORS(int, int, 4)
QUIRE_VECTORS(uint, unsigned, 4)
QUIRE_VECTORS(float, float, 4)
QUIRE_VECTORS(longlong, long long, 8)
QUIRE_VECTORS(ulonglong, unsigned long long, 8)
QUIRE_VECTORS(double, double, 8)
#undef QUIRE_VECTORS
struct float3 {
  float x, y, z;
};
inline float3 make_float3(float x, float y, float z) {
  return {x, y, z};
}
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) {
  return {x, y, z};
}

// --- launches

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
  char pad[64];
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace quire::cuda_on_host {

// overlaps: the kernel may begin while those before it run, and each of its threads must wait for them.
cudaError_t run_grid(const cudaLaunchConfig_t& config, bool overlaps, const void* kernel, void (*run_thread)(void*),
                     void* arguments);
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
// How a kernel is launched whose type was forgotten (cudaLaunchKernel): with the addresses of its arguments.
using LaunchByAddresses = cudaError_t (*)(const cudaLaunchConfig_t& config, const void* kernel, void** arguments);
void remember(const void* kernel, LaunchByAddresses launch);
LaunchByAddresses launch_of(const void* kernel);

// Whether the stream's calls are taken down instead of done, for a graph or until somebody waits; takes one down.
bool takes_down(cudaStream_t stream);
void take_down(cudaStream_t stream, std::function<cudaError_t()> call);
// A kernel is loaded when it first runs, which a capture does not outlive: so it is with cards, if not always.
void load(const void* kernel);
bool refuses_launch(cudaStream_t stream, const void* kernel);

// What the lanes of a warp do together: each hands in a value and is given one once all of `mask` have come.
enum class WarpCall { kSync, kBallot, kShuffle };
uint64_t meet_warp(WarpCall call, unsigned mask, uint64_t value, int source_lane);
void meet_block();
void wait_for_kernels_before();
// In its turn on the stream: waits until `size` streams have come here with the same `group`.
void meet_cards(cudaStream_t stream, const void* group, int size);
extern unsigned running_thread;  // of its block
inline int lane() {
  return static_cast<int>(running_thread % 32);
}

template <typename T>
T shuffle(unsigned mask, T value, int source_lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = meet_warp(WarpCall::kShuffle, mask, bits, source_lane);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace quire::cuda_on_host

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((sizeof(Parameters) + ... + size_t{0}) <= 4096, "a kernel's parameters take 4 KiB at most");
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  } call{kernel, {Parameters(std::forward<Arguments>(arguments))...}};
  const auto run_thread = [](void* opaque) {
    const Call& one = *static_cast<Call*>(opaque);
    std::apply(one.kernel, one.arguments);
  };
  bool overlaps = false;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    overlaps = overlaps || (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                            config->attrs[i].val.programmaticStreamSerializationAllowed != 0);
  auto run = [config = *config, overlaps, run_thread, call]() mutable {
    return quire::cuda_on_host::run_grid(config, overlaps, reinterpret_cast<const void*>(call.kernel), run_thread,
                                         &call);
  };
  const void* untyped = reinterpret_cast<const void*>(kernel);
  if (quire::cuda_on_host::refuses_launch(config->stream, untyped)) return cudaErrorStreamCaptureInvalidated;
  if (!quire::cuda_on_host::takes_down(config->stream)) {
    quire::cuda_on_host::load(untyped);
    return run();
  }
  quire::cuda_on_host::take_down(config->stream, run);
  return cudaSuccess;
}

// The kernel's type is known here: cudaLaunchKernel() takes only kernels that this was called with.
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  const auto launch = [](const cudaLaunchConfig_t& config, const void* untyped, void** arguments) {
    const auto typed = reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(untyped));
    return [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
      return cudaLaunchKernelEx(&config, typed, *static_cast<Parameters*>(arguments[kIndices])...);
    }
    (std::index_sequence_for<Parameters...>());
  };
  quire::cuda_on_host::remember(reinterpret_cast<const void*>(kernel), launch);
  return quire::cuda_on_host::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

struct cudaFuncAttributes {
  int binaryVersion;
  int ptxVersion;
};
template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  *attributes = {90, 90};
  return cudaSuccess;
}

inline cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                                    cudaStream_t stream) {
  const auto launch = quire::cuda_on_host::launch_of(kernel);
  if (launch == nullptr) return cudaErrorInvalidValue;
  return launch({.gridDim = grid, .blockDim = block, .dynamicSmemBytes = shared_bytes, .stream = stream}, kernel,
                arguments);
}

template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

// --- what a thread knows; set before it runs

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

// --- meeting others

inline void cudaGridDependencySynchronize() {
  quire::cuda_on_host::wait_for_kernels_before();
}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __syncthreads() {
  quire::cuda_on_host::meet_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  quire::cuda_on_host::meet_warp(quire::cuda_on_host::WarpCall::kSync, mask, 0, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using quire::cuda_on_host::WarpCall;
  return static_cast<unsigned>(quire::cuda_on_host::meet_warp(WarpCall::kBallot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = quire::cuda_on_host::lane() & ~(width - 1);
  return quire::cuda_on_host::shuffle(mask, value, first + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int own = quire::cuda_on_host::lane();
  const int source = own ^ lane_mask;
  return quire::cuda_on_host::shuffle(mask, value, source < (own & ~(width - 1)) + width ? source : own);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int own = quire::cuda_on_host::lane();
  const int source = own - static_cast<int>(delta);
  return quire::cuda_on_host::shuffle(mask, value, source >= (own & ~(width - 1)) ? source : own);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int own = quire::cuda_on_host::lane();
  const int source = own + static_cast<int>(delta);
  return quire::cuda_on_host::shuffle(mask, value, source < (own & ~(width - 1)) + width ? source : own);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// --- atomics: no two threads run at once

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at = old + value;
  return old;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  if (value > old) *at = value;
  return old;
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  if (value < old) *at = value;
  return old;
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at = value;
  return old;
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at = old | value;
  return old;
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *at;
  if (old == expected) *at = value;
  return old;
}

// --- memory

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}

// --- arithmetic

#define QUIRE_MIN_MAX(type)         \
  inline type min(type a, type b) { \
    return b < a ? b : a;           \
  }                                 \
  inline type max(type a, type b) { \
    return a < b ? b : a;           \
  }
QUIRE_MIN_MAX(int)
QUIRE_MIN_MAX(unsigned)
QUIRE_MIN_MAX(long)
QUIRE_MIN_MAX(unsigned long)
QUIRE_MIN_MAX(long long)
QUIRE_MIN_MAX(unsigned long long)
#undef QUIRE_MIN_MAX
inline unsigned min(int a, unsigned b) {
  return min(static_cast<unsigned>(a), b);
}
inline unsigned min(unsigned a, int b) {
  return min(a, static_cast<unsigned>(b));
}
inline unsigned max(int a, unsigned b) {
  return max(static_cast<unsigned>(a), b);
}
inline unsigned max(unsigned a, int b) {
  return max(a, static_cast<unsigned>(b));
}
// A NaN loses, as on the card.
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float __expf(float x) {
  return expf(x);
}
inline float __logf(float x) {
  return logf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline unsigned __float2uint_rn(float x) {
  return static_cast<unsigned>(std::llrintf(x));
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
// Products and sums that no compiler may join to a fused one.
__attribute__((optimize("fp-contract=off"), noinline)) inline float __fmul_rn(float a, float b) {
  return a * b;
}
__attribute__((optimize("fp-contract=off"), noinline)) inline float __fadd_rn(float a, float b) {
  return a + b;
}
__attribute__((optimize("fp-contract=off"), noinline)) inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __saturatef(float x) {
  return fminf(fmaxf(x, 0.0f), 1.0f);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(nearbyintf(x));
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
// Byte i of the result is byte (selector's hexadecimal digit i) of y:x; a digit's top bit asks for its sign alone.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = (uint64_t{y} << 32) | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (digit & 7))) & 0xff;
    if ((digit & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
// The lower word of hi:lo from bit `shift` on, at most 32.
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>(((uint64_t{hi} << 32) | lo) >> (shift < 32 ? shift : 32));
}
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<uint8_t>(a >> (8 * i)) * static_cast<uint8_t>(b >> (8 * i));
  return sum;
}
