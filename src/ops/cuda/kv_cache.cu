// Rounds keys and values to the cache's format and stores them at their slots, as ops/kv_cache.h says bit for bit; and
// copies blocks of the cache.
#include "ops/kv_cache.h"

#include <algorithm>

#include "base/check.h"
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
  int64_t block_stride;  // bytes
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
};

// Number d of a vector goes to index first + d of its head's codes.
struct Place {
  uint8_t* head;
  int64_t first;
  int64_t token;  // within the block
};

template <DType kFormat>
__device__ void store_vector(const float* vector, int32_t head_dim, int32_t, const Place& place, int lane) {
  using Code = typename KvFormat<kFormat>::Code;
  auto* codes = reinterpret_cast<Code*>(place.head) + place.first;
  for (int32_t d = lane; d < head_dim; d += kWarp) codes[d] = KvFormat<kFormat>::code(vector[d]);
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
    place.head[place.first + d] = static_cast<uint8_t>(static_cast<int8_t>(quotient));
  }
  if (lane == 0) store_scale(place.head + int64_t{head_dim} * block_size + place.token * 4, scale);
}

__device__ Place place_of(const KvWrite& work, int which, int64_t slot, int64_t head) {
  const int64_t block = slot / work.block_size;
  const int64_t token = slot % work.block_size;
  return {work.memory[which] + block * work.block_stride + head * work.head_bytes, token * work.head_dim, token};
}

// Grid: (blocks of kWarps vectors, 1 or 2: keys, values).
template <DType kFormat>
__global__ void write_vectors(const KvWrite work) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (index >= work.num_vectors) return;
  const int64_t token = index / work.num_kv_heads;
  const int64_t head = index % work.num_kv_heads;
  const int64_t slot = work.slots[token];
  if (slot == kNoSlot) return;
  store_vector<kFormat>(work.vectors[blockIdx.y] + token * work.token_stride + head * work.head_dim, work.head_dim,
                        work.block_size, place_of(work, static_cast<int>(blockIdx.y), slot, head), lane);
}

// Norms and rotations of prepare_heads().
struct HeadChanges {
  float* heads;  // [num_tokens, num_heads + 2 * kv heads, head_dim], tokens token_stride apart
  int64_t num_tokens;
  int32_t num_heads;
  const float* query_weight;
  const float* key_weight;
  float eps;
  int32_t rotary_dim;
  bool interleaved;
  const int32_t* positions;
  const float* table;
};

// A warp a head of a token, whose numbers lie in shared memory between the steps: what the kernels of the single ops
// compute, to the bit (heads of more than 256 numbers are summed in another order). Grid: blocks of kWarps heads.
template <DType kFormat>
__global__ void prepare_kernel(const HeadChanges changes, const KvWrite work) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int32_t of_token = changes.num_heads + 2 * work.num_kv_heads;
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp;
  if (index >= changes.num_tokens * of_token) return;
  const int64_t token = index / of_token;
  const auto head = static_cast<int32_t>(index % of_token);
  float* vector = changes.heads + token * work.token_stride + int64_t{head} * work.head_dim;
  const int32_t kv_head = (head - changes.num_heads) % work.num_kv_heads;
  const bool is_query = head < changes.num_heads;
  const bool is_value = head >= changes.num_heads + work.num_kv_heads;
  const int64_t slot = is_query ? kNoSlot : work.slots[token];
  if (!is_query && slot == kNoSlot) return;
  if (is_value) {
    return store_vector<kFormat>(vector, work.head_dim, work.block_size, place_of(work, 1, slot, kv_head), lane);
  }
  float* numbers = dynamic_shared<float>() + warp * work.head_dim;
  const float* weight = is_query ? changes.query_weight : changes.key_weight;
  float scale = 1;
  if (weight != nullptr) {
    float squares = 0;
    for (int32_t d = lane; d < work.head_dim; d += kWarp) squares = fmaf(vector[d], vector[d], squares);
    scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(work.head_dim) + changes.eps);
  }
  for (int32_t d = lane; d < work.head_dim; d += kWarp)
    numbers[d] = weight == nullptr ? vector[d] : vector[d] * scale * weight[d];
  __syncwarp();
  const int32_t half = changes.rotary_dim / 2;
  if (half > 0) {
    const float* cosines = changes.table + int64_t{changes.positions[token]} * changes.rotary_dim;
    for (int32_t i = lane; i < half; i += kWarp) {
      float& a = numbers[changes.interleaved ? 2 * i : i];
      float& b = numbers[changes.interleaved ? 2 * i + 1 : i + half];
      const float x = a;
      const float y = b;
      a = fmaf(x, cosines[i], -(y * cosines[half + i]));
      b = fmaf(x, cosines[half + i], y * cosines[i]);
    }
    __syncwarp();
  }
  if (!is_query) {
    return store_vector<kFormat>(numbers, work.head_dim, work.block_size, place_of(work, 0, slot, kv_head), lane);
  }
  for (int32_t d = lane; d < work.head_dim; d += kWarp) vector[d] = numbers[d];
}

// Four neighbours to the cache, where their codes lie together.
template <DType kFormat>
__device__ void store_codes(const float4& x, const Place& place, int quad) {
  auto* codes = reinterpret_cast<typename KvFormat<kFormat>::Code*>(place.head) + place.first + 4 * quad;
  if constexpr (kFormat == DType::kF32) {
    *reinterpret_cast<float4*>(codes) = x;
  } else {
    using Format = KvFormat<kFormat>;
    const unsigned of[4] = {Format::code(x.x), Format::code(x.y), Format::code(x.z), Format::code(x.w)};
    if constexpr (sizeof(*codes) == 2) {
      *reinterpret_cast<uint2*>(codes) = make_uint2(of[0] | of[1] << 16, of[2] | of[3] << 16);
    } else {
      *reinterpret_cast<unsigned*>(codes) = of[0] | of[1] << 8 | of[2] << 16 | of[3] << 24;
    }
  }
}

// The same of heads of kQuadHead numbers that are all rotated, or none, halves of a head with each other: a lane has
// four neighbours, whose others are another lane's, and memory is waited for twice, for positions and for what lies
// there.
constexpr int kQuadHead = 4 * kWarp;
template <DType kFormat>
__global__ void prepare_quads_kernel(const HeadChanges changes, const KvWrite work) {
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto of_token = static_cast<unsigned>(changes.num_heads + 2 * work.num_kv_heads);
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (index >= changes.num_tokens * of_token) return;
  const int64_t token = index / of_token;
  const auto head = static_cast<int32_t>(index % of_token);
  auto* vector = reinterpret_cast<float4*>(changes.heads + token * work.token_stride + int64_t{head} * kQuadHead);
  const bool is_query = head < changes.num_heads;
  const bool is_value = head >= changes.num_heads + work.num_kv_heads;
  const bool rotates = !is_value && changes.rotary_dim > 0;
  float4 x = vector[lane];
  const int64_t slot = is_query ? 0 : work.slots[token];
  const int32_t position = rotates ? changes.positions[token] : 0;
  if (slot == kNoSlot) return;
  const auto store = [&](int which) {
    const int32_t kv_head = (head - changes.num_heads) % work.num_kv_heads;
    store_codes<kFormat>(x, place_of(work, which, slot, kv_head), lane);
  };
  if (is_value) return store(1);
  const float* weight = is_query ? changes.query_weight : changes.key_weight;
  if (weight != nullptr) {
    const float squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, 0.0f))));
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(kQuadHead) + changes.eps);
    const float4 own = reinterpret_cast<const float4*>(weight)[lane];
    x = make_float4(x.x * scale * own.x, x.y * scale * own.y, x.z * scale * own.z, x.w * scale * own.w);
  }
  if (rotates) {
    const auto* table = reinterpret_cast<const float4*>(changes.table + int64_t{position} * kQuadHead);
    const float4 cosines = table[lane % (kWarp / 2)];
    const float4 sines = table[kWarp / 2 + lane % (kWarp / 2)];
    const auto turned = [&](float own, float cosine, float sine) {
      const float other = __shfl_xor_sync(kAllLanes, own, kWarp / 2);
      return lane < kWarp / 2 ? fmaf(own, cosine, -(other * sine)) : fmaf(other, sine, own * cosine);
    };
    x = make_float4(turned(x.x, cosines.x, sines.x), turned(x.y, cosines.y, sines.y), turned(x.z, cosines.z, sines.z),
                    turned(x.w, cosines.w, sines.w));
  }
  if (!is_query) return store(0);
  vector[lane] = x;
}

// Whether prepare_quads_kernel() has such heads.
bool are_quad_heads(const HeadChanges& changes, const KvWrite& work, DType format) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return format != DType::kI8 && work.head_dim == kQuadHead && !changes.interleaved &&
         (changes.rotary_dim == 0 || changes.rotary_dim == kQuadHead) && aligned(changes.heads) &&
         work.token_stride % 4 == 0 && aligned(changes.query_weight) && aligned(changes.key_weight) &&
         aligned(changes.table) && work.head_bytes % 16 == 0 && work.block_stride % 16 == 0 &&
         aligned(work.memory[0]) && aligned(work.memory[1]) &&
         changes.num_tokens * (changes.num_heads + 2 * work.num_kv_heads) < int64_t{1} << 31;
}

// Copies of blocks, as many as a kernel's parameters have room for.
struct BlockCopies {
  static constexpr int64_t kMost = 256;
  const uint8_t* from[2];  // the parts of a block
  uint8_t* to[2];
  int64_t vectors;  // of 16 bytes, of a part
  BlockCopy copies[kMost];
};

constexpr int kCopyThreads = 256;
constexpr int kVectorsOfThread = 4;

// Grid: (pieces of a part, copies, parts).
__global__ void copy_blocks_kernel(const BlockCopies work) {
  begin_kernel();
  const BlockCopy copy = work.copies[blockIdx.y];
  const auto* from = reinterpret_cast<const uint4*>(work.from[blockIdx.z]) + copy.source * work.vectors;
  auto* to = reinterpret_cast<uint4*>(work.to[blockIdx.z]) + copy.destination * work.vectors;
  const int64_t first = int64_t{blockIdx.x} * kCopyThreads * kVectorsOfThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kVectorsOfThread; ++i) {
    const int64_t at = first + i * kCopyThreads;
    if (at < work.vectors) to[at] = from[at];
  }
}

KvWrite work_of(const KvWriteArgs& args) {
  const KvCacheView& cache = args.cache;
  QUIRE_CHECK(cache.keys_by_token);
  return {.vectors = {args.keys, args.values},
          .memory = {static_cast<uint8_t*>(cache.keys), static_cast<uint8_t*>(cache.values)},
          .token_stride = args.token_stride,
          .slots = args.slots.device,
          .num_vectors = args.num_tokens * cache.num_kv_heads,
          .head_bytes = head_bytes(cache),
          .block_stride = block_stride(cache),
          .num_kv_heads = cache.num_kv_heads,
          .head_dim = cache.head_dim,
          .block_size = cache.block_size};
}

}  // namespace

void write_kv(const KvWriteArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  const KvWrite work = work_of(args);
  with_kv_format(args.cache.dtype, [&](auto format) {
    launch(write_vectors<decltype(format)::value>,
           dim3(ceil_div(work.num_vectors, kWarps), args.cache.values_are_keys ? 1 : 2), kWarps * kWarp, 0, stream,
           work);
  });
}

void prepare_heads(const PrepareHeadsArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  const KvWrite work = work_of(write_of(args));
  const HeadChanges changes{.heads = args.heads,
                            .num_tokens = args.num_tokens,
                            .num_heads = args.num_heads,
                            .query_weight = args.query_weight,
                            .key_weight = args.key_weight,
                            .eps = args.eps,
                            .rotary_dim = args.rotary_dim,
                            .interleaved = args.interleaved,
                            .positions = args.positions.device,
                            .table = args.table};
  const int64_t heads = args.num_tokens * (args.num_heads + 2 * work.num_kv_heads);
  const auto shared = static_cast<size_t>(kWarps * work.head_dim) * sizeof(float);
  const bool quads = are_quad_heads(changes, work, args.cache.dtype);
  with_kv_format(args.cache.dtype, [&](auto format) {
    constexpr DType kFormat = decltype(format)::value;
    if constexpr (kFormat != DType::kI8) {
      if (quads)
        return launch(prepare_quads_kernel<kFormat>, ceil_div(heads, kWarps), kWarps * kWarp, 0, stream, changes, work);
    }
    launch(prepare_kernel<kFormat>, ceil_div(heads, kWarps), kWarps * kWarp, shared, stream, changes, work);
  });
}

bool copy_blocks(const CopyBlocksArgs& args, cudaStream_t stream) {
  const int64_t bytes = args.source.bytes;
  const int parts = args.source.num_parts();
  BlockCopies work = {
      .from = {static_cast<const uint8_t*>(args.source.parts[0]), static_cast<const uint8_t*>(args.source.parts[1])},
      .to = {static_cast<uint8_t*>(args.destination.parts[0]), static_cast<uint8_t*>(args.destination.parts[1])},
      .vectors = bytes / 16,
      .copies = {}};
  const auto is_aligned = [](const uint8_t* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  for (int part = 0; part < parts; ++part) {
    if (bytes % 16 != 0 || !is_aligned(work.from[part]) || !is_aligned(work.to[part])) return false;
  }
  for (int64_t first = 0; first < args.num_copies; first += BlockCopies::kMost) {
    const int64_t count = std::min(BlockCopies::kMost, args.num_copies - first);
    std::copy_n(args.copies + first, count, work.copies);
    launch(copy_blocks_kernel,
           dim3(ceil_div(work.vectors, kCopyThreads * kVectorsOfThread), static_cast<unsigned>(count),
                static_cast<unsigned>(parts)),
           kCopyThreads, 0, stream, work);
  }
  return true;
}

}  // namespace quire::ops::cuda
