// Rounds keys and values to the cache's format and stores them at their slots, as ops/kv_cache.h says bit for bit.
#include "ops/kv_cache.h"

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/kv_values.cuh"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; a warp takes one vector: the key or the value of one token and kv head

struct KvWrite {
  const float* vectors[2];  // keys, values: [num_tokens, num_kv_heads, head_dim], tokens token_stride apart
  uint8_t* memory[2];
  int64_t token_stride;
  const int64_t* slots;
  int64_t num_vectors;  // num_tokens * num_kv_heads
  int64_t head_bytes;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
};

// Number d of a vector goes to index first + d * stride of its head's codes.
struct Place {
  uint8_t* head;
  int64_t first;
  int64_t stride;
  int64_t token;  // within the block
};

template <DType kFormat>
__device__ void store_vector(const float* vector, int32_t head_dim, int32_t, const Place& place, int lane) {
  using Code = typename KvFormat<kFormat>::Code;
  auto* codes = reinterpret_cast<Code*>(place.head) + place.first;
  for (int32_t d = lane; d < head_dim; d += kWarp) codes[d * place.stride] = KvFormat<kFormat>::code(vector[d]);
}

template <>
__device__ void store_vector<DType::kI8>(const float* vector, int32_t head_dim, int32_t block_size, const Place& place,
                                         int lane) {
  float largest = 0;
  bool finite = true;
  for (int32_t d = lane; d < head_dim; d += kWarp) {
    const float magnitude = fabsf(vector[d]);
    largest = fmaxf(largest, magnitude);
    finite = finite && __float_as_uint(magnitude) < 0x7f800000u;
  }
  largest = warp_max(largest);
  finite = __all_sync(kAllLanes, finite ? 1 : 0) != 0;
  const float scale = finite ? __fdiv_rn(largest, 127.0f) : __uint_as_float(0x7fc00000u);
  for (int32_t d = lane; d < head_dim; d += kWarp) {
    float quotient = 0;
    if (finite && scale > 0) quotient = fminf(fmaxf(rintf(__fdiv_rn(vector[d], scale)), -127.0f), 127.0f);
    place.head[place.first + d * place.stride] = static_cast<uint8_t>(static_cast<int8_t>(quotient));
  }
  if (lane == 0) store_scale(place.head + int64_t{head_dim} * block_size + place.token * 4, scale);
}

// Grid: (blocks of kWarps vectors, 1 or 2: keys, values).
template <DType kFormat>
__global__ void write_vectors(const KvWrite work) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (index >= work.num_vectors) return;
  const int64_t token = index / work.num_kv_heads;
  const int64_t head = index % work.num_kv_heads;
  const bool is_key = blockIdx.y == 0;
  const int64_t slot = work.slots[token];
  if (slot == kNoSlot) return;
  const int64_t block = slot / work.block_size;
  const int64_t offset = slot % work.block_size;
  const Place place = {work.memory[blockIdx.y] + (block * work.num_kv_heads + head) * work.head_bytes,
                       is_key ? offset : offset * work.head_dim, is_key ? work.block_size : 1, offset};
  store_vector<kFormat>(work.vectors[blockIdx.y] + token * work.token_stride + head * work.head_dim, work.head_dim,
                        work.block_size, place, lane);
}

template <DType kFormat>
void write_format(const KvWriteArgs& args, cudaStream_t stream) {
  const KvCacheView& cache = args.cache;
  const KvWrite work = {.vectors = {args.keys, args.values},
                        .memory = {static_cast<uint8_t*>(cache.keys), static_cast<uint8_t*>(cache.values)},
                        .token_stride = args.token_stride,
                        .slots = args.slots.device,
                        .num_vectors = args.num_tokens * cache.num_kv_heads,
                        .head_bytes = head_bytes(cache),
                        .num_kv_heads = cache.num_kv_heads,
                        .head_dim = cache.head_dim,
                        .block_size = cache.block_size};
  launch(write_vectors<kFormat>, dim3(ceil_div(work.num_vectors, kWarps), cache.values_are_keys ? 1 : 2),
         kWarps * kWarp, 0, stream, work);
}

}  // namespace

void write_kv(const KvWriteArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  switch (args.cache.dtype) {
    case DType::kF32:
      return write_format<DType::kF32>(args, stream);
    case DType::kF16:
      return write_format<DType::kF16>(args, stream);
    case DType::kBF16:
      return write_format<DType::kBF16>(args, stream);
    case DType::kF8E4M3:
      return write_format<DType::kF8E4M3>(args, stream);
    case DType::kF8E5M2:
      return write_format<DType::kF8E5M2>(args, stream);
    case DType::kI8:
      return write_format<DType::kI8>(args, stream);
    default:
      return;  // check(KvCacheView) lets no other pass
  }
}

}  // namespace quire::ops::cuda
