#include "ops/edit_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace quire::ops {
namespace {

void add_bias(float& logit, float bias) {
  if (bias == kBanned) {
    logit = kBanned;
  } else if (bias != 0) {
    logit += bias;
  }
}

void penalise(float& logit, int32_t output_count, const RowEdits& row) {
  const float repeated = logit > 0 ? logit / row.repetition : logit * row.repetition;
  // Divided by next to nothing a number must stay one.
  logit = std::isfinite(logit) ? std::min(repeated, std::numeric_limits<float>::max()) : repeated;
  if (output_count == 0) return;
  logit -= row.frequency * static_cast<float>(output_count);
  logit -= row.presence;
}

void count(int32_t token, ListedToken* list, int32_t room) {
  ListedToken* seen = list + 1 + list->value;
  ListedToken* end = seen + list->token;
  ListedToken* found = std::find_if(seen, end, [token](const ListedToken& one) { return one.token == token; });
  if (found != end) {
    ++found->value;
  } else if (1 + list->value + list->token < room) {
    *end = {.token = token, .value = 1};
    ++list->token;
  }
}

void check_row(const EditLogitsArgs& args, int64_t t) {
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
  if (row.list < 0) return;
  QUIRE_CHECK_MSG(args.lists != nullptr && row.list_room >= 1 && row.list + int64_t{row.list_room} <= args.lists_size,
                  fmt::format("row {}: a list of {} at {} of {}", t, row.list_room, row.list, args.lists_size));
  QUIRE_CHECK_MSG(row.new_token < args.size && (row.new_token < 0 || row.new_drawn < 0),
                  fmt::format("row {}: new token {} of {}, drawn at {}", t, row.new_token, args.size, row.new_drawn));
  QUIRE_CHECK(row.new_drawn < 0 || args.drawn != nullptr);
}

}  // namespace

void check(const EditLogitsArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0, fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.out != nullptr && args.rows != nullptr);
  if (args.rows.host == nullptr) return;
  for (int64_t t = 0; t < args.num_rows; ++t) check_row(args, t);
}

void edit_logits(const EditLogitsArgs& args, int64_t t) {
  const RowEdits& row = args.rows.host[t];
  const float* in = args.in + t * args.size;
  float* out = args.out + t * args.size;
  const uint32_t* mask = row.mask < 0 ? nullptr : args.masks.host + row.mask * args.mask_words;
  for (int64_t i = 0; i < args.size; ++i) {
    const bool allowed = mask == nullptr || (mask[i / 32] >> (i % 32) & 1u) != 0;
    out[i] = allowed ? in[i] : kBanned;
  }
  for (int32_t i = 0; i < row.num_edits; ++i) {
    const LogitEdit& edit = args.edits.host[row.first_edit + i];
    add_bias(out[edit.token], edit.bias);
  }
  if (row.list < 0) return;
  ListedToken* list = args.lists + row.list;
  const int32_t token = row.new_drawn >= 0 ? args.drawn[row.new_drawn] : row.new_token;
  if (token >= 0) count(token, list, row.list_room);
  const std::span<const ListedToken> biases(list + 1, static_cast<size_t>(list->value));
  for (const ListedToken& one : biases) add_bias(out[one.token], std::bit_cast<float>(one.value));
  const std::span<const ListedToken> seen(list + 1 + list->value, static_cast<size_t>(list->token));
  for (const ListedToken& one : seen) penalise(out[one.token], one.value, row);
}

}  // namespace quire::ops
