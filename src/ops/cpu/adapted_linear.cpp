#include "ops/cpu/adapted_linear.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "ops/cpu/panel_product.h"

namespace quire::ops::cpu {
namespace {

// What a unit of work has of factors, at most about: they come to the second cache during its part of the product.
constexpr int64_t kUnitBytes = int64_t{512} << 10;
// Ranks that are shrunk at once: as many as a kernel's tile has.
constexpr int32_t kRanksAtOnce = 8;

using Span = AdaptedScratch::Span;

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

// A thread's panels are neighbours, so that what is added to them is long runs of columns. With some of them it shrinks
// its share of the rows; with the others come the factors that expand all sums onto its panels, once the other threads'
// are there. The last of them whoever is free takes, itself or another thread. Who computes what has no influence on
// any sum.
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
    cut_into_pieces(args_.low_rank, kLowRankRowsTogether, scratch_.pieces);
    int32_t largest_rank = 0;
    for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
      const LowRankFactors& factors = *scratch_.pieces[i].factors;
      largest_rank = std::max(largest_rank, factors.rank);
      most_shrinks_ = std::max<int64_t>(most_shrinks_, shrinks_of(factors));
      if (!is_first_of_factors(i)) continue;
      first_bytes_ += down_bytes(factors);
      second_bytes_ += up_bytes(factors);
    }
    num_shrinks_ = most_shrinks_ * std::ssize(scratch_.pieces);
    piece_floats_ = kLowRankRowsTogether * largest_rank;
    const auto floats = static_cast<size_t>(piece_floats_ * std::ssize(scratch_.pieces));
    if (scratch_.shrunk.size() < floats) scratch_.shrunk.resize(floats);

    const int64_t threads = pool.num_threads();
    while (std::ssize(scratch_.threads) < threads) scratch_.threads.emplace_back();
    for (int64_t thread = 0; thread < threads; ++thread) {
      AdaptedScratch::Thread& its = scratch_.threads[static_cast<size_t>(thread)];
      its.panels = share_of({0, weight_.num_panels()}, thread, threads);
      its.next = end_of_fixed(its.panels);
    }
  }

  void run() {
    pool_.run([&](int thread) { work(thread); });
  }

 private:
  static int64_t shrinks_of(const LowRankFactors& factors) { return ceil_div(factors.rank, kRanksAtOnce); }

  // Whether the piece before it does not have the same, which are then there.
  bool is_first_of_factors(size_t piece) const {
    return piece == 0 || scratch_.pieces[piece - 1].factors != scratch_.pieces[piece].factors;
  }

  // Three quarters of its panels a thread has for itself.
  static int64_t end_of_fixed(Span panels) { return panels.begin + (panels.end - panels.begin) * 3 / 4; }

  // Of a thread, whose share of bytes comes while it computes these panels.
  int64_t units_for(int64_t bytes, Span panels) const {
    return std::clamp<int64_t>(ceil_div(bytes / pool_.num_threads(), kUnitBytes), 1, panels.end - panels.begin);
  }

  void work(int thread) {
    AdaptedScratch::Thread& own = scratch_.threads[static_cast<size_t>(thread)];
    // As many before rows are shrunk as the bytes for that are of all.
    const int64_t fixed = end_of_fixed(own.panels) - own.panels.begin;
    const int64_t before_shrinking =
        (own.panels.end - own.panels.begin) * first_bytes_ / (first_bytes_ + second_bytes_);
    const Span early = {own.panels.begin, own.panels.begin + std::clamp(before_shrinking, int64_t{1}, fixed - 1)};
    const Span late = {early.end, own.panels.begin + fixed};
    const Span shrinks = share_of({0, num_shrinks_}, thread, pool_.num_threads());
    const int64_t early_units = units_for(first_bytes_, early);
    for (int64_t unit = 0; unit < early_units; ++unit)
      multiply_and_shrink(share_of(early, unit, early_units), share_of(shrinks, unit, early_units), thread);
    have_shrunk_.fetch_add(1, std::memory_order_release);

    Span multiplied{};  // and not expanded onto
    const int64_t late_units = units_for(second_bytes_, late);
    for (int64_t unit = 0; unit < late_units; ++unit) {
      const Span before = share_of(early, unit, late_units);
      const Span panels = share_of(late, unit, late_units);
      // What others do not take belongs to the last.
      const Span all = {panels.begin, unit + 1 < late_units ? panels.end : own.panels.end};
      begin_fetching({before, all}, own);
      multiply(panels, all.end - all.begin, thread);
      if (late_units > 1) {
        expand(multiplied);
        expand(before);
        multiplied = panels;
      } else {
        multiplied = {before.begin, panels.end};
      }
    }
    for (int i = 0; i < pool_.num_threads(); ++i) {
      AdaptedScratch::Thread& its = scratch_.threads[static_cast<size_t>((thread + i) % pool_.num_threads())];
      for (Span panels = take(its); panels.begin < panels.end; panels = take(its)) {
        if (i > 0) begin_fetching({panels}, own);  // else it is under way
        multiply(panels, (i > 0 ? panels.end : own.panels.end) - panels.begin, thread);
        if (multiplied.end != panels.begin) expand(std::exchange(multiplied, {panels.begin, panels.begin}));
        multiplied.end = panels.end;
      }
    }
    expand(multiplied);
  }

  // Some of a thread's last panels, fewer and fewer so that all come to the end together; none: there are no more.
  static Span take(AdaptedScratch::Thread& its) {
    int64_t begin = its.next.load(std::memory_order_relaxed);
    while (begin < its.panels.end) {
      const int64_t end = begin + std::max<int64_t>((its.panels.end - begin) / 2, 1);
      if (its.next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
    }
    return {};
  }

  // What is in the thread's list.
  static void begin_fetching(AdaptedScratch::Thread& own) {
    const std::vector<MemoryRange>& ranges = own.fetched;
    own.queue = {};
    if (!ranges.empty())
      own.queue = {.now = ranges.front(), .next = ranges.data() + 1, .last = ranges.data() + ranges.size()};
  }

  // The panels' product, during which as much comes of what the thread is to fetch as they are of `panels_left`.
  void multiply(Span panels, int64_t panels_left, int thread) {
    const LinearArgs& product = args_.product;
    FetchQueue& queue = scratch_.threads[static_cast<size_t>(thread)].queue;
    int64_t bytes = queue.now.end - queue.now.begin;
    for (const MemoryRange* range = queue.next; range != queue.last; ++range) bytes += range->end - range->begin;
    const int64_t parts =
        product.num_rows * panels_left * (kPanelColumns / kTileColumns) * ceil_div(weight_.columns(), 32);
    queue.lines = static_cast<float>(bytes) / 64.0f / static_cast<float>(parts);
    const int64_t column = panels.begin * kPanelColumns;
    LinearTile tile = tile_of(weight_, panels.begin, panels.end - panels.begin);
    tile.rows = rows_.rows;
    tile.row_bytes = rows_.row_bytes;
    tile.num_rows = product.num_rows;
    tile.bias = product.bias == nullptr ? nullptr : product.bias + column;
    tile.out = product.out.floats() + column;
    tile.out_stride = product.out_stride;
    tile.scratch = rows_.tiles + thread * kLinearScratchFloats;
    tile.fetch = bytes <= 0 ? nullptr : &queue;
    rows_.kernel(tile);
  }

  // Calls body(piece, first rank, ranks) for some shrinks: each piece has as many, of kRanksAtOnce, as any has.
  template <typename Body>
  void for_shrinks(Span shrinks, const Body& body) const {
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

  void multiply_and_shrink(Span panels, Span shrinks, int thread) {
    AdaptedScratch::Thread& own = scratch_.threads[static_cast<size_t>(thread)];
    own.fetched.clear();
    for_shrinks(shrinks, [&](size_t piece, int32_t first, int32_t count) {
      if (!is_first_of_factors(piece)) return;
      const LowRankFactors& factors = *scratch_.pieces[piece].factors;
      const auto* down = static_cast<const uint8_t*>(factors.down);
      const int64_t bytes = row_bytes(factors.dtype, factors.in_features);
      own.fetched.push_back({down + first * bytes, down + (first + count) * bytes});
    });
    begin_fetching(own);
    multiply(panels, panels.end - panels.begin, thread);
    for_shrinks(shrinks, [&](size_t piece, int32_t first, int32_t count) {
      shrink(args_.low_rank, scratch_.pieces[piece], first, count, kernels_, shrunk_of(piece));
    });
  }

  // Calls body(part, first tile, last tile) for what the panels' columns have of a piece's parts.
  template <typename Body>
  static void for_parts(const LowRankFactors& factors, Span panels, const Body& body) {
    for (const LowRankPart& part : factors.parts) {
      const int64_t tiles = ceil_div(part.size, kLowRankColumns);
      const int64_t before = part.column / kLowRankColumns;
      constexpr int64_t kTiles = kPanelColumns / kLowRankColumns;
      const int64_t first = std::clamp<int64_t>(panels.begin * kTiles - before, 0, tiles);
      const int64_t last = std::clamp<int64_t>(panels.end * kTiles - before, 0, tiles);
      if (first < last) body(part, first, last);
    }
  }

  // What is expanded onto these panels.
  void begin_fetching(std::initializer_list<Span> spans, AdaptedScratch::Thread& own) const {
    own.fetched.clear();
    for (const Span& panels : spans) {
      for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
        if (!is_first_of_factors(i)) continue;
        const LowRankFactors& factors = *scratch_.pieces[i].factors;
        for_parts(factors, panels, [&](const LowRankPart& part, int64_t first, int64_t last) {
          const auto* up = static_cast<const uint8_t*>(part.up);
          const int64_t bytes = low_rank_up_bytes(factors.dtype, kLowRankColumns, part.rank);
          own.fetched.push_back({up + first * bytes, up + last * bytes});
        });
      }
    }
    begin_fetching(own);
  }

  void expand(Span panels) {
    if (panels.begin == panels.end) return;
    pool_.wait_until([&] { return have_shrunk_.load(std::memory_order_acquire) == pool_.num_threads(); });
    for (size_t i = 0; i < scratch_.pieces.size(); ++i) {
      const LowRankPiece& piece = scratch_.pieces[i];
      for_parts(*piece.factors, panels, [&](const LowRankPart& part, int64_t first, int64_t last) {
        expand_part(args_.low_rank, piece, part, first, last, kernels_, shrunk_of(i));
      });
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
  int64_t piece_floats_ = 0;                     // of shrunk rows
  int64_t first_bytes_ = 0;                      // of what shrinks
  int64_t second_bytes_ = 0;                     // and expands
  alignas(64) std::atomic<int> have_shrunk_{0};  // threads
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
