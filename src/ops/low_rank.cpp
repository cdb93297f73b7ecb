#include "ops/low_rank.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {
namespace {

// `embeds`: rows are those of ids.
void check_factors(const LowRankFactors& factors, int64_t out_features, bool embeds) {
  QUIRE_CHECK_MSG(is_row_format(factors.dtype), fmt::format("factors of {}", name(factors.dtype)));
  QUIRE_CHECK(factors.down != nullptr && factors.in_features > 0 && factors.rank > 0);
  if (factors.only.empty() || embeds) {
    QUIRE_CHECK(!factors.replaces || (factors.parts.empty() && factors.rank == out_features));
  } else {
    QUIRE_CHECK(factors.parts.empty() && factors.rank == std::ssize(factors.only));
  }
  if (!factors.only.empty()) {
    QUIRE_CHECK(factors.replaces && std::ranges::is_sorted(factors.only, std::less_equal<>()));
    QUIRE_CHECK(factors.only.front() >= 0 && factors.only.back() < (embeds ? factors.in_features : out_features));
  }
  for (const LowRankPart& part : factors.parts) {
    QUIRE_CHECK(part.up != nullptr && part.rank > 0 && part.size > 0);
    QUIRE_CHECK((part.gain == nullptr) == (part.shift == nullptr));
    QUIRE_CHECK_MSG(part.first >= 0 && part.first + part.rank <= factors.rank,
                    fmt::format("ranks [{}, {}) of {}", part.first, part.first + part.rank, factors.rank));
    QUIRE_CHECK_MSG(part.column >= 0 && part.column + part.size <= out_features,
                    fmt::format("columns [{}, {}) of {}", part.column, part.column + part.size, out_features));
  }
}

// What they name is the device's, out of reach here.
void check_rows(const LowRankArgs& args) {
  const LowRankRows& rows = args.rows;
  QUIRE_CHECK_MSG(args.runs.empty(), "both runs and rows");
  QUIRE_CHECK(rows.entry >= 0 && rows.num_heads > 0 && rows.num_experts > 0);
  QUIRE_CHECK(rows.most_ranks >= 0 && rows.most_replaced >= 0);
  QUIRE_CHECK(rows.num_experts == 1 || rows.offsets != nullptr);
  if (rows.num_heads == 1) return;
  QUIRE_CHECK(rows.offsets == nullptr && args.x != nullptr && rows.x_head > 0 && rows.out_head > 0);
  QUIRE_CHECK(args.x_stride >= (rows.num_heads - 1) * rows.x_head);
  QUIRE_CHECK(args.out_features > (rows.num_heads - 1) * rows.out_head);
}

}  // namespace

void check(const LowRankArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0, fmt::format("num_rows is {}", args.num_rows));
  if (args.num_rows == 0 || (args.runs.empty() && args.rows.of_token == nullptr)) return;
  QUIRE_CHECK(args.out != nullptr && args.out_stride >= args.out_features);
  QUIRE_CHECK((args.x != nullptr) != (args.ids.device != nullptr));
  if (args.rows.of_token != nullptr) return check_rows(args);
  for (const LowRankRun& run : args.runs) {
    QUIRE_CHECK(run.factors != nullptr);
    QUIRE_CHECK_MSG(run.row >= 0 && run.num_rows > 0 && run.row + run.num_rows <= args.num_rows,
                    fmt::format("rows [{}, {}) of {}", run.row, run.row + run.num_rows, args.num_rows));
    QUIRE_CHECK(run.x_column >= 0 && run.out_column >= 0);
    QUIRE_CHECK(args.x == nullptr ? run.x_column == 0 : args.x_stride >= run.x_column + run.factors->in_features);
    check_factors(*run.factors, args.out_features - run.out_column, args.x == nullptr);
    for (int64_t row = run.row; args.ids.host != nullptr && row < run.row + run.num_rows; ++row) {
      QUIRE_CHECK_MSG(args.ids.host[row] >= 0 && args.ids.host[row] < run.factors->in_features,
                      fmt::format("ids[{}] is {}, of {}", row, args.ids.host[row], run.factors->in_features));
    }
  }
}

}  // namespace quire::ops
