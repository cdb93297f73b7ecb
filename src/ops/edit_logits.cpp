#include "ops/edit_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace quire::ops {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // the logit of what may not be said

float edited(float logit, const LogitEdit& edit) {
  if (edit.bias == kNever) logit = kNever;
  if (edit.bias != 0 && edit.bias != kNever) logit += edit.bias;
  const float repeated = logit > 0 ? logit / edit.repetition : logit * edit.repetition;
  logit = std::isfinite(logit) ? std::min(repeated, std::numeric_limits<float>::max()) : repeated;
  logit -= edit.frequency;
  return logit - edit.presence;
}

}  // namespace

void check(const EditLogitsArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0, fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.out != nullptr && args.rows != nullptr);
  if (args.rows.host == nullptr) return;
  for (int64_t t = 0; t < args.num_rows; ++t) {
    const RowEdits& row = args.rows.host[t];
    QUIRE_CHECK_MSG(row.first_edit >= 0 && row.num_edits >= 0 && row.mask >= -1,
                    fmt::format("row {}: edits {} + {}, mask {}", t, row.first_edit, row.num_edits, row.mask));
    QUIRE_CHECK(row.num_edits == 0 || args.edits != nullptr);
    QUIRE_CHECK_MSG(row.mask < 0 || (args.masks != nullptr && args.mask_words * 32 >= args.size),
                    fmt::format("masks of {} words for {} logits", args.mask_words, args.size));
    for (int32_t i = 0; i < row.num_edits; ++i) {
      const int32_t token = args.edits.host[row.first_edit + i].token;
      QUIRE_CHECK_MSG(token >= 0 && token < args.size, fmt::format("an edit of token {} of {}", token, args.size));
    }
  }
}

void edit_logits(const float* in, int64_t size, const LogitEdit* edits, int32_t num_edits, const uint32_t* mask,
                 float* out) {
  for (int64_t i = 0; i < size; ++i) {
    const bool allowed = mask == nullptr || (mask[i / 32] >> (i % 32) & 1u) != 0;
    out[i] = allowed ? in[i] : kNever;
  }
  for (int32_t i = 0; i < num_edits; ++i) out[edits[i].token] = edited(out[edits[i].token], edits[i]);
}

}  // namespace quire::ops
