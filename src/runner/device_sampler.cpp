#include "runner/device_sampler.h"

#include <algorithm>
#include <chrono>

#include "runner/memory_planner.h"

namespace quire::runner {
namespace {

constexpr size_t kRanksOfRow = 1 + ops::kMostTopLogprobs;

// How many of the likeliest are asked for beside the row's token; nullopt: not even that one's log-probability.
std::optional<int32_t> num_top_of(const LogitRow& row, const SequenceState& state) {
  return row.target == kNoToken ? state.params->logprobs : state.params->prompt_logprobs;
}

// A row that is scored, or of a sequence that has failed, needs no token: the largest logit's costs least.
ops::TokenChoice choice_of(const LogitRow& row, const SequenceState& state, int64_t ahead) {
  if (row.target != kNoToken || !state.fault.ok()) return {};
  const auto plain = state.sampler.plain_choice(ahead);
  return {.inverse_temperature = plain->temperature > 0 ? 1.0f / plain->temperature : 0.0f,
          .min_p = plain->min_p,
          .top_k = plain->top_k,
          .top_p = plain->top_p,
          .u = plain->u};
}

EditLists::Limits lists_of(const DeviceSampler::Limits& limits) {
  return {.vocab_size = limits.vocab_size,
          .max_model_len = limits.max_model_len,
          .max_num_seqs = limits.max_num_seqs,
          .max_rows = DeviceSampler::kEditedRows};
}

}  // namespace

DeviceSampler::Limits DeviceSampler::limits_of(const PlannedModel& planned) {
  return {.vocab_size = planned.config.vocab_size,
          .max_num_tokens = planned.memory.max_num_batched_tokens,
          .max_num_seqs = planned.max_num_seqs,
          .max_model_len = planned.max_model_len};
}

int64_t DeviceSampler::device_bytes(const Limits& limits) {
  return kEditedRows * limits.vocab_size * static_cast<int64_t>(sizeof(float)) +
         limits.max_num_tokens * static_cast<int64_t>(2 * sizeof(int32_t) + kRanksOfRow * sizeof(ops::RankedToken)) +
         EditLists::device_bytes(lists_of(limits));
}

DeviceSampler::DeviceSampler(ops::Backend& backend, const Limits& limits)
    : backend_(backend),
      limits_(limits),
      lists_(backend, lists_of(limits)),
      edited_(backend.allocator(), static_cast<size_t>(kEditedRows * limits.vocab_size) * sizeof(float)),
      tokens_(backend.allocator(), 2 * static_cast<size_t>(limits.max_num_tokens) * sizeof(int32_t)),
      ranks_(backend.allocator(), static_cast<size_t>(limits.max_num_tokens) * kRanksOfRow * sizeof(ops::RankedToken)),
      host_tokens_(backend.host_allocator(), tokens_.bytes()),
      host_ranks_(backend.host_allocator(), 2 * ranks_.bytes()),
      numbers_(backend) {}

bool DeviceSampler::has_memory() const {
  return lists_.has_memory() && edited_.data() != nullptr && tokens_.data() != nullptr && ranks_.data() != nullptr &&
         host_tokens_.data() != nullptr && host_ranks_.data() != nullptr;
}

bool DeviceSampler::draws(const LogitRow& row, const SequenceState& state) {
  if (row.num_candidates > 0 || row.draft_row >= 0) return false;
  const std::optional<int32_t> num_top = num_top_of(row, state);
  if (num_top && (*num_top < 0 || *num_top > ops::kMostTopLogprobs)) return false;
  return row.target != kNoToken || state.sampler.draws_plainly();
}

DrawnRows DeviceSampler::begin(std::span<const LogitRow> rows, std::span<const SequenceState* const> states,
                               uint64_t step_number) {
  half_ = static_cast<int64_t>(step_number % 2);
  DrawnRows drawn;
  drawn.logprobs.resize(rows.size());
  int32_t end = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::optional<int32_t> num_top = num_top_of(rows[i], *states[i]);
    if (!num_top) continue;
    drawn.logprobs[i] = {.num_top = *num_top, .token = rows[i].target, .first_rank = end};
    end += 1 + *num_top;
  }
  return drawn;
}

// What is uploaded for the rows, but for their log-probabilities.
void DeviceSampler::collect(std::span<const LogitRow> rows, std::span<const SequenceState* const> states,
                            size_t num_edited, sampling::SamplingScratch& scratch) {
  choices_.clear();
  row_edits_.assign(num_edited, {});
  edits_.clear();
  masks_.clear();
  lists_.begin();
  int32_t num_masks = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SequenceState& state = *states[i];
    const int64_t ahead = state.pending_row >= 0 ? 1 : 0;
    choices_.push_back(choice_of(rows[i], state, ahead));
    if (i >= num_edited || !state.fault.ok()) continue;
    ops::RowEdits& edits = row_edits_[i];
    edits.first_edit = static_cast<int32_t>(edits_.size());
    if (state.sampler.add_edits(ahead, edits_, masks_, scratch)) edits.mask = num_masks++;
    edits.num_edits = static_cast<int32_t>(edits_.size()) - edits.first_edit;
    if (!state.sampler.has_list()) continue;
    const int64_t half = static_cast<int64_t>(state.pending_step % 2) * limits_.max_num_tokens;
    const int32_t pending = state.pending_row < 0 ? -1 : static_cast<int32_t>(half + state.pending_row);
    const TokenId last = state.tokens.size() == 0 ? kNoToken : state.tokens[state.tokens.size() - 1];
    lists_.add(rows[i].id, state.sampler, last, pending, edits);
  }
}

void DeviceSampler::draw(std::span<const LogitRow> rows, std::span<const SequenceState* const> states,
                         size_t num_edited, const float* logits, size_t first, DrawnRows& drawn,
                         sampling::SamplingScratch& scratch) {
  constexpr auto kMost = static_cast<size_t>(kEditedRows);
  for (; num_edited > kMost; num_edited -= kMost) {
    draw_few_edited(rows.first(kMost), states.first(kMost), kMost, logits, first, drawn, scratch);
    rows = rows.subspan(kMost);
    states = states.subspan(kMost);
    logits += kEditedRows * limits_.vocab_size;
    first += kMost;
  }
  draw_few_edited(rows, states, num_edited, logits, first, drawn, scratch);
}

void DeviceSampler::draw_few_edited(std::span<const LogitRow> rows, std::span<const SequenceState* const> states,
                                    size_t num_edited, const float* logits, size_t first, DrawnRows& drawn,
                                    sampling::SamplingScratch& scratch) {
  const auto begun = std::chrono::steady_clock::now();
  const int64_t uploaded = lists_.bytes_uploaded();
  collect(rows, states, num_edited, scratch);
  const std::span<const ops::RowLogprobs> logprobs = std::span(drawn.logprobs).subspan(first, rows.size());
  const auto room = [](const auto& numbers) { return StepNumbers::room(std::span(numbers).size_bytes()); };
  numbers_.begin(room(choices_) + room(row_edits_) + room(edits_) + room(masks_) + room(logprobs));
  const Mirrored<ops::TokenChoice> choices = numbers_.add(choices_);
  const Mirrored<ops::RowEdits> row_edits = numbers_.add(row_edits_);
  const Mirrored<ops::LogitEdit> edits = numbers_.add(edits_);
  const Mirrored<uint32_t> masks = numbers_.add(masks_);
  const Mirrored<ops::RowLogprobs> wanted = numbers_.add(logprobs);
  drawn.bytes_up += numbers_.upload() + lists_.bytes_uploaded() - uploaded;
  drawn.collect += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();

  auto* tokens = tokens_.as<int32_t>() + half_ * limits_.max_num_tokens + first;
  if (num_edited > 0) {
    auto* edited = edited_.as<float>();
    backend_(ops::EditLogitsArgs{.in = logits,
                                 .num_rows = static_cast<int64_t>(num_edited),
                                 .size = limits_.vocab_size,
                                 .rows = row_edits,
                                 .edits = edits,
                                 .masks = masks,
                                 .mask_words = (limits_.vocab_size + 31) / 32,
                                 .lists = lists_.device(),
                                 .lists_size = lists_.size(),
                                 .drawn = tokens_.as<int32_t>(),
                                 .out = edited});
    choose(edited, num_edited, choices, tokens);
  }
  const auto others = static_cast<int64_t>(num_edited);
  choose(logits + others * limits_.vocab_size, rows.size() - num_edited, choices + others, tokens + others);
  if (std::ranges::none_of(logprobs, [](const ops::RowLogprobs& row) { return row.num_top >= 0; })) return;
  backend_(ops::TopLogprobsArgs{.in = logits,
                                .num_rows = static_cast<int64_t>(rows.size()),
                                .size = limits_.vocab_size,
                                .rows = wanted,
                                .chosen = tokens,
                                .out = ranks_.as<ops::RankedToken>()});
}

void DeviceSampler::choose(const float* logits, size_t count, Mirrored<ops::TokenChoice> choices, int32_t* tokens) {
  backend_(ops::ChooseTokensArgs{.in = logits,
                                 .num_rows = static_cast<int64_t>(count),
                                 .size = limits_.vocab_size,
                                 .choices = choices,
                                 .tokens = tokens});
}

void DeviceSampler::end(DrawnRows& drawn) {
  const auto half = static_cast<size_t>(half_ * limits_.max_num_tokens);
  auto* tokens = host_tokens_.as<int32_t>() + half;
  auto* ranks = host_ranks_.as<ops::RankedToken>() + half * kRanksOfRow;
  size_t num_ranks = 0;
  for (const ops::RowLogprobs& row : drawn.logprobs) num_ranks += static_cast<size_t>(1 + std::max(row.num_top, -1));
  drawn.tokens = tokens;
  drawn.ranks = ranks;
  drawn.tokens_download = backend_.begin_download(tokens, this->tokens(), drawn.logprobs.size() * sizeof(int32_t));
  drawn.ranks_download = drawn.tokens_download;
  if (num_ranks == 0) return;
  drawn.ranks_download = backend_.begin_download(ranks, ranks_.data(), num_ranks * sizeof(ops::RankedToken));
}

void DeviceSampler::finish(const DrawnRows& drawn) {
  backend_.finish_download(drawn.tokens_download);
  if (drawn.ranks_download != drawn.tokens_download) backend_.finish_download(drawn.ranks_download);
}

}  // namespace quire::runner
