#include "runner/shared_spans.h"

#include <algorithm>

namespace quire::runner {
namespace {

constexpr int32_t kSpan = ops::kSharedSpan;

// Spans that a reader sees something of.
int64_t num_read(const SpanReader& reader, int32_t block_size) {
  const auto held = std::ranges::partition_point(reader.table, [](BlockId block) { return block == kNoBlock; });
  const int64_t first = (held - reader.table.begin()) * block_size / kSpan;
  return (int64_t{reader.num_computed} + reader.num_queries + kSpan - 1) / kSpan - first;
}

}  // namespace

SharedSpans::Reads SharedSpans::find(std::span<const SpanReader> readers, int32_t block_size, int32_t num_spans) {
  num_readers_ = readers.size();
  num_places_ = static_cast<size_t>(num_spans) * num_readers_;
  places_.clear();
  left_.clear();
  parted_.assign(num_readers_, false);
  Reads reads;
  for (size_t r = 0; r < num_readers_; ++r) {
    const SpanReader& reader = readers[r];
    if (reader.num_queries > ops::kMostSharedQueries) continue;
    left_.push_back(static_cast<int32_t>(r));
    if (reader.counts) reads.all += num_read(reader, block_size);
  }
  for (int32_t span = 0; span < num_spans && left_.size() > 1; ++span)
    reads.saved += add_span(readers, block_size, span);
  return reads;
}

const std::vector<ops::SpanPlace>& SharedSpans::places() {
  while (places_.size() < num_places_) add_alone(next_place());
  return places_;
}

int64_t SharedSpans::add_span(std::span<const SpanReader> readers, int32_t block_size, int32_t span) {
  const auto first_block = static_cast<size_t>(span * kSpan / block_size);
  const auto last_block = static_cast<size_t>((span * kSpan + kSpan - 1) / block_size);
  const auto blocks_of = [&](int32_t reader) {
    return readers[static_cast<size_t>(reader)].table.subspan(first_block, last_block - first_block + 1);
  };
  placed_.assign(num_readers_, false);
  // What comes behind a reader's computed tokens nobody else has.
  std::erase_if(left_, [&](int32_t r) { return readers[static_cast<size_t>(r)].num_computed < (span + 1) * kSpan; });
  ends_.clear();
  for (const int32_t r : left_) {
    if (blocks_of(r).front() != kNoBlock) ends_.emplace_back(blocks_of(r).back(), r);
  }
  const auto differs = [&](const auto& end) { return end.first != ends_.front().first; };
  if (std::ranges::any_of(ends_, differs)) std::ranges::sort(ends_);
  int64_t saved = 0;
  for (size_t begin = 0; begin < ends_.size();) {
    const auto [block, leader] = ends_[begin];
    members_.assign(1, leader);
    size_t end = begin + 1;
    for (; end < ends_.size() && ends_[end].first == block; ++end) {
      // A prefix cache gives the same last block for the same blocks before it alone; nothing else need do so.
      if (std::ranges::equal(blocks_of(leader), blocks_of(ends_[end].second))) members_.push_back(ends_[end].second);
    }
    if (members_.size() > 1) saved += add_group(readers);
    begin = end;
  }
  // Those who part here do not meet again.
  for (const auto& [block, r] : ends_) parted_[static_cast<size_t>(r)] = !placed_[static_cast<size_t>(r)];
  std::erase_if(left_, [&](int32_t r) { return parted_[static_cast<size_t>(r)]; });
  for (size_t r = 0; r < num_readers_; ++r) {
    if (!placed_[r]) add_alone(static_cast<int32_t>(r));
  }
  return saved;
}

int64_t SharedSpans::add_group(std::span<const SpanReader> readers) {
  ops::SpanPlace place{.first = next_place(), .size = static_cast<int32_t>(members_.size())};
  int64_t counted = 0;
  for (const int32_t member : members_) {
    const SpanReader& reader = readers[static_cast<size_t>(member)];
    place.sequence = member;
    places_.push_back(place);
    place.queries_before += reader.num_queries;
    placed_[static_cast<size_t>(member)] = true;
    counted += reader.counts ? 1 : 0;
  }
  return std::max<int64_t>(counted - 1, 0);
}

}  // namespace quire::runner
