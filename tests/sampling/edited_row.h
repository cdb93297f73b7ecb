// A row of logits as a device edits it that keeps a sampler's list and counts the tokens itself.
#pragma once

#include <vector>

#include "ops/edit_logits.h"
#include "sampling/sequence_sampler.h"

namespace quire::sampling {

class EditedRow {
 public:
  // With the list as it is now.
  explicit EditedRow(const SequenceSampler& sampler, size_t room_for_more = 64) : params_(sampler.params()) {
    if (!sampler.has_list()) return;
    sampler.make_list(list_);
    list_.resize(list_.size() + room_for_more);
  }

  // masked: the mask is the last words of `masks`. new_token: behind those that were known before; below 0: none.
  std::vector<float> operator()(const std::vector<float>& logits, const std::vector<ops::LogitEdit>& edits, bool masked,
                                const std::vector<uint32_t>& masks, TokenId new_token = kNoToken) {
    const auto size = static_cast<int64_t>(logits.size());
    const int64_t words = (size + 31) / 32;
    const ops::RowEdits row{.num_edits = static_cast<int32_t>(edits.size()),
                            .mask = masked ? 0 : -1,
                            .list = list_.empty() ? -1 : 0,
                            .list_room = static_cast<int32_t>(list_.size()),
                            .new_token = new_token,
                            .repetition = params_.repetition_penalty,
                            .frequency = params_.frequency_penalty,
                            .presence = params_.presence_penalty};
    std::vector<float> edited(logits.size());
    const ops::EditLogitsArgs args{
        .in = logits.data(),
        .num_rows = 1,
        .size = size,
        .rows = &row,
        .edits = edits.data(),
        .masks = masked ? masks.data() + (static_cast<int64_t>(masks.size()) - words) : nullptr,
        .mask_words = words,
        .lists = list_.data(),
        .lists_size = static_cast<int64_t>(list_.size()),
        .out = edited.data()};
    ops::check(args);
    ops::edit_logits(args, 0);
    return edited;
  }

 private:
  SamplingParams params_;
  std::vector<ops::ListedToken> list_;
};

}  // namespace quire::sampling
