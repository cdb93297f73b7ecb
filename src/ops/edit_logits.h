// What a request asks to be done to its logits before a token is drawn, for rows that nobody looks at on the host: a
// mask of the tokens that are allowed, then changes of single logits (bans, biases, penalties of tokens that have been
// seen). Bit for bit what sampling/sequence_sampler.h does on the host. What a row's steps have in common, its biases
// and the tokens that it has seen, stays on the device in a list, which the op keeps up to date.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "tensor/mirrored.h"

namespace quire::ops {

inline constexpr float kBanned = -std::numeric_limits<float>::infinity();  // the bias, and the logit, of a ban

// In this step alone.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0;
};

// An entry of a row's list. The first says how many there are of seen tokens (`token`) and of biases (`value`); the
// biases follow, then the seen tokens; none comes twice among either.
struct ListedToken {
  int32_t token = 0;
  int32_t value = 0;  // of a bias the bits of its float; of a seen token how often the answer has it: 0 in the prompt
                      // alone
};
inline constexpr int32_t kMostListedBiases = 1024;

// Of one row.
struct RowEdits {
  int32_t first_edit = 0;  // of EditLogitsArgs::edits; no token twice
  int32_t num_edits = 0;
  int32_t mask = -1;       // of EditLogitsArgs::masks; -1: all tokens are allowed
  int32_t list = -1;       // where its list begins in EditLogitsArgs::lists; -1: there is none
  int32_t list_room = 0;   // entries that there is room for
  int32_t new_token = -1;  // of the answer, to be counted in the list first; -1: none
  int32_t new_drawn = -1;  // instead, where the device has drawn it: EditLogitsArgs::drawn[new_drawn], if not below 0
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
};

// Each step of a logit's change is done in float32 and rounded by itself:
//   1. those that a mask does not allow become -inf;
//   2. `bias` of the step's edits, then that of the list, is added where it is not 0; kBanned makes any logit -inf;
//   3. of each seen token a positive logit is divided by `repetition`, another multiplied by it (Keskar et al., 2019);
//      what was finite stays at most the largest float; where the answer has the token, `frequency` times its count is
//      subtracted, then `presence`.
// A row's new token is counted first; where there is no room for it, it is left out. REQUIRES: no two rows have one
// list.
struct EditLogitsArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;
  Mirrored<RowEdits> rows;    // [num_rows]
  Mirrored<LogitEdit> edits;  // those of all rows
  // [masks, mask_words]: bit t % 32 of word t / 32 says whether token t is allowed; others become -inf.
  Mirrored<uint32_t> masks;
  int64_t mask_words = 0;          // at least size / 32, rounded up, where a row has a mask
  ListedToken* lists = nullptr;    // [lists_size], on the device
  int64_t lists_size = 0;          // entries
  const int32_t* drawn = nullptr;  // on the device
  float* out = nullptr;            // [num_rows, size]; may be `in`
};

void check(const EditLogitsArgs& args);

// Row t, where the device is the host.
void edit_logits(const EditLogitsArgs& args, int64_t t);

}  // namespace quire::ops
