// Attention over the paged cache by online softmax (Milakov and Gimelshein, 2018). Positions are taken in tiles cut at
// absolute positions, of whole blocks or, where blocks are larger than a tile, of pieces of one. Query rows (a token's
// head) go through a tile in groups of up to six that share the loads of keys and values; what happens to one row never
// depends on the others of its group, so grouping changes no bit. A cache of floats is read where it lies; of any other
// format a tile is made floats once, for all query rows that see it, and read from there: the same floats in the same
// order.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int kGroupRows = 6;
constexpr float kMinusInfinity = -__builtin_inff();

QUIRE_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
QUIRE_INLINE int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
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

// What attention reads of a tile: its positions, and its floats where they are not the cache's own.
struct TileData {
  Tile tile;
  const float* keys = nullptr;    // [blocks, head_dim, key_stride]; nullptr: in the cache
  const float* values = nullptr;  // [tokens, head_dim]
  int64_t key_stride = 0;
};

// The positions [begin, end) of a tile that lie in one block, and the page they lie in: the block, or its piece in the
// tile where blocks are larger.
struct Segment {
  int64_t begin;
  int64_t end;
  int64_t offset;       // of `begin` within the page
  int64_t page_tokens;  // that may be read
  int64_t key_stride;
  const float* keys;    // of the page: [head_dim, key_stride]
  const float* values;  // of the page: [page_tokens, head_dim]
};

QUIRE_INLINE Segment segment_at(const AttentionWork& work, const TileData& data, int64_t position, int64_t end) {
  const int64_t block = position / work.block_size;
  const int64_t block_begin = block * work.block_size;
  const int64_t block_end = block_begin + work.block_size;
  const int64_t page_begin = larger(block_begin, data.tile.begin);
  Segment segment{};
  segment.begin = position;
  segment.end = smaller(end, block_end);
  segment.offset = position - page_begin;
  if (data.keys != nullptr) {
    segment.page_tokens = data.key_stride;
    segment.key_stride = data.key_stride;
    segment.keys = data.keys + (page_begin - data.tile.begin) * work.head_dim;
    segment.values = data.values + (page_begin - data.tile.begin) * work.head_dim;
  } else {
    const int64_t at = work.block_table[block] * work.block_bytes;
    segment.page_tokens = block_end - page_begin;
    segment.key_stride = work.block_size;
    segment.keys = reinterpret_cast<const float*>(work.keys + at) + (page_begin - block_begin);
    segment.values = reinterpret_cast<const float*>(work.values + at) + (page_begin - block_begin) * work.head_dim;
  }
  return segment;
}

// Makes floats of the pages of a tile that positions [begin, end) lie in.
TileData widen_tile(const AttentionWork& work, const Tile& tile, int64_t begin, int64_t end) {
  float* keys = work.widened;
  float* values = work.widened + int64_t{kAttentionTileTokens} * work.head_dim;
  const int64_t key_stride = smaller(work.block_size, kAttentionTileTokens);
  while (begin < end) {
    const int64_t block = begin / work.block_size;
    const int64_t block_begin = block * work.block_size;
    const int64_t page_begin = larger(block_begin, tile.begin);
    const int64_t page_end = smaller(block_begin + work.block_size, tile.end);
    const int64_t at = work.block_table[block] * work.block_bytes;
    KvPage page{};
    page.dtype = work.dtype;
    page.head_dim = work.head_dim;
    page.block_size = work.block_size;
    page.first = page_begin - block_begin;
    page.count = page_end - page_begin;
    page.head = work.keys + at;
    widen_keys(page, key_stride, keys + (page_begin - tile.begin) * work.head_dim);
    page.head = work.values + at;
    widen_values(page, values + (page_begin - tile.begin) * work.head_dim);
    begin = page_end;
  }
  return {tile, keys, values, key_stride};
}

// scores[r][0..8V) of V vectors of neighbouring tokens: sums over d = 0, 1, 2, ...
template <int R, int V>
QUIRE_INLINE void score_vectors(const float* queries, int32_t head_dim, const float* keys, int64_t key_stride,
                                float* scores) {
  F8 acc[R][V] = {};
  for (int32_t d = 0; d < head_dim; ++d) {
    F8 k[V];
    for (int v = 0; v < V; ++v) k[v] = load(keys + d * key_stride + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const F8 q = broadcast(queries[r * head_dim + d]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(q, k[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(scores + r * kAttentionTileTokens + v * kLanes, acc[r][v]);
  }
}

// Scores of the tokens of a segment; `scores` is the place of the page's first token. Whole vectors of the page are
// computed where it has them: lanes before the segment and after it are not used.
template <int R>
QUIRE_INLINE void score_segment(const float* queries, int32_t head_dim, const Segment& segment, float* scores) {
  const float* keys = segment.keys;
  const int64_t key_stride = segment.key_stride;
  const int64_t end = segment.offset + (segment.end - segment.begin);
  int64_t i = segment.offset / kLanes * kLanes;
  while (i < end) {
    if (i + 2 * kLanes <= segment.page_tokens && i + kLanes < end) {
      score_vectors<R, 2>(queries, head_dim, keys + i, key_stride, scores + i);
      i += 2 * kLanes;
    } else if (i + kLanes <= segment.page_tokens) {
      score_vectors<R, 1>(queries, head_dim, keys + i, key_stride, scores + i);
      i += kLanes;
    } else {
      for (int r = 0; r < R; ++r) {
        float score = 0;
        for (int32_t d = 0; d < head_dim; ++d) score = fma(queries[r * head_dim + d], keys[d * key_stride + i], score);
        scores[r * kAttentionTileTokens + i] = score;
      }
      ++i;
    }
  }
}

// scores -> exp(score - maximum) within [lo, hi), 0 in the rest of their vectors; returns what earlier sums must be
// scaled by. A lane adds up the tokens of its place in the tile, so vectors without a token in sight may be left out.
QUIRE_INLINE float soften(float* scores, int64_t lo, int64_t hi, float* maximum, float* total) {
  const int64_t begin = lo / kLanes * kLanes;
  const int64_t end = (hi + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = begin; i < lo; ++i) scores[i] = kMinusInfinity;
  for (int64_t i = hi; i < end; ++i) scores[i] = kMinusInfinity;
  F8 highest = broadcast(*maximum);
  for (int64_t i = begin; i < end; i += kLanes) highest = max(highest, load(scores + i));
  const float new_maximum = largest(highest);
  const F8 shift = broadcast(new_maximum);
  F8 sums = zero();
  for (int64_t i = begin; i < end; i += kLanes) {
    const F8 p = exp(load(scores + i) - shift);
    store(scores + i, p);
    sums += p;
  }
  const float scale = exp(broadcast(*maximum - new_maximum))[0];
  *total = fma(*total, scale, sum(sums));
  *maximum = new_maximum;
  return scale;
}

// weighted[r][c..c + 8V) = weighted * scale + sum of p[t] * value[t] over t = lo .. hi - 1.
template <int R, int V>
QUIRE_INLINE void weigh_columns(const AttentionWork& work, const TileData& data, int64_t lo, int64_t hi,
                                const float* scores, const float (&scale)[R], int32_t column, float* weighted) {
  F8 acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = load(weighted + r * work.head_dim + column + v * kLanes) * scale[r];
  }
  for (int64_t position = data.tile.begin + lo; position < data.tile.begin + hi;) {
    const Segment segment = segment_at(work, data, position, data.tile.begin + hi);
    const float* values = segment.values + segment.offset * work.head_dim + column;
    const float* p = scores + (position - data.tile.begin);
    for (int64_t t = 0; t < segment.end - segment.begin; ++t) {
      F8 value[V];
      for (int v = 0; v < V; ++v) value[v] = load(values + t * work.head_dim + v * kLanes);
      for (int r = 0; r < R; ++r) {
        const F8 weight = broadcast(p[r * kAttentionTileTokens + t]);
        for (int v = 0; v < V; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
      }
    }
    position = segment.end;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(weighted + r * work.head_dim + column + v * kLanes, acc[r][v]);
  }
}

// The same for one column: head sizes that are no multiple of 8.
template <int R>
QUIRE_INLINE void weigh_column(const AttentionWork& work, const TileData& data, int64_t lo, int64_t hi,
                               const float* scores, const float (&scale)[R], int32_t column, float* weighted) {
  for (int r = 0; r < R; ++r) {
    float acc = weighted[r * work.head_dim + column] * scale[r];
    for (int64_t position = data.tile.begin + lo; position < data.tile.begin + hi; ++position) {
      const Segment segment = segment_at(work, data, position, position + 1);
      const float weight = scores[r * kAttentionTileTokens + (position - data.tile.begin)];
      acc = fma(weight, segment.values[segment.offset * work.head_dim + column], acc);
    }
    weighted[r * work.head_dim + column] = acc;
  }
}

// R rows, from `row` on, over the positions [lo, hi) of a tile (counted from its begin).
template <int R>
void attend(const AttentionWork& work, int64_t row, const TileData& data, int64_t lo, int64_t hi) {
  const float* queries = work.queries + row * work.head_dim;
  for (int64_t position = data.tile.begin + lo; position < data.tile.begin + hi;) {
    const Segment segment = segment_at(work, data, position, data.tile.begin + hi);
    score_segment<R>(queries, work.head_dim, segment, work.scores + (segment.begin - segment.offset - data.tile.begin));
    position = segment.end;
  }
  float scale[R];
  for (int r = 0; r < R; ++r) {
    scale[r] = soften(work.scores + r * kAttentionTileTokens, lo, hi, work.maximum + row + r, work.sum + row + r);
  }
  float* weighted = work.weighted + row * work.head_dim;
  int32_t column = 0;
  for (; column + 2 * kLanes <= work.head_dim; column += 2 * kLanes)
    weigh_columns<R, 2>(work, data, lo, hi, work.scores, scale, column, weighted);
  for (; column + kLanes <= work.head_dim; column += kLanes)
    weigh_columns<R, 1>(work, data, lo, hi, work.scores, scale, column, weighted);
  for (; column < work.head_dim; ++column) weigh_column<R>(work, data, lo, hi, work.scores, scale, column, weighted);
}

void attend_rows(const AttentionWork& work, int64_t row, int64_t end, const TileData& data, int64_t lo, int64_t hi) {
  while (row < end) {
    const int64_t rows = smaller(end - row, kGroupRows);
    switch (rows) {
      case 1:
        attend<1>(work, row, data, lo, hi);
        break;
      case 2:
        attend<2>(work, row, data, lo, hi);
        break;
      case 3:
        attend<3>(work, row, data, lo, hi);
        break;
      case 4:
        attend<4>(work, row, data, lo, hi);
        break;
      case 5:
        attend<5>(work, row, data, lo, hi);
        break;
      default:
        attend<6>(work, row, data, lo, hi);
        break;
    }
    row += rows;
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

  const auto first_seen = [&work](int64_t position) {
    return work.window > 0 ? larger(0, position - work.window + 1) : int64_t{0};
  };
  const int64_t last = smaller(work.split_end, work.first_position + work.num_tokens);
  int64_t position = larger(work.split_begin, first_seen(work.first_position));
  while (position < last) {
    const Tile tile = tile_at(position, work.block_size);
    const TileData data =
        work.dtype == DType::kF32 ? TileData{tile} : widen_tile(work, tile, position, smaller(tile.end, last));
    // Neighbouring tokens that see the same part of the tile go together.
    const auto low = [&](int64_t token) { return larger(first_seen(work.first_position + token), tile.begin); };
    const auto high = [&](int64_t token) { return smaller(work.first_position + token + 1, tile.end); };
    for (int64_t token = 0; token < work.num_tokens;) {
      const int64_t lo = low(token);
      const int64_t hi = high(token);
      int64_t next = token + 1;
      while (next < work.num_tokens && low(next) == lo && high(next) == hi) ++next;
      if (lo < hi) {
        attend_rows(work, token * work.num_heads, next * work.num_heads, data, lo - tile.begin, hi - tile.begin);
      }
      token = next;
    }
    position = tile.end;
  }
}

void attention_fold(float* total_maximum, float* total_sum, float* total, float maximum, float partial_sum,
                    const float* weighted, int32_t head_dim) {
  if (*total_sum == 0) {  // the first part
    *total_maximum = maximum;
    *total_sum = partial_sum;
    std::memcpy(total, weighted, sizeof(float) * static_cast<size_t>(head_dim));
    return;
  }
  const float new_maximum = *total_maximum > maximum ? *total_maximum : maximum;
  const float old_scale = exp(broadcast(*total_maximum - new_maximum))[0];
  const float scale = exp(broadcast(maximum - new_maximum))[0];
  *total_sum = fma(partial_sum, scale, *total_sum * old_scale);
  *total_maximum = new_maximum;
  int32_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes)
    store(total + d, fma(load(weighted + d), broadcast(scale), load(total + d) * old_scale));
  for (; d < head_dim; ++d) total[d] = fma(weighted[d], scale, total[d] * old_scale);
}

void attention_finish(const float* weighted, float total, int32_t head_dim, float* out) {
  int32_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(out + d, load(weighted + d) / total);
  for (; d < head_dim; ++d) out[d] = weighted[d] / total;
}

}  // namespace quire::ops::cpu::QUIRE_ISA
