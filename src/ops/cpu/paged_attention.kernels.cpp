// Attention over the paged cache by online softmax (Milakov and Gimelshein, 2018). Positions are taken in tiles cut at
// absolute positions, of whole blocks or, where blocks are larger than a tile, of pieces of one. Query rows (a token's
// head) go through a tile in groups of up to six that share the loads of keys and values; what happens to one row never
// depends on the others of its group, so grouping changes no bit.
//
// A tile is read where it lies, and its codes become floats in registers, when one group is all there is (decoding);
// for more rows it is made floats once, in scratch. Both ways see the same floats in the same order. What scales a
// whole token (I8's scale, F8_E4M3's power of two) is applied to its score and to its weight, not to its numbers.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/kv_formats.h"
#include "ops/cpu/simd_math.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int kGroupRows = 6;
// Up to so many rows turn codes into floats each time they come by; for more, a tile of floats is worth its making.
constexpr int64_t kFewRows = 8;
// Tokens of a page of keys in scratch, [head_dim, kPageTokens]: a row is a cache line.
constexpr int64_t kPageTokens = 16;
constexpr int kPages = kAttentionTileTokens / kPageTokens;
constexpr int kPageVectors = kPageTokens / kWide;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kFloatBytes = sizeof(float);
constexpr float kMinusInfinity = -__builtin_inff();

QUIRE_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
QUIRE_INLINE int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
QUIRE_INLINE int64_t up_to_vectors(int64_t count) {
  return (count + kWide - 1) / kWide * kWide;
}

// A tile [begin, end) of positions.
struct Tile {
  int64_t begin;
  int64_t end;
};

// The tile that `position` lies in.
QUIRE_INLINE Tile tile_at(int64_t position, int64_t block_size) {
  if (block_size <= kAttentionTileTokens) {
    const int64_t tokens = kAttentionTileTokens / block_size * block_size;
    const int64_t begin = position / tokens * tokens;
    return {begin, begin + tokens};
  }
  const int64_t block = position / block_size * block_size;
  const int64_t begin = block + (position - block) / kAttentionTileTokens * kAttentionTileTokens;
  return {begin, smaller(begin + kAttentionTileTokens, block + block_size)};
}

// Where the tokens of a tile lie, page by page from its first: numbers d of the keys of page i at
// keys[i] + d * key_row, numbers of its token t at values[i] + t * value_row.
struct Places {
  const uint8_t* keys[kPages];
  const uint8_t* values[kPages];
  int64_t key_row;
  int64_t value_row;
};

// What scores and weights of a tile's tokens are multiplied by; used where `present`.
struct Scales {
  alignas(64) float keys[kAttentionTileTokens];
  alignas(64) float values[kAttentionTileTokens];
  bool present;
};

// What one query row sees of a tile, from its begin: nothing where lo >= hi.
struct Sight {
  int64_t lo;
  int64_t hi;
};

struct TileWork {
  int32_t head_dim;
  const Places* places;
  const Places* next;  // fetched ahead
  const Scales* scales;
  float soft_cap;  // of the scores; 0: none
  float* scores;
};

// The pages of a tile that positions [begin, end) lie in. REQUIRES: block_size is a multiple of kPageTokens.
template <int64_t kBytes>
QUIRE_INLINE Places places_in_cache(const AttentionWork& work, const uint8_t* keys, const uint8_t* values,
                                    const BlockId* block_table, const Tile& tile, int64_t begin, int64_t end) {
  Places places;
  places.key_row = work.block_size * kBytes;
  places.value_row = work.head_dim * kBytes;
  const int64_t first = (begin - tile.begin) / kPageTokens;
  const int64_t last = (end - 1 - tile.begin) / kPageTokens;
  int64_t block = (tile.begin + first * kPageTokens) / work.block_size;
  int64_t offset = tile.begin + first * kPageTokens - block * work.block_size;
  for (int64_t i = first; i <= last; ++i, offset += kPageTokens) {
    if (offset == work.block_size) {
      offset = 0;
      ++block;
    }
    const int64_t at = block_table[block] * work.block_stride;
    places.keys[i] = keys + at + offset * kBytes;
    places.values[i] = values + at + offset * work.head_dim * kBytes;
  }
  const auto repeat = [&places](int64_t i, int64_t of) {
    places.keys[i] = places.keys[of];
    places.values[i] = places.values[of];
  };
  for (int64_t i = 0; i < first; ++i) repeat(i, first);
  for (int64_t i = last + 1; i < kPages; ++i) repeat(i, last);
  return places;
}

// Of positions [begin, end).
QUIRE_INLINE void read_scales(const AttentionWork& work, const Tile& tile, int64_t begin, int64_t end, Scales* scales) {
  scales->present = work.dtype == DType::kI8 || work.dtype == DType::kF8E4M3;
  if (work.dtype == DType::kF8E4M3) {
    for (int64_t i = 0; i < kAttentionTileTokens; i += kWide) {
      store_wide(scales->keys + i, broadcast_wide(kF8E4M3Factor));
      store_wide(scales->values + i, broadcast_wide(kF8E4M3Factor));
    }
  }
  if (work.dtype != DType::kI8) return;
  const int64_t numbers = int64_t{work.head_dim} * work.block_size;
  while (begin < end) {
    const int64_t block = begin / work.block_size;
    const int64_t block_begin = block * work.block_size;
    const int64_t next = smaller(end, block_begin + work.block_size);
    const int64_t at = work.block_table[block] * work.block_stride + numbers + (begin - block_begin) * kFloatBytes;
    const auto bytes = static_cast<size_t>((next - begin) * kFloatBytes);
    std::memcpy(scales->keys + (begin - tile.begin), work.keys + at, bytes);
    std::memcpy(scales->values + (begin - tile.begin), (work.values != nullptr ? work.values : work.keys) + at, bytes);
    begin = next;
  }
}

// Into the second cache, no further: on the way to the first fewer lines can be waited for at once (F32: 10 GB/s, 19 to
// the second).
QUIRE_INLINE void fetch(const uint8_t* line) {
  __builtin_prefetch(line, 0, 2);
}

// Vectors that add_products() takes at once.
template <typename Format>
constexpr int kStep = Format::kLoadsPairs ? 2 : 1;

// acc[r][v ..] += factors[r] * the codes at `codes`. One vector of codes at a time where that is as cheap: with a dozen
// sums and three factors there is no register for a second one.
template <typename Format, int R, int V>
QUIRE_INLINE void add_products(const FW (&factors)[R], const uint8_t* codes, int v, FW (&acc)[R][V]) {
  if constexpr (Format::kLoadsPairs) {
    const Pair pair = Format::load_pair(codes);
    for (int r = 0; r < R; ++r) acc[r][v] = fma(factors[r], pair.first, acc[r][v]);
    for (int r = 0; r < R; ++r) acc[r][v + 1] = fma(factors[r], pair.second, acc[r][v + 1]);
  } else {
    const FW one = Format::load(codes);
    for (int r = 0; r < R; ++r) acc[r][v] = fma(factors[r], one, acc[r][v]);
  }
}

// acc[r][v] += factor(r) * the codes of V vectors, which load_vector(v) gives, for a factor a row from memory. What
// there is less of is held in registers.
template <int R, int V, typename Load, typename Factor>
QUIRE_INLINE void add_held_products(const Load& load_vector, const Factor& factor, FW (&acc)[R][V]) {
  FW codes[V];
  for (int v = 0; v < V; ++v) codes[v] = load_vector(v);
  for (int r = 0; r < R; ++r) {
    const FW f = factor(r);
    for (int v = 0; v < V; ++v) acc[r][v] = fma(f, codes[v], acc[r][v]);
  }
}

// Scores of V vectors of neighbouring tokens: sums over d = 0, 1, 2, ... REQUIRES: they begin with a page's first, or V
// is 1.
template <typename Format, int R, int V, bool kAhead>
QUIRE_INLINE void score_vectors(const TileWork& tile, const float* queries, int64_t vector) {
  static_assert(V == 1 || V % kPageVectors == 0);
  constexpr int kTaken = (V + kPageVectors - 1) / kPageVectors;  // pages
  const int64_t head_dim = tile.head_dim;
  const int64_t row = tile.places->key_row;
  const int64_t page = vector / kPageVectors;
  const int64_t within = (vector - page * kPageVectors) * kWide * Format::kBytes;
  const uint8_t* keys[kTaken];
  for (int i = 0; i < kTaken; ++i) keys[i] = tile.places->keys[page + i] + within;
  // Two pointers reach six rows by multiples of one stride: registers are scarce.
  const float* near = queries;
  const float* far = queries + 3 * head_dim;
  const auto query = [&](int r) { return broadcast_wide(r < 3 ? near[r * head_dim] : far[(r - 3) * head_dim]); };
  const auto codes_of = [](int v) { return v % kPageVectors * kWide * Format::kBytes; };
  FW acc[R][V] = {};
  const uint8_t* next[kTaken];
  for (int i = 0; i < kTaken; ++i) next[i] = tile.next->keys[page + i];
  const int64_t end = head_dim * row;
  for (int64_t at = 0; at < end; at += row, ++near, ++far) {
    if constexpr (kAhead) {
      if (at % kLineBytes < row) {
        for (int i = 0; i < kTaken; ++i) fetch(next[i] + at);
      }
    }
    if constexpr (R <= V && V > 1) {
      FW q[R];
      for (int r = 0; r < R; ++r) q[r] = query(r);
      for (int v = 0; v < V; v += kStep<Format>)
        add_products<Format, R, V>(q, keys[v / kPageVectors] + at + codes_of(v), v, acc);
    } else if constexpr (V > 1 && Format::kLoadsPairs) {
      static_assert(V == 2);
      const Pair key = Format::load_pair(keys[0] + at);
      add_held_products([&](int v) { return v == 0 ? key.first : key.second; }, query, acc);
    } else {
      add_held_products([&](int v) { return Format::load(keys[v / kPageVectors] + at + codes_of(v)); }, query, acc);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store_wide(tile.scores + r * kAttentionTileTokens + (vector + v) * kWide, acc[r][v]);
  }
}

// Vectors that a step of the loops takes, so that many sums are under way and the registers hold them.
template <typename Format>
constexpr int vectors_for(int rows) {
  if (kPageVectors == 1) return 4;  // all of a tile
  if (rows == 1) return 8;
  return rows == 2 || (rows == 3 && !Format::kLoadsPairs) ? 4 : 2;
}

// Scores of whole vectors, enough of them to cover [lo, hi); the other lanes are not used.
template <typename Format, int R, bool kAhead>
QUIRE_INLINE void score(const TileWork& tile, const float* queries, int64_t lo, int64_t hi) {
  int64_t vector = lo / kWide;
  const int64_t end = (hi + kWide - 1) / kWide;
  constexpr int kMost = vectors_for<Format>(R);
  if (vector % kPageVectors != 0) score_vectors<Format, R, 1, kAhead>(tile, queries, vector++);
  for (; vector + kMost <= end; vector += kMost) score_vectors<Format, R, kMost, kAhead>(tile, queries, vector);
  if constexpr (kMost > 2) {
    for (; vector + 2 <= end; vector += 2) score_vectors<Format, R, 2, kAhead>(tile, queries, vector);
  }
  if (vector < end) score_vectors<Format, R, 1, kAhead>(tile, queries, vector);
}

// e^x of x <= 0, within 2 ulp down to -86 and as good as nothing from there on; NaN stays. 2^n is one addition to the
// exponent, for it cannot leave the range.
QUIRE_INLINE FW exp_of_difference(FW x) {
  const Power power = power_of_e(max(broadcast_wide(-86.0f), x));
  return (FW)((IW)power.fraction + (power.shifted << 23));
}

// What there is of scales and cap made of the scores of R rows, where there is a cap.
template <int R>
void cap_scores(const TileWork& tile, const Sight (&sight)[R]) {
  for (int r = 0; r < R; ++r) {
    float* scores = tile.scores + r * kAttentionTileTokens;
    for (int64_t i = sight[r].lo / kWide * kWide; i < sight[r].hi; i += kWide) {
      FW x = load_wide(scores + i);
      if (tile.scales->present) x *= load_wide(tile.scales->keys + i);
      store_wide(scores + i, capped(x, tile.soft_cap));
    }
  }
}

// Scores -> exp(score - maximum) of what each row sees, 0 in the rest of those vectors; scale[r]: what earlier sums
// must be scaled by. A lane adds up the tokens of its place in the tile, so vectors without a token in sight may be
// left out.
template <int R>
QUIRE_INLINE void soften(const TileWork& tile, const Sight (&sight)[R], float* maximum, float* total,
                         float (&scale)[R]) {
  IW lanes;
  for (int i = 0; i < kWide; ++i) lanes[i] = i;
  const bool scaled = tile.scales->present;
  const bool scores_scaled = scaled && tile.soft_cap == 0;
  FW change{};
  for (int r = 0; r < R; ++r) {
    if (sight[r].lo >= sight[r].hi) continue;
    float* scores = tile.scores + r * kAttentionTileTokens;
    const auto lo = static_cast<int32_t>(sight[r].lo);
    const auto hi = static_cast<int32_t>(sight[r].hi);
    FW highest = broadcast_wide(maximum[r]);
    for (int32_t i = lo / kWide * kWide; i < hi; i += kWide) {
      FW x = load_wide(scores + i);
      if (scores_scaled) x *= load_wide(tile.scales->keys + i);
      const IW token = lanes + i;
      x = ((token >= lo) & (token < hi)) ? x : FW{} + kMinusInfinity;
      store_wide(scores + i, x);
      highest = max(highest, x);
    }
    const float new_maximum = largest(highest);
    change[r] = maximum[r] - new_maximum;
    maximum[r] = new_maximum;
  }
  change = exp_of_difference(change);
  for (int r = 0; r < R; ++r) {
    scale[r] = change[r];
    if (sight[r].lo >= sight[r].hi) continue;
    float* scores = tile.scores + r * kAttentionTileTokens;
    const FW shift = broadcast_wide(maximum[r]);
    FW sums{};
    for (int64_t i = sight[r].lo / kWide * kWide; i < sight[r].hi; i += kWide) {
      const FW p = exp_of_difference(load_wide(scores + i) - shift);
      store_wide(scores + i, scaled ? p * load_wide(tile.scales->values + i) : p);
      sums += p;
    }
    total[r] = fma(total[r], scale[r], sum(sums));
  }
}

// weighted[r][column ..] = weighted * scale + sum of p[t] * value[t] over the t that row r sees, rising; V vectors of
// columns, the last one of `last_columns`.
template <typename Format, int R, int V, bool kAhead>
QUIRE_INLINE void weigh_columns(const TileWork& tile, const Sight (&sight)[R], const float (&scale)[R], int64_t column,
                                int64_t last_columns, float* weighted) {
  FW acc[R][V];
  for (int r = 0; r < R; ++r) {
    float* row = weighted + r * tile.head_dim + column;
    for (int v = 0; v + 1 < V; ++v) acc[r][v] = load_wide(row + v * kWide) * scale[r];
    acc[r][V - 1] =
        (last_columns == kWide ? load_wide(row + (V - 1) * kWide) : load_some(row + (V - 1) * kWide, last_columns)) *
        scale[r];
  }
  // [lo, hi) is seen by some row, [all_lo, all_hi) by every one.
  int64_t lo = sight[0].lo;
  int64_t hi = sight[0].hi;
  int64_t all_lo = lo;
  int64_t all_hi = hi;
  for (int r = 1; r < R; ++r) {
    lo = smaller(lo, sight[r].lo);
    hi = larger(hi, sight[r].hi);
    all_lo = larger(all_lo, sight[r].lo);
    all_hi = smaller(all_hi, sight[r].hi);
  }
  const int64_t row_bytes = tile.places->value_row;
  const int64_t column_bytes = column * Format::kBytes;
  const float* p = tile.scores;
  for (int64_t t = lo; t < hi;) {
    const int64_t page = t / kPageTokens;
    const uint8_t* values = tile.places->values[page] + (t - page * kPageTokens) * row_bytes + column_bytes;
    const uint8_t* next = tile.next->values[page] + (t - page * kPageTokens) * row_bytes + column_bytes;
    const int64_t end = smaller(hi, (page + 1) * kPageTokens);
    const int64_t part = t < all_lo ? smaller(end, all_lo) : t < all_hi ? smaller(end, all_hi) : end;
    if (t >= all_lo && t < all_hi) {
      for (; t < part; ++t, values += row_bytes, next += row_bytes) {
        if constexpr (kAhead) {
          for (int64_t line = 0; line < V * kWide * Format::kBytes; line += kLineBytes) fetch(next + line);
        }
        const auto weight = [&](int r) { return broadcast_wide(p[r * kAttentionTileTokens + t]); };
        if constexpr (R <= V && V > 1) {
          FW weights[R];
          for (int r = 0; r < R; ++r) weights[r] = weight(r);
          for (int v = 0; v < V; v += kStep<Format>)
            add_products<Format, R, V>(weights, values + v * kWide * Format::kBytes, v, acc);
        } else if constexpr (V > 1 && Format::kLoadsPairs) {
          static_assert(V == 2);
          const Pair value = Format::load_pair(values);
          add_held_products([&](int v) { return v == 0 ? value.first : value.second; }, weight, acc);
        } else {
          add_held_products([&](int v) { return Format::load(values + v * kWide * Format::kBytes); }, weight, acc);
        }
      }
    } else {
      for (; t < part; ++t, values += row_bytes) {
        for (int r = 0; r < R; ++r) {
          if (t < sight[r].lo || t >= sight[r].hi) continue;
          const FW weight = broadcast_wide(p[r * kAttentionTileTokens + t]);
          for (int v = 0; v < V; ++v)
            acc[r][v] = fma(weight, Format::load(values + v * kWide * Format::kBytes), acc[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    float* row = weighted + r * tile.head_dim + column;
    for (int v = 0; v + 1 < V; ++v) store_wide(row + v * kWide, acc[r][v]);
    if (last_columns == kWide) {
      store_wide(row + (V - 1) * kWide, acc[r][V - 1]);
    } else {
      store_some(row + (V - 1) * kWide, acc[r][V - 1], last_columns);
    }
  }
}

// R neighbouring rows through a tile.
template <typename Format, int R, bool kAhead>
void attend(const AttentionWork& work, const TileWork& tile, const Sight* sights, int64_t row) {
  Sight sight[R];
  int64_t lo = kAttentionTileTokens;
  int64_t hi = 0;
  for (int r = 0; r < R; ++r) {
    sight[r] = sights[(row + r) / work.num_heads];
    if (sight[r].lo >= sight[r].hi) {
      sight[r] = {0, 0};
      continue;
    }
    lo = smaller(lo, sight[r].lo);
    hi = larger(hi, sight[r].hi);
  }
  if (lo >= hi) return;
  score<Format, R, kAhead>(tile, work.queries + row * work.head_dim, lo, hi);
  if (tile.soft_cap > 0) cap_scores<R>(tile, sight);
  float scale[R];
  soften<R>(tile, sight, work.maximum + row, work.sum + row, scale);
  float* weighted = work.weighted + row * work.head_dim;
  constexpr int kMost = vectors_for<Format>(R);
  int64_t column = 0;
  for (; column + kMost * kWide <= work.head_dim; column += kMost * kWide)
    weigh_columns<Format, R, kMost, kAhead>(tile, sight, scale, column, kWide, weighted);
  if constexpr (kMost > 2) {
    for (; column + 2 * kWide <= work.head_dim; column += 2 * kWide)
      weigh_columns<Format, R, 2, kAhead>(tile, sight, scale, column, kWide, weighted);
  }
  for (; column < work.head_dim; column += kWide)
    weigh_columns<Format, R, 1, kAhead>(tile, sight, scale, column, smaller(kWide, work.head_dim - column), weighted);
}

// All rows through a tile, in groups.
template <typename Format, bool kAhead>
QUIRE_INLINE void attend_rows(const AttentionWork& work, const TileWork& tile, const Sight* sights) {
  const int64_t rows = work.num_tokens * work.num_heads;
  for (int64_t row = 0; row < rows;) {
    int64_t count = rows - row;
    if constexpr (kAhead) {
      if (count > 4) count = count == 7 || count == 8 ? 4 : 3;
    } else {
      if (count >= kGroupRows) {
        attend<Format, kGroupRows, kAhead>(work, tile, sights, row);
        row += kGroupRows;
        continue;
      }
      if (count == 5) count = 3;
    }
    switch (count) {
      case 1:
        attend<Format, 1, kAhead>(work, tile, sights, row);
        break;
      case 2:
        attend<Format, 2, kAhead>(work, tile, sights, row);
        break;
      case 3:
        attend<Format, 3, kAhead>(work, tile, sights, row);
        break;
      default:
        attend<Format, 4, kAhead>(work, tile, sights, row);
        break;
    }
    row += count;
  }
}

// Keys of a tile whose blocks are no whole pages, token by token into the pages.
template <typename Format>
void gather_keys(const AttentionWork& work, const Tile& tile, int64_t begin, int64_t end, float* pages) {
  while (begin < end) {
    const int64_t block = begin / work.block_size;
    const int64_t offset = begin - block * work.block_size;
    const int64_t count = smaller(end - begin, work.block_size - offset);
    const uint8_t* from = work.keys + work.block_table[block] * work.block_stride + offset * Format::kBytes;
    for (int64_t d = 0; d < work.head_dim; ++d, from += work.block_size * Format::kBytes) {
      float row[kAttentionTileTokens];
      widen_run<Format>(from, count, row);
      for (int64_t t = 0; t < count;) {
        const int64_t token = begin - tile.begin + t;
        const int64_t run = smaller(count - t, kPageTokens - token % kPageTokens);
        float* const to = pages + (token / kPageTokens * work.head_dim + d) * kPageTokens + token % kPageTokens;
        std::memcpy(to, row + t, static_cast<size_t>(run) * sizeof(float));
        t += run;
      }
    }
    begin += count;
  }
}

// Rows of values out of pages of keys, for the tokens [begin, end) of a tile.
QUIRE_INLINE void turn_pages(const float* pages, int64_t begin, int64_t end, int64_t head_dim, int64_t row_floats,
                             float* rows) {
  for (int64_t first = begin / kPageTokens * kPageTokens; first < end; first += kPageTokens) {
    const float* page = pages + first * head_dim;
    for (int64_t d = 0; d < head_dim; ++d, page += kPageTokens) {
      for (int64_t token = 0; token < kPageTokens; ++token) rows[(first + token) * row_floats + d] = page[token];
    }
  }
}

// The floats of positions [begin, end) of a tile, in scratch.
template <typename Format>
Places widen_tile(const AttentionWork& work, const Tile& tile, int64_t begin, int64_t end) {
  const int64_t head_dim = work.head_dim;
  float* const key_pages = work.widened;
  float* const value_rows = work.widened + kAttentionTileTokens * head_dim;
  const int64_t row_floats = up_to_vectors(head_dim);
  Places places;
  places.key_row = kPageTokens * kFloatBytes;
  places.value_row = row_floats * kFloatBytes;
  for (int64_t i = 0; i < kPages; ++i) {
    places.keys[i] = reinterpret_cast<const uint8_t*>(key_pages + i * kPageTokens * head_dim);
    places.values[i] = reinterpret_cast<const uint8_t*>(value_rows + i * kPageTokens * row_floats);
  }
  if (work.block_size % kPageTokens == 0) {
    const Places from = places_in_cache<Format::kBytes>(work, work.keys, work.keys, work.block_table, tile, begin, end);
    for (int64_t i = (begin - tile.begin) / kPageTokens; i * kPageTokens < end - tile.begin; ++i) {
      float* to = key_pages + i * kPageTokens * head_dim;
      const uint8_t* keys = from.keys[i];
      for (int64_t d = 0; d < head_dim; ++d, to += kPageTokens, keys += from.key_row) {
        for (int64_t v = 0; v < kPageTokens; v += kWide) store_wide(to + v, Format::load(keys + v * Format::kBytes));
      }
    }
  } else {
    gather_keys<Format>(work, tile, begin, end, key_pages);
  }
  if (work.values == nullptr) {  // a cache of keys alone
    turn_pages(key_pages, begin - tile.begin, end - tile.begin, head_dim, row_floats, value_rows);
    return places;
  }
  while (begin < end) {
    const int64_t block = begin / work.block_size;
    const int64_t offset = begin - block * work.block_size;
    const int64_t count = smaller(end - begin, work.block_size - offset);
    const uint8_t* from =
        work.values + work.block_table[block] * work.block_stride + offset * head_dim * Format::kBytes;
    float* to = value_rows + (begin - tile.begin) * row_floats;
    if (row_floats == head_dim) {
      widen_run<Format>(from, count * head_dim, to);
    } else {
      for (int64_t t = 0; t < count; ++t)
        widen_run<Format>(from + t * head_dim * Format::kBytes, head_dim, to + t * row_floats);
    }
    begin += count;
  }
  return places;
}

template <typename Format>
void attention_over(const AttentionWork& work) {
  const bool whole = work.block_size % kPageTokens == 0 && work.head_dim % kWide == 0;
  const bool few_rows = work.num_tokens * work.num_heads <= kFewRows;
  const bool in_place = whole && work.values != nullptr && (few_rows || work.dtype == DType::kF32);

  const auto first_seen = [&work](int64_t position) {
    return work.window > 0 ? larger(0, position - work.window + 1) : int64_t{0};
  };
  const auto end_of_sight = [&work](int64_t at) {
    if (work.context == 0) return at + 1;
    return work.window > 0 ? smaller(work.context, at + work.window) : work.context;
  };
  const int64_t last = smaller(work.split_end, end_of_sight(work.first_position + work.num_tokens - 1));
  int64_t position = larger(work.split_begin, first_seen(work.first_position));
  if (position >= last) return;

  Scales scales;
  Sight sights[kAttentionMaxTokens];
  Tile tile = tile_at(position, work.block_size);
  Places places;
  const auto in_cache = [&](const Tile& at, int64_t begin, int64_t end) {
    return places_in_cache<Format::kBytes>(work, work.keys, work.values, work.block_table, at, begin, end);
  };
  if (in_place) places = in_cache(tile, position, smaller(tile.end, last));
  while (true) {
    const int64_t end = smaller(tile.end, last);
    for (int64_t token = 0; token < work.num_tokens; ++token) {
      const int64_t at = work.first_position + token;
      sights[token] = {larger(first_seen(at), position) - tile.begin, smaller(end_of_sight(at), end) - tile.begin};
    }
    read_scales(work, tile, position, end, &scales);
    TileWork tile_work{work.head_dim, &places, &places, &scales, work.soft_cap, work.scores};
    const bool more = tile.end < last;
    const Tile next = more ? tile_at(tile.end, work.block_size) : tile;
    if (!in_place) {
      places = widen_tile<Format>(work, tile, position, end);
      attend_rows<FloatFormat, false>(work, tile_work, sights);
    } else {
      Places next_places = places;
      if (more) {
        next_places = in_cache(next, next.begin, smaller(next.end, last));
      } else if (work.next_begin < work.next_end) {
        const Tile first = tile_at(work.next_begin, work.block_size);
        next_places = places_in_cache<Format::kBytes>(work, work.next_keys, work.next_values, work.next_block_table,
                                                      first, work.next_begin, smaller(first.end, work.next_end));
      }
      tile_work.next = &next_places;
      if (few_rows) {
        attend_rows<Format, true>(work, tile_work, sights);
      } else {
        attend_rows<FloatFormat, false>(work, tile_work, sights);
      }
      places = next_places;
    }
    if (!more) return;
    tile = next;
    position = tile.begin;
  }
}

}  // namespace

void attention(const AttentionWork& work) {
  const int64_t rows = work.num_tokens * work.num_heads;
  for (int64_t row = 0; row < rows; ++row) {
    work.maximum[row] = kMinusInfinity;
    work.sum[row] = 0;
  }
  std::memset(work.weighted, 0, sizeof(float) * static_cast<size_t>(rows * work.head_dim));
  with_format(work.dtype, [&work](auto format) { attention_over<decltype(format)>(work); });
}

void attention_fold(float* total_maximum, float* total_sum, float* total, const float* maximum, const float* sum,
                    const float* weighted, int64_t num_rows, int32_t head_dim) {
  for (int64_t row = 0; row < num_rows; ++row, total += head_dim, weighted += head_dim) {
    if (total_sum[row] == 0) {  // the first part
      total_maximum[row] = maximum[row];
      total_sum[row] = sum[row];
      std::memcpy(total, weighted, sizeof(float) * static_cast<size_t>(head_dim));
      continue;
    }
    const float new_maximum = total_maximum[row] > maximum[row] ? total_maximum[row] : maximum[row];
    const FW scales = exp_of_difference(FW{total_maximum[row] - new_maximum, maximum[row] - new_maximum});
    const float old_scale = scales[0];
    const float scale = scales[1];
    total_sum[row] = fma(sum[row], scale, total_sum[row] * old_scale);
    total_maximum[row] = new_maximum;
    int32_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes)
      store(total + d, fma(load(weighted + d), broadcast(scale), load(total + d) * old_scale));
    for (; d < head_dim; ++d) total[d] = fma(weighted[d], scale, total[d] * old_scale);
  }
}

void attention_finish(const float* weighted, float total, int32_t head_dim, float* out) {
  int32_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(out + d, load(weighted + d) / total);
  for (; d < head_dim; ++d) out[d] = weighted[d] / total;
}

}  // namespace quire::ops::cpu::QUIRE_ISA
