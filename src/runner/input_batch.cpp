#include "runner/input_batch.h"

#include <algorithm>

namespace quire::runner {
namespace {

// Sharing is told to the device where it saves one of so many reads: attention then cuts the contexts of all sequences
// into splits, whose results are written and read once more, a thirtieth of what keys and values are.
constexpr int64_t kReadsOfOneSaved = 8;

// Spans of which every position is in tables of so many blocks.
int32_t spans_of(size_t num_blocks, int32_t block_size) {
  return static_cast<int32_t>(num_blocks * static_cast<size_t>(block_size) / ops::kSharedSpan);
}

// A plan's draft tokens, and what each was drawn from, run by run.
class DraftsLeft {
 public:
  explicit DraftsLeft(const StepPlan& plan)
      : tokens_(plan.draft_tokens), choices_(plan.draft_choices), probabilities_(plan.draft_probabilities) {}

  std::span<const TokenId> take_tokens(int32_t count) {
    const auto taken = tokens_.first(static_cast<size_t>(count));
    tokens_ = tokens_.subspan(taken.size());
    return taken;
  }
  // Once for each token.
  std::span<const DraftProbability> take_choices() {
    if (choices_.empty()) return {};
    const auto taken = probabilities_.first(static_cast<size_t>(choices_.front()));
    choices_ = choices_.subspan(1);
    probabilities_ = probabilities_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const TokenId> tokens_;
  std::span<const int32_t> choices_;
  std::span<const DraftProbability> probabilities_;
};

// The rows of this run whose prediction is wanted: of all prompt tokens behind its first, also those that were scored
// before a preemption, which the scheduler counts off; and of the token to sample.
void add_logit_rows(const ScheduledSequence& scheduled, std::span<const TokenId> drafts, DraftsLeft& left,
                    SequenceState& state, int32_t first_row, int32_t index, std::vector<LogitRow>& rows) {
  const int32_t begin = scheduled.num_computed_tokens;
  const int32_t end = begin + scheduled.num_new_tokens;
  if (state.params->prompt_logprobs) {
    // The row at position p predicts the token at p + 1.
    const int32_t last = std::min(end, state.num_prompt_tokens - 1);
    for (int32_t target = begin + 1; target <= last; ++target) {
      rows.push_back({.row = first_row + target - 1 - begin,
                      .sequence = index,
                      .target = state.tokens[static_cast<size_t>(target)],
                      .id = scheduled.id});
    }
  }
  if (!scheduled.samples) return;
  LogitRow last{.row = first_row + scheduled.num_new_tokens - 1,
                .sequence = index,
                .num_candidates = scheduled.num_candidates,
                .id = scheduled.id};
  if (!drafts.empty()) last.draft_row = 0;
  for (const TokenId draft : drafts) {
    last.draft = draft;
    last.drawn_from = left.take_choices();
    rows.push_back(last);
    ++last.row;
    ++last.draft_row;
  }
  last.draft = kNoToken;
  last.drawn_from = {};
  rows.push_back(last);
}

}  // namespace

void InputBatch::use_shapes(StepShapes shapes, int64_t max_num_tokens) {
  shapes_ = std::move(shapes);
  const auto most = static_cast<size_t>(shapes_.sizes().back());
  const auto blocks = static_cast<size_t>(shapes_.most_blocks());
  const auto tokens = std::max(most, static_cast<size_t>(max_num_tokens));
  const auto spans = static_cast<size_t>(spans_of(blocks, shapes_.block_size()));
  const size_t rows = most + StepShapes::kMostLeftOver;
  numbers_.begin(num_bytes(tokens, tokens, 0, 0) +
                 groups_.size() * (StepNumbers::room(rows * blocks * sizeof(BlockId)) +
                                   StepNumbers::room(rows * spans * sizeof(ops::SpanPlace))));
  longest_contexts_.reserve(most);
}

void InputBatch::clear() {
  token_ids_.clear();
  sources_.clear();
  any_pending_ = false;
  positions_.clear();
  text_types_.clear();
  query_offsets_.assign(1, 0);
  context_lengths_.clear();
  prompt_lengths_.clear();
  num_drafts_.clear();
  num_replayed_.clear();
  logit_rows_.clear();
  num_shared_spans_ = 0;
}

std::optional<StepShape> InputBatch::shape_of(const StepPlan& plan) const {
  int64_t longest = 0;
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    if (scheduled.num_rows() != 1) return shapes_.mixed_shape_of(plan.num_tokens);
    longest = std::max<int64_t>(longest, scheduled.num_computed_tokens + 1);
  }
  return shapes_.shape_of(plan.scheduled.size(), longest);
}

void InputBatch::build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states,
                       int32_t block_size) {
  clear();
  shape_ = shape_of(plan);
  const DecodeShape* decode = shape_ ? std::get_if<DecodeShape>(&*shape_) : nullptr;
  const MixedShape* mixed = shape_ ? std::get_if<MixedShape>(&*shape_) : nullptr;
  size_t stride = decode != nullptr ? static_cast<size_t>(decode->num_blocks) : 0;
  states_.clear();
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    states_.push_back(&states.at(scheduled.id));
    if (decode == nullptr) stride = std::max(stride, states_.back()->tables.table(0).size());
  }
  block_table_stride_ = stride;
  for (Group& group : groups_) {
    group.slots.clear();
    group.block_tables.assign(plan.scheduled.size() * stride, 0);
  }

  DraftsLeft drafts_left(plan);
  for (size_t i = 0; i < plan.scheduled.size(); ++i) {
    const ScheduledSequence& scheduled = plan.scheduled[i];
    SequenceState& state = *states_[i];
    const int32_t begin = scheduled.num_computed_tokens;
    const int32_t end = begin + scheduled.num_new_tokens;
    const auto drafts = drafts_left.take_tokens(scheduled.num_draft_tokens);
    const size_t num_known = state.tokens.size();
    const bool pending = static_cast<size_t>(end) > num_known;
    QUIRE_CHECK(!pending || (drafts.empty() && state.pending_row >= 0 && static_cast<size_t>(end) == num_known + 1));
    any_pending_ = any_pending_ || pending;
    const int32_t first_row = static_cast<int32_t>(token_ids_.size());
    for (int32_t position = begin; position < end + scheduled.num_draft_tokens; ++position) {
      const auto at = static_cast<size_t>(position);
      const bool known = position < end && at < num_known;
      token_ids_.push_back(known ? state.tokens[at] : position < end ? 0 : drafts[static_cast<size_t>(position - end)]);
      sources_.push_back(position < end && !known ? state.pending_row : -1);
      positions_.push_back(position);
      if (tells_text_types_)
        text_types_.push_back(state.second_text >= 0 && position >= state.second_text ? second_text_type_ : 0);
    }
    add_run(scheduled, state.tables, i, block_size);
    query_offsets_.push_back(static_cast<int32_t>(token_ids_.size()));
    context_lengths_.push_back(end + scheduled.num_draft_tokens);
    prompt_lengths_.push_back(state.num_prompt_tokens);
    num_drafts_.push_back(scheduled.num_draft_tokens);
    num_replayed_.push_back(scheduled.num_replayed_tokens);
    add_logit_rows(scheduled, drafts, drafts_left, state, first_row, static_cast<int32_t>(i), logit_rows_);
  }
  if (decode != nullptr) fill_up(static_cast<size_t>(decode->num_sequences));
  if (mixed != nullptr) fill_up(static_cast<size_t>(mixed->num_tokens));
  // Rows that fill a shape are of none.
  for (std::vector<int32_t>* counts : {&num_drafts_, &num_replayed_}) {
    if (std::ranges::count(*counts, 0) == std::ssize(*counts)) counts->clear();
    if (!counts->empty()) counts->resize(context_lengths_.size(), 0);
  }
  if (backend_.shares_spans()) find_shared(plan, block_size);
}

void InputBatch::build_example(const DecodeShape& shape) {
  clear();
  shape_ = shape;
  block_table_stride_ = static_cast<size_t>(shape.num_blocks);
  token_ids_.assign(1, 0);
  sources_.assign(1, -1);
  positions_.assign(1, 0);
  if (tells_text_types_) text_types_.assign(1, 0);
  query_offsets_.push_back(1);
  context_lengths_.assign(1, 1);
  prompt_lengths_.assign(1, 1);
  for (Group& group : groups_) {
    group.slots.assign(1, 0);
    group.block_tables.assign(block_table_stride_, 0);
  }
  fill_up(static_cast<size_t>(shape.num_sequences));
}

// The first token takes the places that are left: its numbers are finite and its experts are read anyway.
void InputBatch::fill_up(size_t num_tokens) {
  const size_t first = context_lengths_.size();
  const size_t num_sequences = first + num_tokens - token_ids_.size();
  token_ids_.resize(num_tokens, token_ids_.front());
  sources_.resize(num_tokens, sources_.front());
  positions_.resize(num_tokens, positions_.front());
  if (tells_text_types_) text_types_.resize(num_tokens, text_types_.front());
  context_lengths_.resize(num_sequences, positions_.front() + 1);
  prompt_lengths_.resize(num_sequences, prompt_lengths_.front());
  while (query_offsets_.size() <= num_sequences) query_offsets_.push_back(query_offsets_.back() + 1);
  const auto stride = static_cast<int64_t>(block_table_stride_);
  for (Group& group : groups_) {
    group.slots.resize(num_tokens, ops::kNoSlot);
    group.block_tables.resize(num_sequences * block_table_stride_);
    const auto table = group.block_tables.begin();
    for (size_t row = first; row < num_sequences; ++row) {
      std::copy_n(table, stride, table + static_cast<int64_t>(row) * stride);
    }
  }
}

void InputBatch::find_shared(const StepPlan& plan, int32_t block_size) {
  const int32_t num_spans = spans_of(block_table_stride_, block_size);
  if (num_spans == 0 || context_lengths_.size() < 2) return;
  SharedSpans::Reads reads;
  for (size_t g = 0; g < groups_.size(); ++g) {
    readers_.clear();
    for (size_t i = 0; i < plan.scheduled.size(); ++i) {
      readers_.push_back({.table = states_[i]->tables.table(g),
                          .num_computed = plan.scheduled[i].num_computed_tokens,
                          .num_queries = plan.scheduled[i].num_rows()});
    }
    // Who takes the places that are left reads what the first sequence reads.
    SpanReader filling = readers_.front();
    filling.num_queries = 1;
    filling.counts = false;
    readers_.resize(context_lengths_.size(), filling);
    const SharedSpans::Reads of_group = groups_[g].shared.find(readers_, block_size, num_spans);
    reads.all += of_group.all;
    reads.saved += of_group.saved;
  }
  if (reads.saved == 0 || reads.saved * kReadsOfOneSaved < reads.all) return;
  num_shared_spans_ = num_spans;
  if (auto* decode = shape_ ? std::get_if<DecodeShape>(&*shape_) : nullptr) decode->shares = true;
}

// The run's slots and its row of the block tables, in every group.
void InputBatch::add_run(const ScheduledSequence& scheduled, const BlockTables& tables, size_t index,
                         int32_t block_size) {
  const int32_t begin = scheduled.num_computed_tokens;
  const int32_t end = begin + scheduled.num_rows();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t num_blocks = tables.table(g).size();
    const BlockId* table = tables.table(g).data();
    QUIRE_CHECK(static_cast<size_t>(end) <= num_blocks * static_cast<size_t>(block_size));
    for (int32_t position = begin; position < end; ++position) {
      const int64_t block = table[position / block_size];
      QUIRE_DCHECK(block != kNoBlock);
      groups_[g].slots.push_back(block * block_size + position % block_size);
    }
    // Blocks behind the window are never read; a kernel may still form their address. A shape may leave out blocks that
    // are taken for tokens to come.
    std::replace_copy(table, table + std::min(num_blocks, block_table_stride_),
                      groups_[g].block_tables.begin() + static_cast<int64_t>(index * block_table_stride_), kNoBlock,
                      BlockId{0});
  }
}

size_t InputBatch::num_bytes(size_t num_tokens, size_t num_sequences, size_t stride, size_t num_spans) const {
  const auto room = [](size_t bytes) { return StepNumbers::room(bytes); };
  const size_t group = room(num_tokens * sizeof(int64_t)) + room(num_sequences * stride * sizeof(BlockId)) +
                       room(num_sequences * num_spans * sizeof(ops::SpanPlace));
  const size_t types = tells_text_types_ ? room(num_tokens * sizeof(int32_t)) : 0;
  return types + room(num_tokens * sizeof(TokenId)) + 2 * room(num_tokens * sizeof(int32_t)) +
         room((num_sequences + 1) * sizeof(int32_t)) + 3 * room(num_sequences * sizeof(int32_t)) +
         groups_.size() * group;
}

nn::Batch InputBatch::view(std::span<const nn::CacheLayer> layers) {
  numbers_.begin(num_bytes(token_ids_.size(), context_lengths_.size(), block_table_stride_,
                           static_cast<size_t>(num_shared_spans_)));
  // Those of tokens come first: where they lie does not depend on how many sequences there are.
  group_views_.clear();
  for (const Group& group : groups_) group_views_.emplace_back().slots = numbers_.add(group.slots);
  const Mirrored<TokenId> token_ids = numbers_.add(token_ids_);
  const Mirrored<int32_t> positions = numbers_.add(positions_);
  sources_view_ = numbers_.add(sources_);
  const Mirrored<int32_t> text_types = tells_text_types_ ? numbers_.add(text_types_) : Mirrored<int32_t>();
  for (size_t g = 0; g < groups_.size(); ++g) {
    group_views_[g].block_tables = numbers_.add(groups_[g].block_tables);
    if (num_shared_spans_ > 0) group_views_[g].span_places = numbers_.add(groups_[g].shared.places());
  }
  view_ = {.num_tokens = static_cast<int64_t>(token_ids_.size()),
           .num_sequences = static_cast<int32_t>(context_lengths_.size()),
           .token_ids = token_ids,
           .positions = positions,
           .text_types = text_types,
           .query_offsets = numbers_.add(query_offsets_),
           .context_lengths = numbers_.add(context_lengths_),
           .prompt_lengths = prompt_lengths_.data(),
           .num_drafts = num_drafts_.empty() ? Mirrored<int32_t>() : numbers_.add(num_drafts_),
           .num_replayed = num_replayed_.empty() ? Mirrored<int32_t>() : numbers_.add(num_replayed_),
           .block_table_stride = static_cast<int64_t>(block_table_stride_),
           .num_shared_spans = num_shared_spans_,
           .tables_checked = true,
           .groups = group_views_,
           .layers = layers};
  check_tables();
  numbers_.upload();
  return view_;
}

// Here, once for all layers of a group: they would each walk every block of every sequence.
void InputBatch::check_tables() const {
  for (size_t g = 0; g < group_views_.size(); ++g) {
    const auto of_group = [g](const nn::CacheLayer& layer) { return static_cast<size_t>(layer.group) == g; };
    const auto layer = std::ranges::find_if(view_.layers, of_group);
    if (layer == view_.layers.end()) continue;
    ops::check_tables({.cache = layer->view,
                       .num_sequences = view_.num_sequences,
                       .query_offsets = view_.query_offsets,
                       .context_lengths = view_.context_lengths,
                       .block_tables = group_views_[g].block_tables,
                       .block_table_stride = view_.block_table_stride,
                       .span_places = group_views_[g].span_places,
                       .num_shared_spans = num_shared_spans_});
  }
}

void InputBatch::place_tokens(const int32_t* chosen) {
  if (!any_pending_) return;
  // The ids lie in memory of numbers_.
  backend_(ops::PlaceTokensArgs{.tokens = chosen,
                                .sources = sources_view_,
                                .ids = const_cast<TokenId*>(view_.token_ids.device),
                                .num_tokens = view_.num_tokens});
}

nn::Batch InputBatch::as_recorded(std::span<const nn::CacheLayer> layers, int32_t block_size) {
  QUIRE_CHECK(shape_.has_value());
  const auto* decode = std::get_if<DecodeShape>(&*shape_);
  if (decode == nullptr) return view_;
  longest_contexts_.assign(context_lengths_.size(), decode->num_blocks * block_size);
  no_blocks_.assign(context_lengths_.size() * block_table_stride_, 0);
  nn::Batch batch = view_;
  batch.layers = layers;
  batch.token_ids.host = nullptr;
  batch.positions.host = nullptr;
  batch.context_lengths.host = longest_contexts_.data();
  batch.prompt_lengths = nullptr;
  for (nn::CacheGroup& group : group_views_) {
    group.slots.host = nullptr;
    group.block_tables.host = no_blocks_.data();
    group.span_places.host = nullptr;
  }
  return batch;
}

}  // namespace quire::runner
