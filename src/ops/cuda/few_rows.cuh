// Products of a few rows of x with a stored weight, of one group or of many.
//
// At 4.3 TB/s and 1.7 GHz each of 132 multiprocessors takes 19 bytes of weights a cycle, and to have them when some
// 700 ns have passed it must have 23 KB under way. A warp takes kWeights rows a step of 32 slices: of Q4_0 4 x 576
// bytes, and the next step's are loaded while this one's are used, so that the sixteen warps that registers leave room
// for have 36 KB under way. 19 bytes are 34 codes of 4.5 bits, for each of which 128 lanes have 3.8 instructions. One
// row of x takes 4.4 a code of Q4_0 (counted in the machine code for sm_90a: a product and the code made a float 2.1,
// masks and shifts 1, the rest moves and addresses), 6 of Q4_K, 7 of Q6_K (which may take 5.5), 6 of F16 (13): blocks
// of four bits are held up by their decoding a little before memory is. Eight rows of x take some 12: there the
// multipliers and the reads of x are the limit.
//
// x is staged in shared memory, quads in the order in which lanes ask for them, with the sums of x over what shares a
// scale beside it. Each output has one order: lane by lane its slices from the first to the last, quad by quad, and
// the lanes' sums in a butterfly; neither the rows beside it nor the number of weight rows a warp takes change it.
#pragma once

#include "ops/cuda/activation.cuh"
#include "ops/cuda/coded_slices.cuh"
#include "ops/cuda/device.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {

inline constexpr int kFewRowsWarps = 8;  // of a block
inline constexpr int kFewRowsThreads = kFewRowsWarps * kWarp;
inline constexpr int kLanesPadded = kWarp + 1;  // quads of a row lie beside each other and lanes apart: no bank twice
inline constexpr int64_t kStagedBytes = 40 << 10;

template <DType kType>
constexpr int64_t staged_step_bytes(int64_t num_rows) {
  using Lanes = Slice<kType>;
  return num_rows * kLanesPadded * (Lanes::kQuads * int64_t{sizeof(float4)} + Lanes::kGroups * int64_t{sizeof(float)});
}

// Where a group's rows of x and out are.
struct GroupRows {
  const uint8_t* weight;
  const float* bias;  // or nullptr
  int64_t first;
  int64_t end;
  const float* x;
  float* out;

  __device__ GroupRows(const FewRowsArgs& args, int64_t group) {
    const GroupedRowsWork& work = args.work;
    const int64_t each = work.num_rows / work.num_groups;
    first = work.offsets != nullptr ? work.offsets[group] : group * each;
    end = work.offsets != nullptr ? work.offsets[group + 1] : (group + 1) * each;
    weight = work.weights != nullptr ? work.weights[group] : args.weight;
    bias = work.bias != nullptr ? work.bias + group * work.bias_stride : nullptr;
    x = work.x + (work.x_group_stride == 0 ? first * work.x_stride : group * work.x_group_stride);
    out = work.out + (work.out_group_stride == 0 ? first * work.out_stride : group * work.out_group_stride);
  }
};

// x of rows [0, count) for `args.x_step` steps from `first_step`, zeros where there is none: quad j of a lane's slice
// in a step at [row][step][j][lane], sums of groups at [row][step][group][lane] behind all of them.
template <DType kType, int kRows>
__device__ void stage_x(const FewRowsArgs& args, const float* x, int64_t count, int64_t first_step) {
  using Lanes = Slice<kType>;
  constexpr int kStepQuads = kWarp * Lanes::kQuads;
  const int64_t columns = args.work.shape.columns;
  const int num_quads = args.x_step * kStepQuads;
  auto* quads = dynamic_shared<float4>();
  auto* sums = reinterpret_cast<float*>(quads + kRows * args.x_step * Lanes::kQuads * kLanesPadded);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * num_quads; i += kFewRowsThreads) {
    const int row = i / num_quads;
    const int quad = i % num_quads;
    const int64_t column = (first_step * kStepQuads + quad) * 4;
    const float* from = x + row * args.work.x_stride + column;
    float4 value = make_float4(0, 0, 0, 0);
    if (row < count && column < columns) {
      if (args.aligned && column + 4 <= columns) {
        value = *reinterpret_cast<const float4*>(from);
      } else {
        value.x = from[0];
        if (column + 1 < columns) value.y = from[1];
        if (column + 2 < columns) value.z = from[2];
        if (column + 3 < columns) value.w = from[3];
      }
    }
    const QuadPlace place = Lanes::place_of(quad);
    const int step = place.slice / kWarp;
    const int lane = place.slice % kWarp;
    quads[((row * args.x_step + step) * Lanes::kQuads + place.quad) * kLanesPadded + lane] = value;
    if constexpr (Lanes::kGroups > 0) {
      // The quads of a group are neighbours, and so are the threads that have them.
      constexpr int kGroupQuads = Lanes::kQuads / Lanes::kGroups;
      float sum = (value.x + value.y) + (value.z + value.w);
      for (int offset = kGroupQuads / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (quad % kGroupQuads == 0)
        sums[((row * args.x_step + step) * Lanes::kGroups + place.quad / kGroupQuads) * kLanesPadded + lane] = sum;
    }
  }
}

// One step of kTogether rows of x, from `first_row` of the kRows that are staged, with a slice of each weight row.
template <DType kType, int kRows, int kTogether, int kWeights>
__device__ void multiply_step(const FewRowsArgs& args, const typename Slice<kType>::Codes (&codes)[kWeights],
                              int staged_step, int first_row, int lane, float (&sums)[kWeights][kRows]) {
  using Lanes = Slice<kType>;
  constexpr int kGroups = Lanes::kGroups == 0 ? 1 : Lanes::kGroups;
  constexpr int kGroupQuads = Lanes::kQuads / kGroups;
  const auto* quads = dynamic_shared<float4>();
  const auto* x_sums = reinterpret_cast<const float*>(quads + kRows * args.x_step * Lanes::kQuads * kLanesPadded);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    float products[kWeights][kTogether];
#pragma unroll
    for (int n = 0; n < kWeights; ++n) {
#pragma unroll
      for (int m = 0; m < kTogether; ++m) products[n][m] = Lanes::kGroups == 0 ? sums[n][first_row + m] : 0.0f;
    }
#pragma unroll
    for (int j = group * kGroupQuads; j < (group + 1) * kGroupQuads; ++j) {
      float v[kWeights][4];
#pragma unroll
      for (int n = 0; n < kWeights; ++n) codes[n].decode(j, v[n]);
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        const int at = ((first_row + m) * args.x_step + staged_step) * Lanes::kQuads + j;
        const float4 x = quads[at * kLanesPadded + lane];
#pragma unroll
        for (int n = 0; n < kWeights; ++n) {
          float& product = products[n][m];
          product = fmaf(v[n][3], x.w, fmaf(v[n][2], x.z, fmaf(v[n][1], x.y, fmaf(v[n][0], x.x, product))));
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      float x_sum = 0;
      if constexpr (Lanes::kGroups > 0) {
        const int at = ((first_row + m) * args.x_step + staged_step) * Lanes::kGroups + group;
        x_sum = x_sums[at * kLanesPadded + lane];
      }
#pragma unroll
      for (int n = 0; n < kWeights; ++n) {
        float& sum = sums[n][first_row + m];
        if constexpr (Lanes::kGroups == 0) {
          sum = products[n][m];
        } else {
          float product = products[n][m];
          if constexpr (requires { codes[n].zero(group); }) {
            product = fmaf(-(Lanes::kOffset + codes[n].zero(group)), x_sum, product);
          } else if constexpr (Lanes::kOffset != 0) {
            product = fmaf(-Lanes::kOffset, x_sum, product);
          }
          sum = fmaf(codes[n].scale(group), product * Lanes::kUnit, sum);
          if constexpr (Lanes::kHasMinimum) sum = fmaf(codes[n].minimum(group), x_sum, sum);
        }
      }
    }
  }
}

// The weight's row that stands at a place of the order in which warps take them: a gate and what it lets through beside
// each other.
__device__ inline int64_t row_at(const GroupedRowsWork& work, int64_t place) {
  return work.gate.on ? place / 2 + place % 2 * (work.shape.rows / 2) : place;
}

// Rows [0, count) of x, count at most kRows, by weight rows [first, first + kWeights) of the warp. All threads of a
// block come here together.
template <DType kType, int kRows, int kWeights>
__device__ void multiply_rows(const FewRowsArgs& args, const GroupRows& group, const float* x, float* out,
                              int64_t count, int64_t first) {
  using Lanes = Slice<kType>;
  using Codes = typename Lanes::Codes;
  constexpr bool kAhead = kRows <= 2;               // the next step's pieces are loaded before this one's are used
  constexpr int kTogether = kRows < 4 ? kRows : 4;  // of which products are kept apart from the sums
  const StoredMatrix& shape = args.work.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint8_t* rows[kWeights];
#pragma unroll
  for (int n = 0; n < kWeights; ++n) {
    const int64_t place = first + n < shape.rows ? first + n : shape.rows - 1;
    rows[n] = group.weight + row_at(args.work, place) * shape.row_bytes;
  }
  const auto columns = static_cast<int>(shape.columns);
  const int num_steps = (Lanes::num_slices(columns) + kWarp - 1) / kWarp;
  float sums[kWeights][kRows] = {};
  typename Lanes::Raw raw[kWeights];
#pragma unroll
  for (int n = 0; n < kWeights; ++n) Lanes::load(rows[n], lane, columns, raw[n]);
  begin_kernel();
  int staged_end = 0;
  for (int step = 0; step < num_steps; ++step) {
    if (step == staged_end) {
      staged_end += args.x_step;
      __syncthreads();  // what was staged before has been read
      stage_x<kType, kRows>(args, x, count, step);
      __syncthreads();
    }
    const int slice = step * kWarp + lane;
    Codes codes[kWeights] = {};
#pragma unroll
    for (int n = 0; n < kWeights; ++n) codes[n] = Codes(raw[n], slice, columns);
    if (kAhead && step + 1 < num_steps) {
#pragma unroll
      for (int n = 0; n < kWeights; ++n) Lanes::load(rows[n], slice + kWarp, columns, raw[n]);
    }
#pragma unroll
    for (int m = 0; m < kRows; m += kTogether) {
      multiply_step<kType, kRows, kTogether, kWeights>(args, codes, step + args.x_step - staged_end, m, lane, sums);
    }
    if (!kAhead && step + 1 < num_steps) {
#pragma unroll
      for (int n = 0; n < kWeights; ++n) Lanes::load(rows[n], slice + kWarp, columns, raw[n]);
    }
  }
  // Lane n * kRows + m keeps the sum of weight row n and row m.
  static_assert(kWeights * kRows <= kWarp);
  float own = 0;
#pragma unroll
  for (int n = 0; n < kWeights; ++n) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float sum = warp_sum(sums[n][m]);
      if (lane == n * kRows + m) own = sum;
    }
  }
  const int64_t place = first + lane / kRows;
  const int64_t m = lane % kRows;
  const bool there = lane < kWeights * kRows && place < shape.rows && m < count;
  const int64_t n = there ? row_at(args.work, place) : 0;
  if constexpr (kType == DType::kF8E4M3) own = own * load_float(group.weight + n * shape.row_bytes + shape.columns);
  if (group.bias != nullptr) own += group.bias[n];
  if (args.work.gate.on) {
    const float up = __shfl_down_sync(kAllLanes, own, kRows);
    if (there && place % 2 == 0) out[m * args.work.out_stride + n] = activated(args.work.gate.function, own) * up;
  } else if (there) {
    out[m * args.work.out_stride + n] = own;
  }
}

// Grid: weight rows, batches of kRows rows of x, groups.
template <DType kType, int kRows, int kWeights>
__global__ void __launch_bounds__(kFewRowsThreads, 2) few_rows_kernel(FewRowsArgs args) {
  // Where rows of x are is another kernel's work; without that the first weights are loaded before it is waited for.
  if (args.work.offsets != nullptr) begin_kernel();
  const int64_t warp = int64_t{blockIdx.x} * kFewRowsWarps + threadIdx.x / kWarp;
  const GroupRows group(args, blockIdx.z);
  const int64_t num_rows = group.end - group.first;
  for (int64_t row = int64_t{blockIdx.y} * kRows; row < num_rows; row += int64_t{gridDim.y} * kRows) {
    const int64_t count = num_rows - row < kRows ? num_rows - row : kRows;
    multiply_rows<kType, kRows, kWeights>(args, group, group.x + row * args.work.x_stride,
                                          group.out + row * args.work.out_stride, count, warp * kWeights);
  }
}

template <DType kType, int kRows, int kWeights>
void launch_few_rows(FewRowsArgs args, cudaStream_t stream) {
  constexpr int64_t kStepBytes = staged_step_bytes<kType>(kRows);
  const StoredMatrix& shape = args.work.shape;
  constexpr int64_t kStepColumns = kWarp * Slice<kType>::kQuads * 4;
  const int64_t num_steps = ceil_div(shape.columns, kStepColumns);
  const int64_t most = kStagedBytes / kStepBytes;
  static_assert(kStepBytes <= kStagedBytes);
  args.x_step = static_cast<int>(num_steps < most ? num_steps : most);
  const int64_t batches = ceil_div(ceil_div(args.work.num_rows, args.work.num_groups), kRows);
  const dim3 grid(ceil_div(shape.rows, int64_t{kFewRowsWarps} * kWeights),
                  static_cast<unsigned>(batches < 64 ? batches : 64), static_cast<unsigned>(args.work.num_groups));
  launch(few_rows_kernel<kType, kRows, kWeights>, grid, kFewRowsThreads, static_cast<size_t>(args.x_step * kStepBytes),
         stream, args);
}

// Weight rows that a warp takes together: fewer where sums of many rows of x take its registers.
template <DType kType>
constexpr int weights_together(int rows) {
  constexpr int kMost = Slice<kType>::kWeights;
  const bool tight = rows == 8 || (rows > 1 && kType == DType::kQ4_K);
  return tight && kMost > 2 ? 2 : kMost;
}

template <DType kType>
void multiply_stored(const FewRowsArgs& args, int64_t most_rows, cudaStream_t stream) {
  constexpr int kWeights = weights_together<kType>(1);
  // Small weights make too few warps of several rows each.
  constexpr int64_t kManyRows = 132 * 8 * kWeights;
  const GroupedRowsWork& work = args.work;
  const int64_t groups_at_work = work.num_rows < work.num_groups ? work.num_rows : work.num_groups;
  if (most_rows <= 1 && work.shape.rows * groups_at_work < kManyRows && !work.gate.on) {
    launch_few_rows<kType, 1, 1>(args, stream);
  } else if (most_rows <= 1) {
    launch_few_rows<kType, 1, kWeights>(args, stream);
  } else if (most_rows <= 2) {
    launch_few_rows<kType, 2, weights_together<kType>(2)>(args, stream);
  } else if (most_rows <= 4) {
    launch_few_rows<kType, 4, weights_together<kType>(4)>(args, stream);
  } else {
    launch_few_rows<kType, 8, weights_together<kType>(8)>(args, stream);
  }
}

#define QUIRE_FEW_ROWS(name) \
  template void multiply_stored<DType::name>(const FewRowsArgs& args, int64_t most_rows, cudaStream_t stream);

}  // namespace quire::ops::cuda
