// States of a recurrent layer in the blocks of the paged cache: numbers of a fixed size that stand for all of a text up
// to a position. Where keys and values of a block are those of its tokens, its state is the one behind the last of its
// tokens that was computed. So the state of a whole block is that of a text that ends where the block does, which
// others can go on from, and a sequence needs the block of the token before its next one, and no other.
//
// Ops that read and leave states take runs of tokens: a run that begins at position p goes on from the state in the
// block of p - 1 (from zeros at 0), and leaves one in each block that it has tokens in. The sums of a token are those
// of one token after the other, however a text is cut into runs.
//
// A run may end in draft tokens, of which nobody knows yet whether they hold. They change no state: what an op reads of
// them, its inputs, is left beside the state in the block of the last token before them. A later run then says how many
// of them held: it takes those inputs again, from the state, and goes on from there. So a state needs no copies to go
// back to, but room for the inputs of as many draft tokens as a run may have.
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"
#include "types/ids.h"

namespace quire::ops {

struct StateCacheView {
  void* states = nullptr;  // floats, that of block 0
  int64_t num_blocks = 0;
  int32_t block_size = 0;   // tokens
  int64_t size = 0;         // floats of a state, with the inputs of drafts
  int32_t most_drafts = 0;  // draft tokens whose inputs there is room for
  int64_t stride = 0;       // bytes from a block's state to the next one's, a multiple of 4

  float* state(int64_t block) const { return reinterpret_cast<float*>(static_cast<uint8_t*>(states) + block * stride); }
};

// The runs of a batch: tokens [query_offsets[s], query_offsets[s + 1]) are the last of context_lengths[s] of sequence
// s. Of these the last num_drafts[s] are draft tokens, fewer than all. Before them num_replayed[s] tokens were draft
// tokens of the run before, and held: the state is that behind the token before those. They lie in its block, and so
// does the first token of the run.
struct StateRuns {
  StateCacheView cache;
  int32_t num_sequences = 0;
  Mirrored<int32_t> query_offsets;    // [num_sequences + 1], rising from 0
  Mirrored<int32_t> context_lengths;  // [num_sequences], the run included
  Mirrored<BlockId> block_tables;     // [num_sequences, block_table_stride]
  int64_t block_table_stride = 0;
  Mirrored<int32_t> num_drafts;    // [num_sequences]; nullptr: none
  Mirrored<int32_t> num_replayed;  // the same
};

// What the runs say where the host can see it: that offsets rise, and blocks are the cache's. Ends the process if not.
void check(const StateRuns& runs);

// A run as kernels on the host walk it: pieces of tokens that lie in one block each.
class StateRun {
 public:
  StateRun(const StateRuns& runs, int64_t sequence)
      : cache_(runs.cache),
        table_(runs.block_tables.host + sequence * runs.block_table_stride),
        first_token_(runs.query_offsets.host[sequence]),
        end_token_(runs.query_offsets.host[sequence + 1]),
        begin_(runs.context_lengths.host[sequence] - (end_token_ - first_token_)),
        num_drafts_(runs.num_drafts.host == nullptr ? 0 : runs.num_drafts.host[sequence]),
        num_replayed_(runs.num_replayed.host == nullptr ? 0 : runs.num_replayed.host[sequence]) {}

  int64_t first_token() const { return first_token_; }  // of the batch
  int64_t num_tokens() const { return end_token_ - first_token_; }
  int64_t num_drafts() const { return num_drafts_; }
  int64_t num_kept() const { return num_tokens() - num_drafts_; }  // the first, which leave states
  int64_t num_replayed() const { return num_replayed_; }
  // Behind the token before the run and those that are replayed, whose inputs are beside it; nullptr: there is none,
  // the state is zeros.
  const float* before() const { return begin_ == 0 ? nullptr : state_of(begin_ - 1); }
  // Behind the last token that is kept: beside it go the inputs of drafts.
  float* last() const { return state_of(begin_ + num_kept() - 1); }

  // body(first, count, state): `count` tokens of the run from `first` on, counted from its beginning, and the state of
  // their block; of all but the drafts.
  template <typename Body>
  void for_each_block(const Body& body) const {
    for (int64_t token = 0; token < num_kept();) {
      const int64_t position = begin_ + token;
      const int64_t left = cache_.block_size - position % cache_.block_size;
      const int64_t count = left < num_kept() - token ? left : num_kept() - token;
      body(token, count, state_of(position));
      token += count;
    }
  }

 private:
  float* state_of(int64_t position) const { return cache_.state(table_[position / cache_.block_size]); }

  StateCacheView cache_;
  const BlockId* table_;
  int64_t first_token_;
  int64_t end_token_;
  int64_t begin_;
  int64_t num_drafts_;
  int64_t num_replayed_;
};

}  // namespace quire::ops
