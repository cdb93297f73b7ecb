#include "runner/step_adapters.h"

#include <algorithm>
#include <functional>

namespace quire::runner {

namespace {

// Of the parts that one adapter may have at once in one product of the layer.
int64_t most_parts(const nn::AdaptableLayer& layer) {
  const auto of_first = std::ranges::count(layer.parts, 0, &nn::AdaptableLayer::Part::expert);
  return layer.kind == nn::AdaptableLayer::Kind::kHeads ? 1 : std::max<int64_t>(of_first, 1);
}

}  // namespace

StepAdapters::StepAdapters(ops::Backend& backend, int32_t max_rank, int64_t most_tokens)
    : on_device_(!backend.computes_in_host_memory()), max_rank_(max_rank), numbers_(backend) {
  if (on_device_ && most_tokens > 0)
    numbers_.begin(StepNumbers::room(static_cast<size_t>(most_tokens) * sizeof(const ops::LowRankFactors*)));
}

void StepAdapters::clear() {
  runs_.clear();
  virtual_runs_.clear();
  given_keys_.clear();
  prompt_layer_ = -1;
  has_virtual_rows_ = false;
  of_token_.clear();
  distinct_.clear();
  tables_.clear();
}

// What any step adds to, every later one calls: what is recorded of it serves both. Ranks see the same, in the same
// step, for layers are those of the whole adapter: what one records anew all do, whose exchanges are in step.
void StepAdapters::see(const Adapter* adapter) {
  const std::vector<uint64_t>& layers = adapter->adapted_layers();
  seen_layers_.resize(std::max(seen_layers_.size(), layers.size()));
  bool is_new = false;
  for (size_t i = 0; i < layers.size(); ++i) {
    is_new = is_new || (layers[i] & ~seen_layers_[i]) != 0;
    seen_layers_[i] |= layers[i];
  }
  if (is_new) ++version_;
}

void StepAdapters::add_run(const Adapter* adapter, int32_t num_rows) {
  const auto row = static_cast<int64_t>(of_token_.size());
  of_token_.insert(of_token_.end(), static_cast<size_t>(num_rows), adapter);
  if (on_device_) {
    // Of a soft prompt the table has what its own tokens get, and those are others.
    const bool is_soft = adapter == nullptr || adapter->num_virtual_tokens() > 0;
    tables_.insert(tables_.end(), static_cast<size_t>(num_rows), is_soft ? nullptr : adapter->table());
  }
  if (adapter == nullptr || num_rows == 0) return;
  if (std::ranges::find(distinct_, adapter) == distinct_.end()) {
    distinct_.push_back(adapter);
    if (on_device_) see(adapter);
  }
  // Neighbours of one adapter share what is read of it.
  if (!runs_.empty() && runs_.back().adapter == adapter && runs_.back().row + runs_.back().num_rows == row) {
    runs_.back().num_rows += num_rows;
  } else {
    runs_.push_back({adapter, row, num_rows});
  }
}

void StepAdapters::add_virtual_run(const Adapter* adapter, int32_t first_token, int32_t num_rows) {
  if (num_rows == 0) return;
  has_virtual_rows_ = has_virtual_rows_ || adapter != nullptr;
  if (adapter != nullptr && adapter->gives_keys())
    given_keys_.push_back({adapter, first_token, static_cast<int64_t>(of_token_.size()), num_rows});
  const ops::LowRankFactors* prompt = adapter == nullptr ? nullptr : adapter->prompt();
  if (prompt != nullptr) {
    virtual_runs_.push_back({prompt, static_cast<int64_t>(of_token_.size()), num_rows});
    prompt_layer_ = adapter->prompt_layer();
  }
  if (on_device_) {
    if (adapter != nullptr) see(adapter);
    tables_.insert(tables_.end(), static_cast<size_t>(num_rows), prompt == nullptr ? nullptr : adapter->table());
  }
  of_token_.insert(of_token_.end(), static_cast<size_t>(num_rows), nullptr);
}

void StepAdapters::upload(int64_t num_tokens) {
  if (!any()) return;
  if (!on_device_) {
    // Those of one adapter one after the other: what is read of it for one is there for the next.
    std::ranges::stable_sort(runs_, std::less<>(), &Run::adapter);
    return;
  }
  QUIRE_CHECK(num_tokens >= std::ssize(tables_));
  tables_.resize(static_cast<size_t>(num_tokens), nullptr);
  const uint64_t place = numbers_.place();
  numbers_.begin(StepNumbers::room(tables_.size() * sizeof(tables_.front())));
  if (numbers_.place() != place) ++version_;  // what is recorded reads the old one
  device_tables_ = numbers_.add(tables_).device;
  numbers_.upload();
}

bool StepAdapters::adapt(const nn::StepContext& step, const nn::AdaptableLayer& layer) const {
  if (step.rows.kind == nn::RowTokens::Kind::kNone) return false;
  if (on_device_) {
    const auto index = static_cast<size_t>(layer.index);
    return index / 64 < seen_layers_.size() && (seen_layers_[index / 64] >> index % 64 & 1) != 0;
  }
  if (layer.index == prompt_layer_) return true;
  return std::ranges::any_of(distinct_, [&](const Adapter* adapter) { return adapter->adapts(layer); });
}

ops::LowRankRows StepAdapters::rows_of(const nn::StepContext& step, const nn::AdaptableLayer& layer) const {
  const bool gathered = step.rows.kind == nn::RowTokens::Kind::kGathered;
  const bool may_replace =
      layer.kind == nn::AdaptableLayer::Kind::kEmbedding ||
      (layer.kind == nn::AdaptableLayer::Kind::kHead && std::ranges::any_of(distinct_, [&](const Adapter* adapter) {
         const ops::LowRankFactors* factors = adapter->factors(layer);
         return factors != nullptr && factors->replaces;
       }));
  return {.of_token = device_tables_,
          .tokens = gathered ? step.rows.tokens.device : nullptr,
          .entry = layer.entry,
          .most_ranks = max_rank_ * most_parts(layer),
          .most_replaced = may_replace ? layer.out_features : 0,
          .num_runs = std::ssize(runs_)};
}

const Adapter* StepAdapters::of_row(const nn::StepContext& step, int64_t row) const {
  const bool gathered = step.rows.kind == nn::RowTokens::Kind::kGathered;
  const auto token = static_cast<size_t>(gathered ? step.rows.tokens.host[row] : row);
  return token < of_token_.size() ? of_token_[token] : nullptr;
}

void StepAdapters::add_row(const ops::LowRankRun& run) const {
  if (run.factors == nullptr) return;
  if (!found_.empty() && found_.back().factors == run.factors &&
      found_.back().row + found_.back().num_rows == run.row) {
    ++found_.back().num_rows;
  } else {
    found_.push_back(run);
  }
}

void StepAdapters::find_runs(const nn::StepContext& step, const nn::AdaptableLayer& layer, int64_t num_rows,
                             Columns columns) const {
  if (step.rows.kind == nn::RowTokens::Kind::kGathered) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const Adapter* adapter = of_row(step, row);
      if (adapter != nullptr) add_row({adapter->factors(layer, columns.expert), row, 1, columns.x, columns.out});
    }
    return;
  }
  for (const Run& run : runs_) {
    const ops::LowRankFactors* factors = run.adapter->factors(layer, columns.expert);
    if (factors != nullptr) found_.push_back({factors, run.row, run.num_rows, columns.x, columns.out});
  }
}

ops::LowRankArgs StepAdapters::addition(const nn::StepContext& step, const nn::AdaptableLayer& layer,
                                        const ops::ConstView& x, const ops::View& out) const {
  found_.clear();
  if (!on_device_) find_runs(step, layer, x.num_rows, {});
  return {.x = x.strided_floats(),
          .x_stride = x.row_stride,
          .num_rows = x.num_rows,
          .runs = found_,
          .rows = on_device_ ? rows_of(step, layer) : ops::LowRankRows{},
          .out = out.strided_floats(),
          .out_stride = out.row_stride,
          .out_features = out.num_columns};
}

void StepAdapters::add(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                       const ops::View& out) const {
  step(addition(step, layer, x, out));
}

void StepAdapters::multiply(const nn::StepContext& step, const nn::AdaptableLayer& layer,
                            const ops::LinearArgs& product, const ops::ConstView& x, const ops::View& out) const {
  step(ops::AdaptedLinearArgs{.product = product, .low_rank = addition(step, layer, x, out)});
}

void StepAdapters::add_embedded(const nn::StepContext& step, const nn::AdaptableLayer& layer, Mirrored<TokenId> ids,
                                const ops::View& out) const {
  found_.clear();
  if (!on_device_) {
    find_runs(step, layer, out.num_rows, {});
    if (layer.index == prompt_layer_) found_.insert(found_.end(), virtual_runs_.begin(), virtual_runs_.end());
  }
  step(ops::LowRankArgs{.ids = ids,
                        .num_rows = out.num_rows,
                        .runs = found_,
                        .rows = on_device_ ? rows_of(step, layer) : ops::LowRankRows{},
                        .out = out.strided_floats(),
                        .out_stride = out.row_stride,
                        .out_features = out.num_columns});
}

void StepAdapters::add_heads(const nn::StepContext& step, const nn::AdaptableLayer& layer, int32_t first,
                             int32_t num_heads, const HeadRows& rows) const {
  found_.clear();
  ops::LowRankRows of_heads;
  if (on_device_) {
    of_heads = rows_of(step, layer);
    of_heads.entry += first;
    of_heads.num_heads = num_heads;
    of_heads.x_head = rows.x_head;
    of_heads.out_head = rows.out_head;
  }
  for (int32_t head = 0; head < num_heads && !on_device_; ++head)
    find_runs(step, layer, rows.x.num_rows, {first + head, head * rows.x_head, head * rows.out_head});
  step(ops::LowRankArgs{.x = rows.x.strided_floats(),
                        .x_stride = rows.x.row_stride,
                        .num_rows = rows.x.num_rows,
                        .runs = found_,
                        .rows = of_heads,
                        .out = rows.out.strided_floats(),
                        .out_stride = rows.out.row_stride,
                        .out_features = rows.out.num_columns});
}

void StepAdapters::give_keys(const nn::StepContext& step, const nn::CacheLayer& layer) const {
  const auto index = static_cast<size_t>(&layer - step.batch.layers.data());
  const nn::CacheGroup& group = step.batch.group_of(layer);
  for (const GivenKeys& given : given_keys_) {
    const int64_t size = int64_t{layer.view.num_kv_heads} * layer.view.head_dim;
    step(ops::KvWriteArgs{.keys = given.adapter->keys(index) + given.first_token * size,
                          .values = given.adapter->values(index) + given.first_token * size,
                          .token_stride = size,
                          .num_tokens = given.num_rows,
                          .slots = group.slots + given.row,
                          .cache = layer.view});
  }
}

// Rows of an expert may be of any of the step's tokens.
void StepAdapters::add_experts(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                               const int32_t* offsets, const ops::View& out) const {
  found_.clear();
  ops::LowRankRows of_experts;
  if (on_device_) {
    of_experts = rows_of(step, layer);
    of_experts.offsets = offsets;
    of_experts.num_experts = layer.num_experts;
    of_experts.num_runs *= layer.num_experts;
  }
  const int32_t num_experts = on_device_ || step.workspace.measures() ? 0 : layer.num_experts;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) {
      const Adapter* adapter = of_row(step, row);
      if (adapter != nullptr) add_row({adapter->factors(layer, expert), row, 1});
    }
  }
  step(ops::LowRankArgs{.x = x.strided_floats(),
                        .x_stride = x.row_stride,
                        .num_rows = x.num_rows,
                        .runs = found_,
                        .rows = of_experts,
                        .out = out.strided_floats(),
                        .out_stride = out.row_stride,
                        .out_features = out.num_columns});
}

}  // namespace quire::runner
