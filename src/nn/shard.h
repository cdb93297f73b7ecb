// Which part of a model's weights a rank holds (tensor parallel; Shoeybi et al., 2019).
//
// Products are cut in pairs: of the first a rank has some of the outputs (rows of the weight), of the second the inputs
// that those are (columns), and what ranks compute of the second is added up. Where the cut may lie follows from the
// second: heads stay whole, and so do the values of a quantised format that share a scale.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace quire::nn {

struct Shard {
  int rank = 0;
  int size = 1;
  bool whole_experts = false;  // of a mixture a rank has some experts, in place of a part of each
  bool is_whole() const { return size == 1; }
};

// Which layers a rank has (pipeline parallel; Huang et al., 2018): the first stage has the embedding too, the last one
// the last norm and the head.
struct Stage {
  int index = 0;
  int count = 1;
  bool without_layers = false;  // the ends alone: embeddings, and what follows the layers
  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
};

// So many rows or columns.
struct Range {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

// What rank `rank` of `size` has of [0, total): whole units, the last of which may be shorter, as even as that allows;
// the first ranks have the larger parts. Empty where there are fewer units than ranks.
Range even_share(int64_t total, int64_t unit, int rank, int size);

// The same with units of `most` in the place of `least`, which divides it, as long as every rank has one.
Range share_of(int64_t total, int64_t least, int64_t most, const Shard& shard);

// Layers of a stage, as even as it goes. Empty where there are fewer layers than stages.
Range layers_of(const Stage& stage, int32_t num_layers);

// The heads of one rank, and the kv heads that they read.
struct HeadShare {
  Range heads;
  Range kv_heads;
};
// unit: heads are cut at multiples of it. Kv heads stay with all queries that read them; where there are fewer of them
// than ranks, several ranks have the same one, each with some of those queries. With cuts_groups a rank may also have a
// part of a kv head's queries beside others, and ranks that meet within such a group both have its kv head: where the
// rank with the most has less to do so (9 heads over 3: 5 and 4 that read 2 each, not 6 and 3). REQUIRES: num_heads is
// a multiple of num_kv_heads. Errors: invalid_argument where there is no such cut.
Result<HeadShare> share_heads(int32_t num_heads, int32_t num_kv_heads, int64_t unit, int rank, int size,
                              bool cuts_groups = false);

// Rows that a rank has of a matrix that several parts lie above each other in: of each part, `ranges` says, counted
// from the beginning of all.
std::vector<Range> within(const std::vector<Range>& ranges, const Range& part);

// Tokens of the vocabulary, rank by rank: rows of the embedding and of the head.
std::vector<comm::ColumnRange> vocabulary_columns(int64_t vocab_size, int size);

}  // namespace quire::nn
