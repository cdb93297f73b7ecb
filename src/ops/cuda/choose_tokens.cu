// A token out of each row of logits, by one kernel, which reads a row twice: from memory, and a little later from the
// second cache. A row is cut into pieces, and a piece has two turns, each of which any block takes:
//   1. It is looked at: for its largest number, and for top_k and top_p for how many numbers lie in each of 2,048 bins,
//      64 of which a number passes while its weight falls to 1 / e. Who is the last of a row plans its second turn:
//      which numbers may be those at which top_k's or top_p's threshold lies. Of top_k counts say it, of top_p they say
//      what all weighs to within some ten thousandths.
//   2. It is weighed: by stretches what is above those numbers, and those are listed. Who is the last of a row finds
//      the threshold in the list, and the stretch, then the token, at which the sum of weights passes the number that
//      was drawn.
// Where the plan proves wrong, or the list is too long, which equal logits bring about, the last one goes over the row
// itself: what is drawn never depends on the plan. Turns are taken in the order of their numbers, those of a row's
// second ones some rows behind its first, so that none waits for one that nobody has taken.
#include "ops/choose_tokens.h"

#include <algorithm>
#include <cfloat>

#include "base/check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/token_draw.cuh"

namespace quire::ops::cuda {
namespace token_draw {
namespace {

constexpr int64_t kPieceNumbers = kThreads * kTogether;  // 33 of an H100's rows at work are 17 MB of its second cache
constexpr int64_t kLeastNumbers = 2048;                  // of a piece
constexpr int kBlocksAtOnce = 4;                         // of a processor
constexpr float kMostOfTopK = 1024;                      // listed
constexpr float kBinsOfE = 64;                           // that a number passes while its weight falls to 1 / e
constexpr float kWeightlessAfter = 28.5f;                // exp(-28.5) * 2^40 rounds to 0
static_assert(kWeightlessAfter * kBinsOfE < kBins);
constexpr int kStepsOfBin = 4;
constexpr float kFewInBin = 384;  // are listed as a whole
constexpr int64_t kMostRows = 65535;

enum class Asks : int32_t { kNoDraw, kTemperature, kTopP, kTopK };

// What may be the threshold: a number that is neither above `above` nor below `from`; of top_k all that is not below
// the step `from_step`.
struct Plan {
  int32_t draws;  // 0: the token is there
  float best;
  float above;
  float from;
  int32_t from_step;
  int32_t has_all;  // of top_k: what is below weighs nothing
};

// What turns of a row leave each other.
struct alignas(128) RowState {
  Mass masses[kMostStretches];
  float values[kMostListed];  // of the list, in any order
  int32_t indices[kMostListed];
  Best bests[kMostPieces];
  Plan plan;
};

// All 0 when the kernel begins.
struct Counters {
  Mass rest;  // weight of what is not above
  uint32_t num_looked_at;
  uint32_t is_planned;
  uint32_t num_weighed;
  int32_t num_listed;
};

struct Work {
  ChooseTokensArgs args;
  uint32_t* next_turn;
  Counters* counters;  // [rows]
  RowState* states;    // [rows]
  uint16_t* counts;    // [rows, num_pieces, kBins]; 65,535 is that or more
  int num_pieces;
  uint32_t rows_ahead;  // a row's first turns are so many rows before its second ones
  uint32_t num_turns;   // where nobody draws rows have first ones alone
};

struct Turn {
  uint32_t row;
  int piece;
  bool weighs;
};

// First turns of rows_ahead rows, then first ones of the next row and second ones of the first that has none, in turns.
__device__ inline Turn turn_of(uint32_t number, uint32_t num_rows, const Work& work) {
  const auto pieces = static_cast<uint32_t>(work.num_pieces);
  const uint32_t ahead = work.rows_ahead;
  const auto piece = static_cast<int>(number % pieces);
  const uint32_t of_rows = number / pieces;
  if (of_rows < ahead) return {of_rows, piece, false};
  const uint32_t later = of_rows - ahead;
  const uint32_t between = 2 * (num_rows - ahead);
  if (later >= between) return {later - between + num_rows - ahead, piece, true};
  return {later % 2 == 0 ? ahead + later / 2 : later / 2, piece, later % 2 != 0};
}

__device__ inline Asks asks_of(const Row& row) {
  if (row.choice.inverse_temperature == 0) return Asks::kNoDraw;
  if (row.choice.top_k > 0 && row.choice.top_k < row.size) return Asks::kTopK;
  return row.choice.top_p < 1 ? Asks::kTopP : Asks::kTemperature;
}

// Whether all other turns of a row have come here before. In all threads; what they wrote before is there for whoever
// is the last.
__device__ inline bool is_last(Shared& shared, uint32_t& counter, int num_pieces) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.is_last = atomicAdd(&counter, 1u) == static_cast<uint32_t>(num_pieces - 1);
    __threadfence();
  }
  __syncthreads();
  return shared.is_last;
}

// Numbers on a grid, of which kStepsOfBin steps are a bin: no larger number has a smaller step. Bins of steps go round.
struct Grid {
  float steps_of_unit;

  __device__ explicit Grid(const TokenChoice& choice)
      : steps_of_unit(choice.inverse_temperature * (kBinsOfE * kStepsOfBin)) {}
  __device__ int32_t step_of(float value) const { return __float_as_int(fmaf(value, steps_of_unit, Parts::kRounder)); }
  __device__ static uint32_t bin_of(int32_t step) { return static_cast<uint32_t>(step) / kStepsOfBin % kBins; }
};

// --- 1: a piece is looked at

// The pieces' counts of the bins down from the row's best number's, into shared.counts. What a piece has so far below
// that its bins have come round is left out. In all threads.
__device__ inline void sum_counts(Shared& shared, const RowState& state, const uint16_t* counts, int num_pieces,
                                  const Grid& grid, float best) {
  const int first = static_cast<int>(threadIdx.x) * kBinsOfThread;
  const int32_t best_bin = grid.step_of(best) / kStepsOfBin;
  uint32_t sums[kBinsOfThread] = {};
#pragma unroll 4
  for (int piece = 0; piece < num_pieces; ++piece) {
    const uint4 eight = __ldcg(reinterpret_cast<const uint4*>(counts + int64_t{piece} * kBins + first));
    const int32_t top_bin = grid.step_of(__ldcg(&state.bests[piece].value)) / kStepsOfBin;
    const uint32_t of[kBinsOfThread] = {eight.x & 0xffffu, eight.x >> 16, eight.y & 0xffffu, eight.y >> 16,
                                        eight.z & 0xffffu, eight.z >> 16, eight.w & 0xffffu, eight.w >> 16};
    for (int k = 0; k < kBinsOfThread; ++k) {
      const auto below = static_cast<int32_t>(static_cast<uint32_t>(top_bin - first - k) % kBins);
      if (best_bin - top_bin + below < kBins) sums[k] += of[k];
    }
  }
  for (int k = 0; k < kBinsOfThread; ++k) shared.counts[first + k] = sums[k];
  __syncthreads();
}

// Of the bins from the best number's down, which a thread has beside each other.
struct DescendingBins {
  Shared& shared;
  const Row& row;
  int32_t best_step;

  __device__ DescendingBins(Shared& of_block, const Row& of, int32_t step)
      : shared(of_block), row(of), best_step(step) {}
  __device__ static int rank_of(int k) { return static_cast<int>(threadIdx.x) * kBinsOfThread + k; }
  __device__ float count(int k) const {
    return static_cast<float>(shared.counts[Grid::bin_of(best_step - rank_of(k) * kStepsOfBin)]);
  }
  // Of the bin that the best number is in.
  __device__ int32_t first_step() const {
    return best_step - static_cast<int32_t>(static_cast<uint32_t>(best_step) % kStepsOfBin);
  }
  // How far the middle of what a bin has is below the best number, in steps.
  __device__ float steps_below(int k) const {
    const auto in_bin = static_cast<float>(best_step - first_step());
    if (rank_of(k) == 0) return in_bin / 2;
    return in_bin + kStepsOfBin * static_cast<float>(rank_of(k)) - (kStepsOfBin - 1) / 2.0f;
  }

  // Of all threads' amounts, of those of the threads before this one, and of all threads' `other`. In all threads.
  struct Sums {
    float all;
    float before;
    float other;
  };
  __device__ Sums sum(const float (&amounts)[kBinsOfThread], float other) const {
    float mine = 0;
    for (const float amount : amounts) mine += amount;
    const float of_warp = sum_up_to_lane(mine, row.lane);
    other = warp_sum(other);
    if (row.lane == kWarp - 1) {
      shared.sums_of_warps[row.warp][0] = of_warp;
      shared.sums_of_warps[row.warp][1] = other;
    }
    __syncthreads();
    const auto of_lane = [&](int which) { return row.lane < kWarps ? shared.sums_of_warps[row.lane][which] : 0; };
    return {warp_sum(of_lane(0)), warp_sum(row.lane < row.warp ? of_lane(0) : 0) + of_warp - mine,
            warp_sum(of_lane(1))};
  }

  // shared.places[which] becomes where the sum reaches `wanted`, in bins from the best number's on, if anywhere, and
  // `beyond` times so far beyond as it is uncertain, because numbers lie in their bins by chance: of few a whole bin.
  __device__ void find(int which, const float (&amounts)[kBinsOfThread], float before, float wanted,
                       float beyond) const {
    for (int k = 0; k < kBinsOfThread; ++k) {
      const float amount = amounts[k];
      if (before < wanted && before + amount >= wanted) {
        const float uncertain = count(k) <= kFewInBin ? 1 : 2 * rsqrtf(count(k)) + 0.01f;
        shared.places[which] = static_cast<float>(rank_of(k)) + (wanted - before) / amount + beyond * uncertain;
      }
      before += amount;
    }
  }
};

// In all threads, of which the first one's is left.
__device__ inline Plan plan_top_k(Shared& shared, const Row& row, const Grid& grid, Plan plan) {
  const DescendingBins bins(shared, row, grid.step_of(plan.best));
  float amounts[kBinsOfThread];
  for (int k = 0; k < kBinsOfThread; ++k) amounts[k] = bins.count(k);
  if (threadIdx.x == 0) shared.digit = kBins;
  float before = bins.sum(amounts, 0).before;
  const auto wanted = static_cast<float>(row.choice.top_k);
  for (int k = 0; k < kBinsOfThread; ++k) {
    if (before < wanted && before + amounts[k] >= wanted) {
      shared.digit = static_cast<uint32_t>(DescendingBins::rank_of(k));
      shared.places[0] = before + amounts[k];
    }
    before += amounts[k];
  }
  __syncthreads();
  // Of the last bins counts are of what weighs nothing.
  plan.has_all = static_cast<float>(shared.digit) >= kWeightlessAfter * kBinsOfE ? 1 : 0;
  if (plan.has_all == 0 && shared.places[0] > kMostOfTopK) return plan;
  if (plan.has_all != 0) {
    plan.from_step = grid.step_of(plan.best - kWeightlessAfter / row.choice.inverse_temperature);
  } else {
    plan.from_step = bins.first_step() - static_cast<int32_t>(shared.digit) * kStepsOfBin;
  }
  return plan;
}

__device__ inline Plan plan_top_p(Shared& shared, const Row& row, const Grid& grid, Plan plan) {
  const DescendingBins bins(shared, row, grid.step_of(plan.best));
  float amounts[kBinsOfThread];
  float squares = 0;
  for (int k = 0; k < kBinsOfThread; ++k) {
    float weight = expf(bins.steps_below(k) * (-1 / (kBinsOfE * kStepsOfBin)));
    if (weight < row.choice.min_p) weight = 0;
    amounts[k] = bins.count(k) * weight;
    squares += amounts[k] * weight;
  }
  if (threadIdx.x == 0) {
    shared.places[0] = -1;
    shared.places[1] = kBins;
  }
  const DescendingBins::Sums sums = bins.sum(amounts, squares);
  // A number lies anywhere in its bin: what each is off by is its weight times the bin's width by the root of 12.
  const float error = 3 * sqrtf(sums.other / 12) / kBinsOfE + 1e-5f * sums.all;
  bins.find(0, amounts, sums.before, row.choice.top_p * sums.all - error, -1);
  bins.find(1, amounts, sums.before, row.choice.top_p * sums.all + error, 1);
  __syncthreads();
  // Numbers are rounded to steps: a bin begins half a step below its first.
  const int32_t end_of_best = bins.first_step() + kStepsOfBin - static_cast<int32_t>(Parts::kBitsOfRounder);
  const auto value_at = [&](float place) {
    return (static_cast<float>(end_of_best) - 0.5f - kStepsOfBin * place) / grid.steps_of_unit;
  };
  plan.above = shared.places[0] < 0 ? INFINITY : value_at(shared.places[0]);
  plan.from = shared.places[1] >= kBins ? plan.best - kWeightlessAfter / row.choice.inverse_temperature
                                        : value_at(shared.places[1]);
  plan.from = fmaxf(fminf(plan.from, plan.best), -FLT_MAX);
  return plan;
}

// By the last that has looked at a piece of the row.
__device__ inline void plan_row(Shared& shared, const Row& row, const Work& work, uint32_t index) {
  RowState& state = work.states[index];
  Best best = nothing_seen();
  for (int piece = row.lane; piece < work.num_pieces; piece += kWarp) {
    const Best& other = state.bests[piece];
    best.meet({__ldcg(&other.value), __ldcg(&other.index), __ldcg(&other.spoilt)});
  }
  best.meet_lanes();
  Plan plan{1, best.value, -INFINITY, INFINITY, 0x7fffffff, 0};
  const Asks asks = asks_of(row);
  const bool is_none = best.spoilt != 0 || !(best.value > -INFINITY);
  if (is_none || asks == Asks::kNoDraw) {
    plan.draws = 0;
    if (threadIdx.x == 0) work.args.tokens[index] = is_none ? -1 : best.index;
  } else if (asks != Asks::kTemperature) {
    const int64_t first = int64_t{index} * work.num_pieces;
    const Grid grid(row.choice);
    sum_counts(shared, state, work.counts + first * kBins, work.num_pieces, grid, best.value);
    plan = asks == Asks::kTopK ? plan_top_k(shared, row, grid, plan) : plan_top_p(shared, row, grid, plan);
  }
  if (threadIdx.x != 0) return;
  state.plan = plan;
  __threadfence();
  atomicExch(&work.counters[index].is_planned, 1u);
}

// NaN where either is.
__device__ inline float larger_or_nan(float a, float b) {
#ifdef __CUDACC__
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a != a || a > b ? a : b;
#endif
}

// The best of all threads', in all threads. They meet before and afterwards.
__device__ inline Best best_of_block(Shared& shared, const Row& row, Best best) {
  best.meet_lanes();
  if (row.lane == 0) shared.bests[row.warp] = best;
  __syncthreads();
  best = row.lane < kWarps ? shared.bests[row.lane] : nothing_seen();
  best.meet_lanes();
  return best;
}

// The row's numbers are on their way before it is known what is asked for, here and below.
__device__ inline void look_at(Shared& shared, const Row& row, const Work& work, const Turn& turn) {
  const int stretch = turn.piece * kWarps + row.warp;
  const int32_t end = row.begin_of(stretch + 1);
  auto batch = row.begin_stretch(stretch);
  const Asks asks = asks_of(row);
  const bool counts = asks == Asks::kTopP || asks == Asks::kTopK;
  const int first_bin = static_cast<int>(threadIdx.x) * kBinsOfThread;
  if (counts) {
    for (int k = 0; k < kBinsOfThread; ++k) shared.counts[first_bin + k] = 0;
  }
  const Grid grid(row.choice);
  const float range = kWeightlessAfter / row.choice.inverse_temperature;
  Best best = nothing_seen();
  for (int64_t done = 0; done < row.stretch; done += kWarp * kTogether) {  // in most vocabularies once
    if (done > 0) batch = row.load<kTogether>(row.begin_of(stretch) + done, end);
    float largest = batch.of[0];
#pragma unroll
    for (const float value : batch.of) largest = larger_or_nan(largest, value);
    if (!(largest < INFINITY)) best.spoilt = 1;
    if (asks == Asks::kNoDraw) {
      for (int j = 0; j < kTogether; ++j) {
        if (batch.of[j] > -INFINITY) best.meet(batch.of[j], batch.index(j));
      }
      continue;
    }
    best.value = fmaxf(best.value, largest);
    if (!counts) continue;
    best = best_of_block(shared, row, best);
    const float floor = best.value - range;  // what is below weighs nothing, in whatever bin it is counted
#pragma unroll
    for (const float value : batch.of) atomicAdd(&shared.counts[Grid::bin_of(grid.step_of(fmaxf(value, floor)))], 1u);
    __syncthreads();
  }
  best = best_of_block(shared, row, best);
  if (threadIdx.x == 0) work.states[turn.row].bests[turn.piece] = best;
  if (counts) {
    uint32_t of[kBinsOfThread];
    for (int k = 0; k < kBinsOfThread; ++k) of[k] = min(shared.counts[first_bin + k], 0xffffu);
    uint16_t* out = work.counts + (int64_t{turn.row} * work.num_pieces + turn.piece) * kBins;
    *reinterpret_cast<uint4*>(out + first_bin) =
        make_uint4(of[0] | of[1] << 16, of[2] | of[3] << 16, of[4] | of[5] << 16, of[6] | of[7] << 16);
  }
  if (is_last(shared, work.counters[turn.row].num_looked_at, work.num_pieces)) plan_row(shared, row, work, turn.row);
}

// --- 2: a piece is weighed

// The parts of a number that is above plan.above, else none; `any` becomes 1 where it may be the threshold. What a
// comparison says is used at once: compilers compare all of a thread's numbers first, and keep what they find in bits.
__device__ inline Parts of_above(const Plan& plan, float value, const Parts& parts, uint32_t& any) {
#ifdef __CUDACC__
  Parts above;
  asm("{\n.reg .pred above, listed;\nsetp.gt.f32 above, %3, %4;\nsetp.ge.and.f32 listed, %3, %5, !above;\n"
      "selp.b32 %0, %6, %8, above;\nselp.b32 %1, %7, %8, above;\n@listed mov.b32 %2, 1;\n}"
      : "=r"(above.high), "=r"(above.low), "+r"(any)
      : "f"(value), "f"(plan.above), "f"(plan.from), "r"(parts.high), "r"(parts.low), "r"(Parts::kBitsOfRounder));
  return above;
#else
  if (value >= plan.from && value <= plan.above) any = 1;
  return value > plan.above ? parts : Parts::none();
#endif
}

__device__ inline void put_on_list(Shared& shared, float value, int32_t index) {
  const int32_t place = atomicAdd(&shared.num_listed, 1);
  if (place >= kMostListed) return;
  shared.values[place] = value;
  shared.indices[place] = index;
}

__device__ inline void list_top_k(Shared& shared, const Row& row, int stretch, const Row::Batch<kTogether>& first,
                                  const Plan& plan) {
  const Grid grid(row.choice);
  row.for_stretch(stretch, first, [&](const auto& batch) {
    bool any = false;
#pragma unroll
    for (const float value : batch.of) any |= grid.step_of(value) >= plan.from_step;
    if (!any) return;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float value = batch.of[j];
      if (value > -INFINITY && grid.step_of(value) >= plan.from_step) put_on_list(shared, value, batch.index(j));
    }
  });
}

__device__ inline void weigh_stretch(Shared& shared, const Row& row, int stretch, const Row::Batch<kTogether>& first,
                                     const Plan& plan, RowState& state, Counters& counters) {
  Mass above = 0;
  Mass all = 0;
  row.for_stretch(stretch, first, [&](const auto& batch) {
    PartsSum<kTogether> sum;
    PartsSum<kTogether> sum_above;
    uint32_t any = 0;
#pragma unroll
    for (const float value : batch.of) {
      const Parts parts = Parts::of(row.scaled_weight(value));
      sum.add(parts);
      sum_above.add(of_above(plan, value, parts, any));
    }
    all += sum.whole();
    above += sum_above.whole();
    if (any == 0) return;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float value = batch.of[j];
      if (value >= plan.from && value <= plan.above) put_on_list(shared, value, batch.index(j));
    }
  });
  above = lanes_sum(above);
  all = lanes_sum(all);
  if (row.lane != 0) return;
  state.masses[stretch] = above;
  if (all > above) atomicAdd(&counters.rest, all - above);
}

// By the last that has weighed a piece of the row.
__device__ inline void draw(Shared& shared, Row& row, const Work& work, uint32_t index, const Plan& plan) {
  const RowState& state = work.states[index];
  const Counters& counters = work.counters[index];
  int32_t& token = work.args.tokens[index];
  const Numbers whole{row.values, row.size};
  const int32_t num_listed = __ldcg(&counters.num_listed);
  const bool has_list = num_listed <= kMostListed;
  const Numbers list{shared.values, has_list ? num_listed : 0};
  for (int i = static_cast<int>(threadIdx.x); i < list.size; i += kThreads) {
    shared.values[i] = __ldcg(&state.values[i]);
    shared.indices[i] = __ldcg(&state.indices[i]);
  }
  __syncthreads();
  const float top_p = row.choice.top_p;
  Kept kept{0, 0};
  bool is_weighed = true;  // state.masses are of what is above the list
  const Asks asks = asks_of(row);
  if (asks == Asks::kTopK) {
    const bool fits = has_list && (plan.has_all != 0 || num_listed >= row.choice.top_k);
    const Numbers& numbers = fits ? list : whole;
    Mass left = 0;
    row.least = threshold(
        shared, numbers, static_cast<Mass>(row.choice.top_k), [](float) { return Mass{1}; }, left);
    if (top_p < 1) kept = kept_of(shared, row, numbers, wanted_of(top_p, total_of(shared, row, numbers)));
    if (fits) return draw_of_list(shared, row, list, kept, token);
    is_weighed = false;
  } else if (asks == Asks::kTopP) {
    Mass mine = 0;
    for (int s = static_cast<int>(threadIdx.x); s < row.num_stretches; s += kThreads) mine += __ldcg(&state.masses[s]);
    const Mass above = block_sum(shared, mine);
    const Mass wanted = wanted_of(top_p, above + __ldcg(&counters.rest));
    if (above < wanted) kept = kept_of(shared, row, list, wanted - above);
    is_weighed = kept.order != 0;
    if (!is_weighed) kept = kept_of(shared, row, whole, wanted);
  }
  if (is_weighed) {
    for (int s = static_cast<int>(threadIdx.x); s < row.num_stretches; s += kThreads) {
      shared.masses[place_of(s)] = __ldcg(&state.masses[s]);
      shared.equals[place_of(s)] = 0;
    }
    __syncthreads();
    if (kept.order != 0) add_list(shared, row, list, kept);
  } else {
    weigh_stretches(shared, row, kept);
  }
  __syncthreads();
  draw_of_stretches(shared, row, kept, token);
}

__device__ inline void weigh(Shared& shared, Row& row, const Work& work, const Turn& turn) {
  const int stretch = turn.piece * kWarps + row.warp;
  const auto batch = row.begin_stretch(stretch);
  const Asks asks = asks_of(row);
  if (asks == Asks::kNoDraw) return;
  Counters& counters = work.counters[turn.row];
  RowState& state = work.states[turn.row];
  if (threadIdx.x == 0) {
    while (atomicAdd(&counters.is_planned, 0u) == 0) {
#ifdef __CUDACC__
      __nanosleep(100);
#endif
    }
    __threadfence();
    shared.num_listed = 0;
  }
  __syncthreads();
  const Plan plan{__ldcg(&state.plan.draws), __ldcg(&state.plan.best),      __ldcg(&state.plan.above),
                  __ldcg(&state.plan.from),  __ldcg(&state.plan.from_step), __ldcg(&state.plan.has_all)};
  if (plan.draws == 0) return;
  row.set_best(plan.best);
  if (asks == Asks::kTopK) {
    list_top_k(shared, row, stretch, batch, plan);
  } else {
    weigh_stretch(shared, row, stretch, batch, plan, state, counters);
  }
  __syncthreads();
  const int32_t num_listed = shared.num_listed;
  if (threadIdx.x == 0 && num_listed > 0) shared.first_place = atomicAdd(&counters.num_listed, num_listed);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < min(num_listed, kMostListed); i += kThreads) {
    const int32_t place = shared.first_place + i;
    if (place >= kMostListed) break;
    state.values[place] = shared.values[i];
    state.indices[place] = shared.indices[i];
  }
  if (is_last(shared, counters.num_weighed, work.num_pieces)) draw(shared, row, work, turn.row, plan);
}

// --- all

// grid: any
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) choose(Work work) {
  begin_kernel();
  __shared__ Shared shared;
  const auto num_rows = static_cast<uint32_t>(work.args.num_rows);
  uint32_t next = threadIdx.x == 0 ? atomicAdd(work.next_turn, 1u) : 0;
  for (;;) {
    if (threadIdx.x == 0) shared.turn = next;
    __syncthreads();
    const uint32_t number = shared.turn;
    if (number >= work.num_turns) return;
    if (threadIdx.x == 0) next = atomicAdd(work.next_turn, 1u);  // is there when this one is done
    const Turn turn = turn_of(number, num_rows, work);
    Row row(work.args, turn.row, work.num_pieces);
    if (turn.weighs) {
      weigh(shared, row, work, turn);
    } else {
      look_at(shared, row, work, turn);
    }
    __syncthreads();
  }
}

int64_t num_pieces_of(int64_t size, int64_t rows, int64_t blocks) {
  const int64_t large = ceil_div(size, kPieceNumbers);
  const int64_t small = ceil_div(size, kLeastNumbers);
  return std::clamp(std::max(large, std::min(small, blocks / rows)), int64_t{1}, int64_t{kMostPieces});
}

int64_t blocks_at_once() {
  int device = 0;
  int processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return int64_t{kBlocksAtOnce} * processors;
}

}  // namespace
}  // namespace token_draw

void choose_tokens(const ChooseTokensArgs& args, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  using namespace token_draw;
  constexpr int64_t kUnit = alignof(RowState);
  const int64_t blocks = blocks_at_once();
  const int64_t pieces = num_pieces_of(args.size, std::max<int64_t>(args.num_rows, 1), blocks);
  const int64_t row_bytes = int64_t{sizeof(RowState)} + int64_t{sizeof(Counters)} + pieces * kBins * 2;
  const int64_t most = std::min((scratch_bytes - 2 * kUnit) / row_bytes, kMostRows);
  QUIRE_CHECK(most > 0);
  for (int64_t first = 0; first < args.num_rows; first += most) {
    Work work;
    work.args = args;
    work.args.in += first * args.size;
    work.args.num_rows = std::min(most, args.num_rows - first);
    work.args.choices = args.choices + first;
    work.args.tokens += first;
    const int64_t rows = work.args.num_rows;
    const int64_t counter_bytes = kUnit + rows * int64_t{sizeof(Counters)};
    auto* at = static_cast<char*>(scratch);
    check_cuda(cudaMemsetAsync(at, 0, static_cast<size_t>(counter_bytes), stream), "cudaMemsetAsync");
    work.next_turn = reinterpret_cast<uint32_t*>(at);
    work.counters = reinterpret_cast<Counters*>(at + kUnit);
    at += ceil_div(counter_bytes, kUnit) * kUnit;
    work.states = reinterpret_cast<RowState*>(at);
    work.counts = reinterpret_cast<uint16_t*>(work.states + rows);
    work.num_pieces = static_cast<int>(pieces);
    bool draws = false;
    for (int64_t i = 0; i < rows; ++i) draws |= work.args.choices.host[i].inverse_temperature != 0;
    // Half as many turns again as are under way at once: then a row is looked at when its second turn comes.
    work.rows_ahead =
        static_cast<uint32_t>(draws ? std::min<int64_t>(rows, ceil_div(blocks + blocks / 2, pieces)) : rows);
    work.num_turns = static_cast<uint32_t>((draws ? 2 : 1) * rows * pieces);
    const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, work.num_turns));
    launch(choose, dim3(grid), dim3(kThreads), 0, stream, work);
  }
}

}  // namespace quire::ops::cuda
