#include "quantize/layer_walk.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hashing.h"
#include "nn/loader.h"

namespace quire::quantize {
namespace {

constexpr int32_t kBlockSize = 16;

int64_t longest_of(const std::vector<std::vector<TokenId>>& windows) {
  int64_t longest = 0;
  for (const auto& window : windows) longest = std::max(longest, std::ssize(window));
  return longest;
}

int64_t blocks_of(int64_t tokens, const runner::KvLayout& layout) {
  return (tokens + layout.block_size - 1) / layout.block_size;
}

// The flat batch of one window, whose groups of layers have blocks of their own.
class WindowBatch {
 public:
  WindowBatch(const std::vector<TokenId>& ids, const runner::KvLayout& layout, std::span<const nn::CacheLayer> layers)
      : ids_(ids) {
    const std::ptrdiff_t tokens = std::ssize(ids);
    const int64_t blocks = blocks_of(tokens, layout);
    const size_t num_groups = layout.windows.size();
    positions_.resize(ids.size());
    std::iota(positions_.begin(), positions_.end(), 0);
    offsets_ = {0, static_cast<int32_t>(tokens)};
    lengths_ = {static_cast<int32_t>(tokens)};
    tables_.resize(num_groups);
    slots_.resize(num_groups);
    for (size_t group = 0; group < num_groups; ++group) {
      const int64_t first = static_cast<int64_t>(group) * blocks;
      tables_[group].resize(static_cast<size_t>(blocks));
      std::iota(tables_[group].begin(), tables_[group].end(), static_cast<BlockId>(first));
      slots_[group].resize(ids.size());
      std::iota(slots_[group].begin(), slots_[group].end(), first * layout.block_size);
      groups_.push_back({.slots = slots_[group].data(), .block_tables = tables_[group].data(), .span_places = {}});
    }
    batch_ = {.num_tokens = tokens,
              .num_sequences = 1,
              .token_ids = ids_.data(),
              .positions = positions_.data(),
              .query_offsets = offsets_.data(),
              .context_lengths = lengths_.data(),
              .block_table_stride = blocks,
              .groups = groups_,
              .layers = layers};
  }
  const nn::Batch& batch() const { return batch_; }

 private:
  const std::vector<TokenId>& ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> offsets_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<int64_t>> slots_;
  std::vector<nn::CacheGroup> groups_;
  nn::Batch batch_;
};

}  // namespace

std::vector<std::vector<TokenId>> cut_windows(const std::vector<TokenId>& ids, const std::vector<TokenId>& begin,
                                              int64_t length, int64_t most_tokens) {
  std::vector<std::vector<TokenId>> windows;
  const auto step = static_cast<size_t>(std::max<int64_t>(length - std::ssize(begin), 1));
  int64_t total = 0;
  for (size_t first = 0; first < ids.size() && total < most_tokens; first += step) {
    std::vector<TokenId> window = begin;
    const auto room = static_cast<size_t>(std::max<int64_t>(most_tokens - total - std::ssize(begin), 0));
    const size_t count = std::min({step, ids.size() - first, room});
    window.insert(window.end(), ids.begin() + static_cast<ptrdiff_t>(first),
                  ids.begin() + static_cast<ptrdiff_t>(first + count));
    if (window.size() < 2) break;
    total += std::ssize(window);
    windows.push_back(std::move(window));
  }
  return windows;
}

Result<std::unique_ptr<LayerWalk>> LayerWalk::create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                     ops::Backend& backend, std::vector<std::vector<TokenId>> windows) {
  QUIRE_CHECK(backend.computes_in_host_memory() && !windows.empty());
  EngineConfig config;
  const int64_t longest = longest_of(windows);
  config.max_num_batched_tokens = static_cast<int32_t>(longest);
  config.max_num_seqs = 1;
  config.max_model_len = longest;
  config.block_size = kBlockSize;
  config.num_gpu_blocks_override = 1;  // a plan without a pool is none
  config.kv_cache_dtype = KvCacheDType::kFloat32;
  QUIRE_ASSIGN_OR_RETURN(runner::PlannedModel planned, runner::plan_model(config, *checkpoint, backend, 0));
  if (planned.config.task != ModelTask::kGenerate || planned.config.attends_both_ways) {
    return unimplemented("calibration: {} is no model that generates", planned.config.architecture);
  }
  const auto num_groups = std::ssize(planned.kv_layout.windows);
  QUIRE_ASSIGN_OR_RETURN(
      runner::KvStorage storage,
      runner::KvStorage::create(planned.kv_layout, {.num_blocks = num_groups * blocks_of(longest, planned.kv_layout)},
                                backend));
  return std::unique_ptr<LayerWalk>(
      new LayerWalk(std::move(checkpoint), backend, std::move(windows), std::move(planned), std::move(storage)));
}

LayerWalk::LayerWalk(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, ops::Backend& backend,
                     std::vector<std::vector<TokenId>> windows, runner::PlannedModel planned, runner::KvStorage storage)
    : checkpoint_(std::move(checkpoint)),
      backend_(backend),
      windows_(std::move(windows)),
      planned_(std::move(planned)),
      storage_(std::move(storage)),
      states_(windows_.size()),
      workspace_(static_cast<size_t>(planned_.workspace_floats)) {}

int64_t LayerWalk::num_tokens() const {
  int64_t total = 0;
  for (const auto& window : windows_) total += std::ssize(window);
  return total;
}

uint64_t LayerWalk::hash() const {
  uint64_t seed = windows_.size();
  for (const auto& window : windows_) seed = hash_bytes(window.data(), window.size() * sizeof(TokenId), seed);
  return seed;
}

Result<std::unique_ptr<models::Model>> LayerWalk::load(int32_t index, const checkpoint::Checkpoint& weights) {
  nn::Loader loader(nn::Loader::Mode::kLoad, weights, backend_, Quantization::kNone, std::nullopt, {},
                    {.index = index, .count = num_layers()});
  return planned_.family.build(planned_.config, planned_.max_model_len, loader);
}

void LayerWalk::in_step(size_t index, const nn::RowAdapters* observer, bool keep,
                        const std::function<void(const nn::StepContext&, nn::HiddenStates&)>& body) {
  const WindowBatch window(windows_[index], planned_.kv_layout, storage_.layers());
  nn::Workspace workspace(workspace_.data(), std::ssize(workspace_));
  const nn::StepContext step{
      .backend = backend_, .batch = window.batch(), .workspace = workspace, .adapters = observer};
  nn::HiddenStates states(step, planned_.config.hidden_size);
  States& stored = states_[index];
  std::copy(stored.residual.begin(), stored.residual.end(), states.residual.floats());
  std::copy(stored.delta.begin(), stored.delta.end(), states.delta.floats());
  states.pending = !stored.delta.empty();
  body(step, states);
  backend_.synchronise();
  if (!keep) return;
  const auto taken = [](const ops::View& view) {
    return std::vector<float>(view.floats(), view.floats() + view.num_rows * view.num_columns);
  };
  stored.residual = taken(states.residual);
  stored.delta = states.pending ? taken(states.delta) : std::vector<float>();
}

Status LayerWalk::embed() {
  QUIRE_ASSIGN_OR_RETURN(const auto model, load(0, *checkpoint_));
  for (size_t i = 0; i < windows_.size(); ++i) {
    in_step(i, nullptr, true,
            [&](const nn::StepContext& step, nn::HiddenStates& states) { model->embed(step, states); });
  }
  return {};
}

Status LayerWalk::run_layer(int32_t index, const checkpoint::Checkpoint* weights, const nn::RowAdapters* observer,
                            bool moves_on) {
  QUIRE_ASSIGN_OR_RETURN(const auto model, load(index, weights == nullptr ? *checkpoint_ : *weights));
  for (size_t i = 0; i < windows_.size(); ++i) {
    in_step(i, observer, moves_on, [&](const nn::StepContext& step, nn::HiddenStates& states) {
      model->run_layers(step, index, index + 1, states);
    });
  }
  return {};
}

Status LayerWalk::finish(const std::function<void(const ops::ConstView&)>& see) {
  QUIRE_ASSIGN_OR_RETURN(const auto model, load(num_layers() - 1, *checkpoint_));
  for (size_t i = 0; i < windows_.size(); ++i) {
    in_step(i, nullptr, false,
            [&](const nn::StepContext& step, nn::HiddenStates& states) { see(model->finish(step, states)); });
  }
  return {};
}

}  // namespace quire::quantize
