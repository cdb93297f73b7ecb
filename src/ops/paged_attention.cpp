#include "ops/paged_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace quire::ops {
namespace {

int64_t blocks_of(const PagedAttentionArgs& args, int32_t sequence) {
  return (int64_t{args.context_lengths.host[sequence]} + args.cache.block_size - 1) / args.cache.block_size;
}

void check_sequence(const PagedAttentionArgs& args, int32_t sequence) {
  const int32_t num_queries = args.query_offsets.host[sequence + 1] - args.query_offsets.host[sequence];
  const int32_t context = args.context_lengths.host[sequence];
  QUIRE_CHECK_MSG(num_queries >= 0,
                  fmt::format("query_offsets fall at sequence {}: {} to {}", sequence,
                              args.query_offsets.host[sequence], args.query_offsets.host[sequence + 1]));
  QUIRE_CHECK_MSG(context >= num_queries,
                  fmt::format("sequence {}: {} queries, context length {}", sequence, num_queries, context));
  if (num_queries == 0) return;
  QUIRE_CHECK_MSG(args.num_sequences == 1 || blocks_of(args, sequence) <= args.block_table_stride,
                  fmt::format("sequence {}: {} blocks, a block table has {}", sequence, blocks_of(args, sequence),
                              args.block_table_stride));
}

// REQUIRES: the sequence has been checked.
void check_table(const PagedAttentionArgs& args, int32_t sequence) {
  const int32_t num_queries = args.query_offsets.host[sequence + 1] - args.query_offsets.host[sequence];
  if (num_queries == 0) return;
  const int64_t blocks = blocks_of(args, sequence);
  // Positions that left the window for good may have given their blocks back: only what is read must be there.
  const int64_t first_query = int64_t{args.context_lengths.host[sequence]} - num_queries;
  const int64_t first_seen = args.window > 0 && first_query >= args.window ? first_query - args.window + 1 : 0;
  const BlockId* table = args.block_tables.host + sequence * args.block_table_stride;
  for (int64_t b = first_seen / args.cache.block_size; b < blocks; ++b) {
    QUIRE_CHECK_MSG(table[b] >= 0 && table[b] < args.cache.num_blocks,
                    fmt::format("sequence {}: block {} of its table is {}, the cache has {}", sequence, b, table[b],
                                args.cache.num_blocks));
  }
}

// Of one that is not alone. REQUIRES: the sequences have been checked.
void check_place(const PagedAttentionArgs& args, int32_t span, const SpanPlace* places, int32_t place) {
  const SpanPlace& one = places[place];
  const SpanPlace& first = places[one.first];
  const auto num_queries = [&](int32_t s) { return args.query_offsets.host[s + 1] - args.query_offsets.host[s]; };
  const int32_t queries = num_queries(one.sequence);
  const auto where = [&] { return fmt::format("span {}, sequence {}: ", span, one.sequence); };
  QUIRE_CHECK_MSG(queries > 0 && queries <= kMostSharedQueries,
                  where() + fmt::format("{} queries, but shares it", queries));
  QUIRE_CHECK_MSG(int64_t{args.context_lengths.host[one.sequence]} - queries >= (int64_t{span} + 1) * kSharedSpan,
                  where() + "shares it, but is not past it");
  const int32_t before =
      place == one.first ? 0 : places[place - 1].queries_before + num_queries(places[place - 1].sequence);
  QUIRE_CHECK_MSG(one.size == first.size && one.first == first.first && one.queries_before == before,
                  where() + "is not of the group that it names");
  const int64_t begin = int64_t{span} * kSharedSpan / args.cache.block_size;
  const int64_t end = ((int64_t{span} + 1) * kSharedSpan - 1) / args.cache.block_size + 1;
  const auto table = [&](int32_t s) { return args.block_tables.host + s * args.block_table_stride; };
  QUIRE_CHECK_MSG(std::equal(table(one.sequence) + begin, table(one.sequence) + end, table(first.sequence) + begin),
                  where() + fmt::format("shares it with sequence {}, whose blocks are others", first.sequence));
}

void check_places(const PagedAttentionArgs& args) {
  for (int32_t span = 0; span < args.num_shared_spans; ++span) {
    const SpanPlace* places = args.span_places.host + int64_t{span} * args.num_sequences;
    for (int32_t i = 0; i < args.num_sequences; ++i) {
      const SpanPlace& one = places[i];
      QUIRE_CHECK_MSG(one.sequence >= 0 && one.sequence < args.num_sequences && one.first >= 0 && one.first <= i &&
                          one.size > i - one.first && one.size <= args.num_sequences - one.first,
                      fmt::format("span {}, place {}: sequence {} in a group of {} from place {}", span, i,
                                  one.sequence, one.size, one.first));
      if (one.size > 1) check_place(args, span, places, i);
    }
  }
}

}  // namespace

void check(const PagedAttentionArgs& args) {
  check(args.cache);
  const int32_t kv_heads = args.cache.num_kv_heads;
  const auto heads = [&] { return fmt::format("{} heads over {} kv heads", args.num_heads, kv_heads); };
  if (args.group == 0) {
    QUIRE_CHECK_MSG(args.num_heads > 0 && args.num_heads % kv_heads == 0 && args.heads_before == 0, heads());
  } else {  // each kv head is read
    const int64_t end = int64_t{args.heads_before} + args.num_heads;
    QUIRE_CHECK_MSG(args.num_heads > 0 && args.heads_before >= 0 && args.heads_before < args.group &&
                        end > int64_t{args.group} * (kv_heads - 1) && end <= int64_t{args.group} * kv_heads,
                    heads() + fmt::format(", {} of a group of {} before them", args.heads_before, args.group));
  }
  QUIRE_CHECK_MSG(args.window >= 0, fmt::format("window is {}", args.window));
  QUIRE_CHECK_MSG(!args.both_ways || args.num_shared_spans == 0, "what is seen both ways is shared by nobody");
  QUIRE_CHECK_MSG(args.soft_cap >= 0, fmt::format("soft_cap is {}", args.soft_cap));
  QUIRE_CHECK_MSG(args.value_dim >= 0 && args.value_dim <= args.cache.head_dim,
                  fmt::format("value_dim is {}", args.value_dim));
  QUIRE_CHECK_MSG(args.num_sequences >= 0, fmt::format("num_sequences is {}", args.num_sequences));
  if (args.num_sequences == 0) return;
  QUIRE_CHECK(args.query_offsets != nullptr && args.context_lengths != nullptr);
  QUIRE_CHECK_MSG(args.query_offsets.host[0] == 0,
                  fmt::format("query_offsets begin at {}", args.query_offsets.host[0]));
  const int32_t num_tokens = args.query_offsets.host[args.num_sequences];
  if (num_tokens == 0) return;
  QUIRE_CHECK(args.queries != nullptr && args.out != nullptr && args.block_tables != nullptr);
  QUIRE_CHECK(args.cache.keys != nullptr && (args.cache.values_are_keys || args.cache.values != nullptr));
  const int64_t token_size = int64_t{args.num_heads} * args.cache.head_dim;
  QUIRE_CHECK_MSG(num_tokens == 1 || args.query_stride >= token_size,
                  fmt::format("query_stride {} is under the {} floats of a token", args.query_stride, token_size));
  for (int32_t s = 0; s < args.num_sequences; ++s) check_sequence(args, s);
  if (!args.tables_checked) check_tables(args);
}

void check_tables(const PagedAttentionArgs& args) {
  for (int32_t s = 0; s < args.num_sequences; ++s) check_table(args, s);
  if (args.span_places.host != nullptr) check_places(args);
}

}  // namespace quire::ops
