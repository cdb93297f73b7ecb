// Which sequences of a step read the same blocks: those that begin with the same system prompt, samples of one prompt,
// beams.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/paged_attention.h"

namespace quire::runner {

// A sequence of a step.
struct SpanReader {
  std::span<const BlockId> table;  // kNoBlock in front: given back
  int32_t num_computed = 0;        // tokens in the cache before this step
  int32_t num_queries = 0;
  bool counts = true;  // false: nobody waits for what it reads
};

class SharedSpans {
 public:
  // Spans that are read, of all readers that count and may be in a group.
  struct Reads {
    int64_t all = 0;
    int64_t saved = 0;  // where each group reads its span once
  };

  // Finds the groups of readers [0, n) in the first num_spans spans (ops::SpanPlace). Where nobody shares anything
  // it looks at the ends of each reader's first span; else at all blocks that are shared, once for each reader.
  Reads find(std::span<const SpanReader> readers, int32_t block_size, int32_t num_spans);
  // [num_spans, n], of the last find().
  const std::vector<ops::SpanPlace>& places();

 private:
  int64_t add_span(std::span<const SpanReader> readers, int32_t block_size, int32_t span);
  int64_t add_group(std::span<const SpanReader> readers);
  void add_alone(int32_t reader) { places_.push_back({.sequence = reader, .first = next_place()}); }
  int32_t next_place() const { return static_cast<int32_t>(places_.size() % num_readers_); }

  size_t num_readers_ = 0;
  size_t num_places_ = 0;
  std::vector<ops::SpanPlace> places_;             // of the spans that were looked at
  std::vector<int32_t> left_;                      // readers that may share this span or one after it
  std::vector<std::pair<BlockId, int32_t>> ends_;  // the span's last block, and whose it is
  std::vector<int32_t> members_;                   // of a group
  std::vector<bool> placed_;                       // of each reader: in a group of this span
  std::vector<bool> parted_;                       // of each reader: shares nothing from here on
};

}  // namespace quire::runner
