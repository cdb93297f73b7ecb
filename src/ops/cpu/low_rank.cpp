#include "ops/cpu/low_rank.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/stored_values.h"

namespace quire::ops::cpu {
namespace {

constexpr int64_t tiles_for(int64_t columns) {
  return (columns + kLowRankColumns - 1) / kLowRankColumns;
}

// Multiply-adds that are done sooner than another thread has begun.
constexpr int64_t kLeastProducts = 65536;

// Whether its products are the results, where they belong; else they are for expand() to do something with.
bool is_direct(const LowRankArgs& args, const LowRankFactors& factors) {
  return factors.replaces && (factors.only.empty() || args.x == nullptr);
}

int64_t products_of(const LowRankPiece& piece, bool looked_up) {
  int64_t products = looked_up ? 0 : int64_t{piece.factors->rank} * piece.factors->in_features;
  for (const LowRankPart& part : piece.factors->parts) products += part.size * part.rank;
  return products * piece.num_rows;
}

int64_t tiles_of(const LowRankFactors& factors) {
  int64_t tiles = tiles_for(std::ssize(factors.only));
  for (const LowRankPart& part : factors.parts) tiles += tiles_for(part.size);
  return tiles;
}

}  // namespace

void cut_into_pieces(const LowRankArgs& args, int64_t most_rows, std::vector<LowRankPiece>& pieces) {
  pieces.clear();
  for (const LowRankRun& run : args.runs) {
    for (int64_t row = 0; row < run.num_rows; row += most_rows) {
      pieces.push_back(
          {run.factors, run.row + row, std::min(most_rows, run.num_rows - row), run.x_column, run.out_column});
    }
  }
}

void shrink(const LowRankArgs& args, const LowRankPiece& piece, int32_t first, int32_t count, const Kernels& kernels,
            float* shrunk) {
  const LowRankFactors& factors = *piece.factors;
  const bool direct = is_direct(args, factors);
  float* out = direct ? args.out + piece.row * args.out_stride + piece.out_column : shrunk;
  const int64_t out_stride = direct ? args.out_stride : factors.rank;
  const auto* down = static_cast<const uint8_t*>(factors.down);
  const auto dtype = factors.dtype;
  if (args.x == nullptr) {
    const auto dequantise = kernels.dequantise[static_cast<size_t>(dtype)];
    for (int64_t m = 0; m < piece.num_rows; ++m) {
      int64_t id = args.ids.host[piece.row + m];
      if (!factors.only.empty()) {
        const auto found = std::ranges::lower_bound(factors.only, id);
        if (found == factors.only.end() || *found != id) continue;
        id = found - factors.only.begin();
      }
      dequantise(down + row_bytes(dtype, id * factors.rank + first), count, out + m * out_stride + first);
    }
    return;
  }
  kernels.low_rank_shrink({.x = args.x + piece.row * args.x_stride + piece.x_column,
                           .x_stride = args.x_stride,
                           .num_rows = piece.num_rows,
                           .dtype = dtype,
                           .down = down + row_bytes(dtype, factors.in_features) * first,
                           .k = factors.in_features,
                           .num_ranks = count,
                           .out = out + first,
                           .out_stride = out_stride});
}

void expand(const LowRankArgs& args, const LowRankPiece& piece, int64_t begin, int64_t end, const Kernels& kernels,
            const float* shrunk) {
  if (!piece.factors->only.empty() && args.x != nullptr) {
    const int64_t rank = piece.factors->rank;
    for (int64_t m = 0; m < piece.num_rows; ++m) {
      float* out = args.out + (piece.row + m) * args.out_stride + piece.out_column;
      for (int64_t i = begin * kLowRankColumns; i < std::min(end * kLowRankColumns, rank); ++i)
        out[piece.factors->only[static_cast<size_t>(i)]] = shrunk[m * rank + i];
    }
    return;
  }
  int64_t offset = 0;
  for (const LowRankPart& part : piece.factors->parts) {
    const int64_t tiles = tiles_for(part.size);
    const int64_t first = std::clamp<int64_t>(begin - offset, 0, tiles);
    const int64_t last = std::clamp<int64_t>(end - offset, 0, tiles);
    offset += tiles;
    if (first >= last) continue;
    expand_part(args, piece, part, first, last, kernels, shrunk);
  }
}

void expand_part(const LowRankArgs& args, const LowRankPiece& piece, const LowRankPart& part, int64_t first,
                 int64_t last, const Kernels& kernels, const float* shrunk) {
  const int64_t tile_bytes = low_rank_up_bytes(piece.factors->dtype, kLowRankColumns, part.rank);
  const int64_t column = first * kLowRankColumns;
  kernels.low_rank_expand({.shrunk = shrunk + part.first,
                           .shrunk_stride = piece.factors->rank,
                           .num_rows = piece.num_rows,
                           .dtype = piece.factors->dtype,
                           .up = static_cast<const uint8_t*>(part.up) + first * tile_bytes,
                           .rank = part.rank,
                           .scale = part.scale,
                           .gain = part.gain == nullptr ? nullptr : part.gain + column,
                           .shift = part.gain == nullptr ? nullptr : part.shift + column,
                           .columns = std::min(last * kLowRankColumns, part.size) - column,
                           .out = args.out + piece.row * args.out_stride + piece.out_column + part.column + column,
                           .out_stride = args.out_stride});
}

// Where there are enough pieces each is one thread's from end to end; else the threads share its ranks, then its
// columns. Either way the sums are the same.
void add_low_rank(const LowRankArgs& args, const Kernels& kernels, ThreadPool& pool, std::vector<float>& scratch) {
  QUIRE_CHECK_MSG(args.rows.of_token == nullptr, "rows of a device with memory of its own");
  std::vector<LowRankPiece> pieces;
  int64_t most_rows = kLowRankManyRowsTogether;
  cut_into_pieces(args, most_rows, pieces);
  if (std::ssize(pieces) < 4 * pool.num_threads()) {
    most_rows = kLowRankRowsTogether;
    cut_into_pieces(args, most_rows, pieces);
  }
  int64_t products = 0;
  int32_t largest_rank = 0;
  for (const LowRankPiece& piece : pieces) {
    if (!is_direct(args, *piece.factors)) largest_rank = std::max(largest_rank, piece.factors->rank);
    products += products_of(piece, args.x == nullptr);
  }
  const auto num_pieces = static_cast<int64_t>(pieces.size());
  const int threads = pool.num_threads();
  const int64_t floats = most_rows * largest_rank;
  const auto whole = [&](int64_t piece, int thread) {
    float* shrunk = scratch.data() + thread * floats;
    const LowRankPiece& one = pieces[static_cast<size_t>(piece)];
    shrink(args, one, 0, one.factors->rank, kernels, shrunk);
    expand(args, one, 0, tiles_of(*one.factors), kernels, shrunk);
  };
  const bool alone = threads == 1 || products < kLeastProducts;
  const bool whole_pieces = alone || num_pieces >= 2 * threads;
  const int64_t wanted = floats * (whole_pieces ? threads : num_pieces);
  if (static_cast<int64_t>(scratch.size()) < wanted) scratch.resize(static_cast<size_t>(wanted));
  if (alone) {
    for (int64_t piece = 0; piece < num_pieces; ++piece) whole(piece, 0);
    return;
  }
  if (whole_pieces) return pool.parallel_for(num_pieces, whole);
  const auto shrunk = [&](int64_t piece) { return scratch.data() + piece * floats; };
  pool.run([&](int thread) {
    const auto share = [&](int64_t all) { return all * thread / threads; };
    const auto share_end = [&](int64_t all) { return all * (thread + 1) / threads; };
    for (int64_t i = 0; i < num_pieces; ++i) {
      const LowRankPiece& piece = pieces[static_cast<size_t>(i)];
      const auto first = static_cast<int32_t>(share(piece.factors->rank));
      const auto end = static_cast<int32_t>(share_end(piece.factors->rank));
      if (first < end) shrink(args, piece, first, end - first, kernels, shrunk(i));
    }
    pool.meet();
    for (int64_t i = 0; i < num_pieces; ++i) {
      const LowRankPiece& piece = pieces[static_cast<size_t>(i)];
      const int64_t tiles = tiles_of(*piece.factors);
      expand(args, piece, share(tiles), share_end(tiles), kernels, shrunk(i));
    }
  });
}

}  // namespace quire::ops::cpu
