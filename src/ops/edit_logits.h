// What a request asks to be done to its logits before a token is drawn, for rows that nobody looks at on the host: a
// mask of the tokens that are allowed, then changes of single logits (bans, biases, penalties of tokens that have been
// seen). Bit for bit what sampling/sequence_sampler.h does on the host.
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

// Of one logit, in float32, each operation rounded by itself:
//   1. `bias` is added where it is not 0; a bias of -inf makes any logit -inf;
//   2. a positive logit is divided by `repetition`, another multiplied by it (Keskar et al., 2019); what was finite
//      stays at most the largest float;
//   3. `frequency` is subtracted, then `presence`.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0;
  float repetition = 1;
  float frequency = 0;  // the penalty times the token's count
  float presence = 0;
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
