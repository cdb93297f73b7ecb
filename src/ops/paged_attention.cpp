#include "ops/paged_attention.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {
namespace {

void check_sequence(const PagedAttentionArgs& args, int32_t sequence) {
  const int32_t num_queries = args.query_offsets.host[sequence + 1] - args.query_offsets.host[sequence];
  const int32_t context = args.context_lengths.host[sequence];
  QUIRE_CHECK_MSG(num_queries >= 0,
                  fmt::format("query_offsets fall at sequence {}: {} to {}", sequence,
                              args.query_offsets.host[sequence], args.query_offsets.host[sequence + 1]));
  QUIRE_CHECK_MSG(context >= num_queries,
                  fmt::format("sequence {}: {} queries, context length {}", sequence, num_queries, context));
  if (num_queries == 0) return;
  const int64_t blocks = (int64_t{context} + args.cache.block_size - 1) / args.cache.block_size;
  QUIRE_CHECK_MSG(
      args.num_sequences == 1 || blocks <= args.block_table_stride,
      fmt::format("sequence {}: {} blocks, a block table has {}", sequence, blocks, args.block_table_stride));
  // Positions that left the window for good may have given their blocks back: only what is read must be there.
  const int64_t first_query = context - num_queries;
  const int64_t first_seen = args.window > 0 && first_query >= args.window ? first_query - args.window + 1 : 0;
  const BlockId* table = args.block_tables.host + sequence * args.block_table_stride;
  for (int64_t b = first_seen / args.cache.block_size; b < blocks; ++b) {
    QUIRE_CHECK_MSG(table[b] >= 0 && table[b] < args.cache.num_blocks,
                    fmt::format("sequence {}: block {} of its table is {}, the cache has {}", sequence, b, table[b],
                                args.cache.num_blocks));
  }
}

}  // namespace

void check(const PagedAttentionArgs& args) {
  check(args.cache);
  QUIRE_CHECK_MSG(args.num_heads > 0 && args.num_heads % args.cache.num_kv_heads == 0,
                  fmt::format("{} heads over {} kv heads", args.num_heads, args.cache.num_kv_heads));
  QUIRE_CHECK_MSG(args.window >= 0, fmt::format("window is {}", args.window));
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
}

}  // namespace quire::ops
