#include "runner/edit_lists.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire::runner {
namespace {

constexpr int64_t kEntryBytes = sizeof(ops::ListedToken);
constexpr int64_t kSmallestPlace = 256;                             // entries
constexpr int64_t kMostForAll = (int64_t{64} << 20) / kEntryBytes;  // unless max_rows lists take more

// The first entry, the biases, and every token once: the text may be one longer than is allowed where a step was begun
// before it was known that the answer has ended.
int64_t longest_list(const EditLists::Limits& limits) {
  return 1 + ops::kMostListedBiases + std::min(limits.vocab_size, limits.max_model_len + 1);
}

int64_t largest_place(const EditLists::Limits& limits) {
  return std::max(kSmallestPlace, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest_list(limits)))));
}

int64_t num_entries(const EditLists::Limits& limits) {
  const int64_t largest = largest_place(limits);
  const int64_t at_once = std::min(limits.max_rows, limits.max_num_seqs) * largest;
  const int64_t most = std::max(at_once, kMostForAll / largest * largest);
  return std::min(limits.max_num_seqs * largest, most);
}

}  // namespace

int64_t EditLists::device_bytes(const Limits& limits) {
  return num_entries(limits) * kEntryBytes;
}

EditLists::EditLists(ops::Backend& backend, const Limits& limits)
    : backend_(backend),
      longest_(longest_list(limits)),
      places_(num_entries(limits), kSmallestPlace, largest_place(limits)),
      memory_(backend.allocator(), static_cast<size_t>(device_bytes(limits))) {}

void EditLists::add(SequenceId id, const sampling::SequenceSampler& sampler, TokenId last_token, int32_t drawn,
                    ops::RowEdits& edits) {
  List& list = lists_[id];
  list.turn = turn_;
  const int64_t known = sampler.num_sampled();
  const int64_t entries = std::min(static_cast<int64_t>(sampler.most_listed()) + (drawn >= 0 ? 1 : 0), longest_);
  const bool counted = list.num_counted == known;
  const bool but_for_one = list.num_counted == known - 1 && drawn < 0;
  if (list.place.size < entries || !(counted || but_for_one)) {
    if (list.place.size < entries) make_room(list, entries);
    upload(list, sampler);
  } else if (but_for_one) {
    edits.new_token = last_token;
  }
  edits.new_drawn = drawn;
  list.num_counted = known + (drawn >= 0 ? 1 : 0);
  edits.list = static_cast<int32_t>(list.place.begin);
  edits.list_room = static_cast<int32_t>(list.place.size);
  edits.repetition = sampler.params().repetition_penalty;
  edits.frequency = sampler.params().frequency_penalty;
  edits.presence = sampler.params().presence_penalty;
}

// A quarter more than is wanted: a list that grows goes up again each time its place is too small.
void EditLists::make_room(List& list, int64_t entries) {
  if (list.place.size > 0) places_.give_back(list.place);
  const int64_t wanted = std::min(entries + entries / 4, places_.largest());
  list.place = places_.take(wanted);
  while (list.place.size == 0) {
    const auto unused = [this](const auto& entry) {
      return entry.second.place.size > 0 && entry.second.turn != turn_ ? entry.second.turn : turn_;
    };
    const auto oldest = std::ranges::min_element(lists_, {}, unused);
    QUIRE_CHECK_MSG(unused(*oldest) != turn_, "more rows are edited at once than was planned for");
    places_.give_back(oldest->second.place);
    oldest->second = {};
    list.place = places_.take(wanted);
  }
}

void EditLists::upload(List& list, const sampling::SequenceSampler& sampler) {
  sampler.make_list(entries_);
  const auto bytes = static_cast<int64_t>(entries_.size()) * kEntryBytes;
  QUIRE_CHECK_MSG(static_cast<int64_t>(entries_.size()) <= list.place.size, "a list is longer than a sequence may be");
  backend_.upload(device() + list.place.begin, entries_.data(), static_cast<size_t>(bytes));
  ++num_uploaded_;
  bytes_uploaded_ += bytes;
}

void EditLists::forget(SequenceId id) {
  const auto found = lists_.find(id);
  if (found == lists_.end()) return;
  if (found->second.place.size > 0) places_.give_back(found->second.place);
  lists_.erase(found);
}

}  // namespace quire::runner
