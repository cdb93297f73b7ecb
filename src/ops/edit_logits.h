// What a request asks to be done to its logits before a token is drawn, for rows that nobody looks at on the host: a
// mask of the tokens that are allowed, then changes of single logits (penalties of tokens that have been seen, biases,
// bans).
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

// One logit: a positive one is divided by `divisor`, another multiplied by it (the repetition penalty of Keskar et al.,
// 2019); then `added` is added, which may be -inf.
struct LogitEdit {
  int32_t token = 0;
  float divisor = 1;
  float added = 0;
};

// Of one row.
struct RowEdits {
  int32_t first_edit = 0;  // of EditLogitsArgs::edits; no token twice
  int32_t num_edits = 0;
  int32_t mask = -1;  // of EditLogitsArgs::masks; -1: all tokens are allowed
};

struct EditLogitsArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;
  Mirrored<RowEdits> rows;    // [num_rows]
  Mirrored<LogitEdit> edits;  // those of all rows
  // [masks, mask_words]: bit t % 32 of word t / 32 says whether token t is allowed; others become -inf.
  Mirrored<uint32_t> masks;
  int64_t mask_words = 0;  // at least size / 32, rounded up, where a row has a mask
  float* out = nullptr;    // [num_rows, size]; may be `in`
};

void check(const EditLogitsArgs& args);

// Of one row, on the host. `edits`, `mask`: the row's own; mask nullptr: none.
void edit_logits(const float* in, int64_t size, const LogitEdit* edits, int32_t num_edits, const uint32_t* mask,
                 float* out);

}  // namespace quire::ops
