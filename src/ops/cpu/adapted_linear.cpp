#include "ops/cpu/adapted_linear.h"

#include <algorithm>
#include <atomic>

#include "ops/cpu/panel_product.h"

namespace quire::ops::cpu {
namespace {

// What a unit of work has of factors, about: they come to the second cache during its part of the product.
constexpr int64_t kUnitBytes = int64_t{128} << 10;
// Ranks that are shrunk at once: as many as a kernel's tile has.
constexpr int32_t kRanksAtOnce = 8;

// Neighbouring panels, or others that are counted.
struct Span {
  int64_t begin;
  int64_t end;
};

constexpr Span share_of(Span all, int64_t unit, int64_t units) {
  const int64_t size = all.end - all.begin;
  return {all.begin + size * unit / units, all.begin + size * (unit + 1) / units};
}

int64_t down_bytes(const LowRankFactors& factors) {
  return row_bytes(factors.dtype, factors.rank * factors.in_features);
}

int64_t up_bytes(const LowRankFactors& factors) {
  int64_t bytes = 0;
  for (const LowRankPart& part : factors.parts) bytes += low_rank_up_bytes(factors.dtype, part.size, part.rank);
  return bytes;
}

// Work has two phases. In the first the threads compute some panels and shrink rows, in the second the other panels;
// then sums are expanded onto the columns of those and of panels of the first. Units of a phase are taken by whichever
// thread is free; which has no influence on any sum.
class AdaptedProduct {
 public:
  AdaptedProduct(const AdaptedLinearArgs& args, const KernelRows& rows, const Kernels& kernels, ThreadPool& pool,
                 AdaptedScratch& scratch)
      : args_(args),
        weight_(static_cast<const PackedPanels&>(*args.product.weight)),
        rows_(rows),
        kernels_(kernels),
        pool_(pool),
        scratch_(scratch) {
    scratch_.pieces.clear();
    cut_into_pieces(args_.low_rank, scratch_.pieces);
    int64_t first_bytes = 0;
    int64_t second_bytes = 0;
    int32_t largest_rank = 0;
    for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
      const LowRankFactors& factors = *scratch_.pieces[i].factors;
      largest_rank = std::max(largest_rank, factors.rank);
      most_shrinks_ = std::max<int64_t>(most_shrinks_, shrinks_of(factors));
      if (!is_first_of_factors(i)) continue;
      first_bytes += down_bytes(factors);
      second_bytes += up_bytes(factors);
    }
    num_shrinks_ = most_shrinks_ * std::ssize(scratch_.pieces);
    piece_floats_ = kLowRankRowsTogether * largest_rank;
    const auto floats = static_cast<size_t>(piece_floats_ * std::ssize(scratch_.pieces));
    if (scratch_.shrunk.size() < floats) scratch_.shrunk.resize(floats);
    scratch_.fetched.resize(static_cast<size_t>(pool.num_threads()));

    // As many panels for each phase as it has bytes, and as many for each thread.
    const int64_t threads = pool.num_threads();
    const int64_t panels = weight_.num_panels();
    const int64_t share = panels * first_bytes / (first_bytes + second_bytes);
    const int64_t before = std::clamp((share + threads / 2) / threads, int64_t{1}, panels / threads - 1) * threads;
    early_ = {0, before};
    late_ = {before, panels};
    const auto units_for = [&](int64_t bytes, Span phase) {
      const int64_t of_thread = std::max<int64_t>((bytes / threads + kUnitBytes - 1) / kUnitBytes, 1);
      return std::min(of_thread * threads, phase.end - phase.begin);
    };
    early_units_ = units_for(first_bytes, early_);
    late_units_ = units_for(second_bytes, late_);
  }

  void run() {
    pool_.run([&](int thread) {
      for (int64_t unit = next_early_++; unit < early_units_; unit = next_early_++) compute_early(unit, thread);
      pool_.meet();
      for (int64_t unit = next_late_++; unit < late_units_; unit = next_late_++) compute_late(unit, thread);
    });
  }

 private:
  static int64_t shrinks_of(const LowRankFactors& factors) { return (factors.rank + kRanksAtOnce - 1) / kRanksAtOnce; }

  // Whether the piece before it does not have the same, which are then there.
  bool is_first_of_factors(size_t piece) const {
    return piece == 0 || scratch_.pieces[piece - 1].factors != scratch_.pieces[piece].factors;
  }

  // The panels' product, during which the ranges come that are in the thread's list.
  void multiply(Span panels, int thread) {
    const LinearArgs& product = args_.product;
    const std::vector<MemoryRange>& ranges = scratch_.fetched[static_cast<size_t>(thread)];
    FetchQueue queue{};
    if (!ranges.empty()) {
      int64_t bytes = 0;
      for (const MemoryRange& range : ranges) bytes += range.end - range.begin;
      const int64_t parts = product.num_rows * (panels.end - panels.begin) * (kPanelColumns / kTileColumns) *
                            ((weight_.columns() + 31) / 32);
      queue = {.now = ranges.front(),
               .next = ranges.data() + 1,
               .last = ranges.data() + ranges.size(),
               .lines = static_cast<float>(bytes) / 64.0f / static_cast<float>(parts)};
    }
    const int64_t column = panels.begin * kPanelColumns;
    LinearTile tile = tile_of(weight_, panels.begin, panels.end - panels.begin);
    tile.rows = rows_.rows;
    tile.row_bytes = rows_.row_bytes;
    tile.num_rows = product.num_rows;
    tile.bias = product.bias == nullptr ? nullptr : product.bias + column;
    tile.out = product.out.floats() + column;
    tile.out_stride = product.out_stride;
    tile.scratch = rows_.tiles + thread * kLinearScratchFloats;
    tile.fetch = ranges.empty() ? nullptr : &queue;
    rows_.kernel(tile);
  }

  // Calls body(piece, first rank, ranks) for what a unit shrinks: of each piece as many times kRanksAtOnce as any has.
  template <typename Body>
  void for_shrinks(int64_t unit, const Body& body) const {
    const Span shrinks = share_of({0, num_shrinks_}, unit, early_units_);
    for (int64_t i = shrinks.begin; i < shrinks.end;) {
      const auto piece = static_cast<size_t>(i / most_shrinks_);
      const int64_t end = std::min(shrinks.end, (i / most_shrinks_ + 1) * most_shrinks_);
      const int32_t rank = scratch_.pieces[piece].factors->rank;
      const auto first = static_cast<int32_t>(std::min<int64_t>(i % most_shrinks_ * kRanksAtOnce, rank));
      const auto last = static_cast<int32_t>(std::min<int64_t>((i % most_shrinks_ + end - i) * kRanksAtOnce, rank));
      if (first < last) body(piece, first, last - first);
      i = end;
    }
  }

  void compute_early(int64_t unit, int thread) {
    std::vector<MemoryRange>& ranges = scratch_.fetched[static_cast<size_t>(thread)];
    ranges.clear();
    for_shrinks(unit, [&](size_t piece, int32_t first, int32_t count) {
      if (!is_first_of_factors(piece)) return;
      const LowRankFactors& factors = *scratch_.pieces[piece].factors;
      const auto* down = static_cast<const uint8_t*>(factors.down);
      const int64_t bytes = row_bytes(factors.dtype, factors.in_features);
      ranges.push_back({down + first * bytes, down + (first + count) * bytes});
    });
    multiply(share_of(early_, unit, early_units_), thread);
    for_shrinks(unit, [&](size_t piece, int32_t first, int32_t count) {
      shrink(args_.low_rank, scratch_.pieces[piece], first, count, kernels_, shrunk_of(piece));
    });
  }

  // Calls body(part, first tile, last tile) for what the panels' columns have of a piece's parts.
  template <typename Body>
  static void for_parts(const LowRankFactors& factors, Span panels, const Body& body) {
    for (const LowRankPart& part : factors.parts) {
      const int64_t tiles = (part.size + kLowRankColumns - 1) / kLowRankColumns;
      const int64_t before = part.column / kLowRankColumns;
      constexpr int64_t kTiles = kPanelColumns / kLowRankColumns;
      const int64_t first = std::clamp<int64_t>(panels.begin * kTiles - before, 0, tiles);
      const int64_t last = std::clamp<int64_t>(panels.end * kTiles - before, 0, tiles);
      if (first < last) body(part, first, last);
    }
  }

  void compute_late(int64_t unit, int thread) {
    const Span now = share_of(late_, unit, late_units_);
    const Span deferred = share_of(early_, unit, late_units_);
    std::vector<MemoryRange>& ranges = scratch_.fetched[static_cast<size_t>(thread)];
    ranges.clear();
    for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
      if (!is_first_of_factors(i)) continue;
      const LowRankFactors& factors = *scratch_.pieces[i].factors;
      for (const Span& panels : {deferred, now}) {
        for_parts(factors, panels, [&](const LowRankPart& part, int64_t first, int64_t last) {
          const auto* up = static_cast<const uint8_t*>(part.up);
          const int64_t bytes = row_bytes(factors.dtype, kLowRankColumns) * part.rank;
          ranges.push_back({up + first * bytes, up + last * bytes});
        });
      }
    }
    multiply(now, thread);
    for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
      const LowRankPiece& piece = scratch_.pieces[i];
      for (const Span& panels : {deferred, now}) {
        for_parts(*piece.factors, panels, [&](const LowRankPart& part, int64_t first, int64_t last) {
          expand_part(args_.low_rank, piece, part, first, last, kernels_, shrunk_of(i));
        });
      }
    }
  }

  float* shrunk_of(size_t piece) { return scratch_.shrunk.data() + static_cast<int64_t>(piece) * piece_floats_; }

  const AdaptedLinearArgs& args_;
  const PackedPanels& weight_;
  const KernelRows& rows_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  AdaptedScratch& scratch_;
  int64_t most_shrinks_ = 0;  // of a piece
  int64_t num_shrinks_ = 0;
  int64_t piece_floats_ = 0;  // of shrunk rows
  Span early_{};              // panels of the first phase
  Span late_{};
  int64_t early_units_ = 0;
  int64_t late_units_ = 0;
  alignas(64) std::atomic<int64_t> next_early_{0};
  alignas(64) std::atomic<int64_t> next_late_{0};
};

}  // namespace

bool can_multiply_adapted(const AdaptedLinearArgs& args, int64_t row_bytes, int threads) {
  const LowRankArgs& low_rank = args.low_rank;
  const auto& weight = static_cast<const PackedPanels&>(*args.product.weight);
  if (low_rank.runs.empty() || low_rank.num_rows > most_rows_together(row_bytes)) return false;
  // Less is done sooner than another thread has begun.
  constexpr int64_t kLeastProducts = 65536;
  if (weight.num_panels() < 4 * int64_t{threads}) return false;
  if (low_rank.num_rows * weight.rows() * weight.columns() < kLeastProducts) return false;
  return std::ranges::all_of(low_rank.runs, [](const LowRankRun& run) {
    if (run.factors->replaces || run.x_column != 0 || run.out_column != 0) return false;
    return std::ranges::all_of(run.factors->parts,
                               [](const LowRankPart& part) { return part.column % kLowRankColumns == 0; });
  });
}

void multiply_adapted(const AdaptedLinearArgs& args, const KernelRows& rows, const Kernels& kernels, ThreadPool& pool,
                      AdaptedScratch& scratch) {
  AdaptedProduct(args, rows, kernels, pool, scratch).run();
}

}  // namespace quire::ops::cpu
