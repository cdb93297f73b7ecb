#include "runner/local_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "runner/adapter_store.h"
#include "runner/device_communicator.h"
#include "runner/hidden_store.h"
#include "runner/model_drafts.h"
#include "runner/model_fingerprint.h"
#include "runner/model_runner.h"
#include "runner/offload_disk.h"
#include "runner/open_checkpoint.h"
#include "runner/plan_codec.h"
#include "runner/rank_adapters.h"
#include "runner/slot_copier.h"
#include "runner/tapped_states.h"
#include "runner/worst_step.h"
#include "tensor/keeping_allocator.h"

namespace quire::runner {
namespace {

// The ranks as layers of a device with memory of its own see them.
struct DeviceRanks {
  std::unique_ptr<comm::Communicator> tensor;  // nullptr: the group's own
  std::unique_ptr<comm::Communicator> states;
};

class LocalExecutor final : public Executor {
 public:
  LocalExecutor(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::unique_ptr<ops::Backend> backend,
                PlannedModel planned, std::unique_ptr<ModelRunner> runner, std::shared_ptr<AdapterStore> adapters,
                std::shared_ptr<RankAdapters> rank_adapters, std::unique_ptr<ModelDrafts> drafts,
                std::shared_ptr<HiddenStore> store, std::unique_ptr<TappedStates> taps,
                std::unique_ptr<OffloadDisk> disk, std::unique_ptr<SlotCopier> copier, DeviceRanks device_ranks)
      : checkpoint_(std::move(checkpoint)),
        backend_(std::move(backend)),
        device_ranks_(std::move(device_ranks)),
        planned_(std::move(planned)),
        runner_(std::move(runner)),
        adapters_(std::move(adapters)),
        rank_adapters_(std::move(rank_adapters)),
        drafts_(std::move(drafts)),
        store_(std::move(store)),
        taps_(std::move(taps)),
        disk_(std::move(disk)),
        copier_(std::move(copier)),
        description_(backend_->description()) {}

  const ModelConfig& model() const override { return planned_.config; }
  const MemoryPlan& memory() const override { return planned_.memory; }
  const std::string& description() const override { return description_; }
  void bind_thread() override { backend_->bind_thread(); }
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    runner_->use_constraints(std::move(constraints));
  }
  std::shared_ptr<AdapterStore> adapters() override { return adapters_; }
  std::shared_ptr<RankAdapters> rank_adapters() override { return rank_adapters_; }
  std::unique_ptr<DraftProposer> take_draft_model() override { return std::move(drafts_); }
  std::vector<StoredBlock> take_stored() override {
    return disk_ == nullptr ? std::vector<StoredBlock>() : disk_->take_found();
  }
  void order(OffloadOrders orders) override {
    if (!orders.exports.empty() || !orders.imports.empty()) {
      QUIRE_CHECK(copier_ != nullptr);
      copier_->order(std::exchange(orders.exports, {}), std::exchange(orders.imports, {}));
    }
    if (orders.empty()) return;
    QUIRE_CHECK(disk_ != nullptr);
    disk_->order(std::move(orders));
  }
  OffloadReports take_reports() override {
    OffloadReports reports = disk_ == nullptr ? OffloadReports() : disk_->take_reports();
    if (copier_ != nullptr) copier_->take_reports(reports);
    return reports;
  }
  void on_reports(std::function<void()> notify) override {
    if (copier_ != nullptr) copier_->on_reports(notify);
    if (disk_ != nullptr) disk_->on_reports(std::move(notify));
  }
  bool overlaps() const override { return !backend_->computes_in_host_memory(); }
  void submit(StepPlan plan) override {
    submitted_.push_back(std::move(plan));
    if (overlaps()) launch_ready();
  }
  Result<ExecutedStep> collect() override {
    if (!runner_->any_under_way()) launch();
    if (overlaps()) {
      runner_->choose();
      launch_ready();
    }
    ExecutedStep step = runner_->finish();
    for (const auto* communicator : {device_ranks_.tensor.get(), device_ranks_.states.get()}) {
      if (communicator != nullptr) QUIRE_RETURN_IF_ERROR(communicator->status());
    }
    if (taps_ != nullptr) QUIRE_RETURN_IF_ERROR(pass_on_states(step));
    if (overlaps()) launch_ready();
    return step;
  }

 private:
  // To the head that is here, or that is where the result goes.
  Status pass_on_states(ExecutedStep& step) {
    const StepRows rows = StepRows::of(step.plan);
    taps_->fetch(rows.num_rows);
    runner_->pass_fetched_taps(rows.num_rows);
    if (store_ != nullptr) return store_->settle(rows, taps_->all());
    step.states = taps_->release();
    return {};
  }

  void launch() {
    QUIRE_CHECK(!submitted_.empty());
    runner_->launch(std::move(submitted_.front()));
    submitted_.pop_front();
  }
  // A step's states are fetched before the next one's are taken.
  bool may_launch() const { return taps_ == nullptr ? runner_->may_launch() : !runner_->any_under_way(); }
  void launch_ready() {
    while (!submitted_.empty() && may_launch()) launch();
  }

  // Destroyed from the last to the first: the runner's buffers go before the backend that gave them.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<ops::Backend> backend_;
  DeviceRanks device_ranks_;
  PlannedModel planned_;
  std::unique_ptr<ModelRunner> runner_;
  std::shared_ptr<AdapterStore> adapters_;       // nullptr: there are none
  std::shared_ptr<RankAdapters> rank_adapters_;  // of one rank of several, in the place of these
  std::unique_ptr<ModelDrafts> drafts_;          // nullptr: there is none, or it was taken
  std::shared_ptr<HiddenStore> store_;           // of a head that drafts; nullptr: there is none here
  std::unique_ptr<TappedStates> taps_;           // for it, or for one in the engine's process; nullptr: there is none
  std::unique_ptr<OffloadDisk> disk_;            // nullptr: there is none; reads and writes the runner's slots
  std::unique_ptr<SlotCopier> copier_;           // the same
  std::string description_;
  std::deque<StepPlan> submitted_;  // and not launched
};

// What this engine's keys and values depend on. "cpu, avx2, 2 threads": how many does not change a bit.
Result<std::string> fingerprint_of(const EngineConfig& config, const PlannedModel& planned,
                                   const ops::Backend& backend) {
  std::string kernels = backend.description();
  if (kernels.starts_with("cpu, ")) kernels.resize(kernels.rfind(", "));
  return model_fingerprint(config, planned, kernels);
}

// The folder of this model, read and, unless another process does, written to.
Result<std::unique_ptr<OffloadDisk>> open_disk(const EngineConfig& config, const ModelRunner& runner,
                                               const ops::Backend& backend, PlannedModel& planned) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_ASSIGN_OR_RETURN(std::string fingerprint, fingerprint_of(config, planned, backend));
  const MemoryPlan& memory = planned.memory;
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<SegmentFolder> folder,
      SegmentFolder::open({.folder = config.kv_offload_dir,
                           .fingerprint = fingerprint,
                           .block_bytes = memory.block_bytes,
                           .block_size = memory.block_size,
                           .num_groups = static_cast<int32_t>(memory.windows.size()),
                           .most_bytes = static_cast<int64_t>(config.kv_offload_disk_size * (1 << 30)),
                           .most_age_seconds = config.kv_offload_max_age}));
  planned.memory.offload_writes = folder->writes();
  log_info("kv offload: {} blocks, {} in {}/{}, found in {:.2f} s, read by {}{}", folder->num_blocks(),
           format_bytes(folder->bytes()), config.kv_offload_dir, fingerprint,
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
           folder->reads_several_at_once() ? "io_uring" : "preadv()",
           folder->writes() ? "" : "; another process writes there, this one reads");
  const auto slot_parts = [&runner](OffloadSlot slot) {
    std::vector<iovec> parts;
    for (const std::span<uint8_t> part : runner.storage().slot_parts(slot)) parts.push_back({part.data(), part.size()});
    return parts;
  };
  return std::make_unique<OffloadDisk>(std::move(folder), slot_parts,
                                       config.kv_offload_disk_bandwidth * static_cast<double>(1 << 20));
}

// Says how far the weights are, when that takes long.
class LoadProgress {
 public:
  explicit LoadProgress(int64_t total_bytes) : total_bytes_(total_bytes) {}

  void operator()(int64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ < kEvery) return;
    told_ = now;
    const double seconds = std::chrono::duration<double>(now - begun_).count();
    log_info("weights: {} of {} in {:.0f} s, {}/s", format_bytes(bytes), format_bytes(total_bytes_), seconds,
             format_bytes(static_cast<int64_t>(static_cast<double>(bytes) / seconds)));
  }

 private:
  static constexpr std::chrono::seconds kEvery{3};

  int64_t total_bytes_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point told_ = begun_;
};

AdapterHost adapter_host(const nn::Loader& loader, const checkpoint::Checkpoint& checkpoint,
                         const PlannedModel& planned) {
  AdapterHost host{.layers = loader.adaptable_layers(),
                   .config = planned.config,
                   .rotates_neighbours = rotates_neighbours(checkpoint, planned.config),
                   .max_rank = planned.max_adapter_rank,
                   .max_virtual_tokens = planned.max_virtual_tokens,
                   .base = &checkpoint,
                   .dtype = planned.adapter_dtype,
                   .kv_heads = loader.kv_heads()};
  if (planned.stage.count > 1) host.own_layers = nn::layers_of(planned.stage, planned.config.num_layers);
  return host;
}

// Those of this process, or of this rank of several.
template <typename Adapters>
Result<std::shared_ptr<Adapters>> make_adapters(AdapterHost host, const PlannedModel& planned, ops::Backend& backend,
                                                ModelRunner& runner) {
  if (backend.computes_in_host_memory()) {
    // Larger ones are rare, and would be kept for nobody.
    constexpr size_t kMostKept = size_t{64} << 20;
    host.allocator = std::make_shared<KeepingAllocator>(backend.allocator(), kMostKept);
    host.file_allocator = std::make_shared<KeepingAllocator>(backend.allocator(), kMostKept);
  }
  auto adapters = std::make_shared<Adapters>(std::move(host), planned.adapters, backend);
  if (!adapters->has_memory()) {
    return resource_exhausted("no memory for {} adapters, {}. Set --max-cpu-loras or --max-lora-rank lower.",
                              planned.adapters.most_loaded, format_bytes(planned.adapters.most_bytes));
  }
  runner.use_adapters(adapters);
  return adapters;
}

// Of all ranks: that what they plan goes together, and the least of their blocks.
Status agree(comm::Communicator& communicator, PlannedModel& planned) {
  MemoryPlan& memory = planned.memory;
  // Of the same program, the same model and the same choices.
  int64_t groups = 0;  // which layer belongs to which
  for (const KvLayout::Place& place : planned.kv_layout.places)
    groups = (groups * 31 + place.group + 1) % 1'000'000'007;
  const std::array<int64_t, 12> same = {kPlanCodecVersion,
                                        planned.config.vocab_size,
                                        planned.config.hidden_size,
                                        planned.config.num_layers,
                                        memory.block_size,
                                        static_cast<int64_t>(memory.windows.size()),
                                        groups,
                                        memory.max_num_batched_tokens,
                                        memory.max_model_len,
                                        planned.logit_rows,
                                        planned.max_num_seqs,
                                        planned.shard.whole_experts ? 1 : 0};
  std::vector<int64_t> own(same.begin(), same.end());
  own.insert(own.end(), {memory.num_blocks, memory.num_swap_blocks});
  std::vector<int64_t> all(own.size() * static_cast<size_t>(communicator.size()));
  communicator.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  QUIRE_RETURN_IF_ERROR(communicator.status());
  for (size_t begin = 0; begin < all.size(); begin += own.size()) {
    if (!std::equal(same.begin(), same.end(), all.begin() + static_cast<ptrdiff_t>(begin))) {
      return invalid_argument("rank {} has another model, or other settings, than rank {}: run the same on all",
                              begin / own.size(), communicator.rank());
    }
    memory.num_blocks = std::min(memory.num_blocks, all[begin + same.size()]);
    memory.num_swap_blocks = std::min(memory.num_swap_blocks, all[begin + same.size() + 1]);
  }
  memory.kv_bytes = memory.num_blocks * memory.block_bytes;
  return {};
}

Result<DeviceRanks> reach_ranks(const EngineConfig& config, ops::Backend& backend, const PlannedModel& planned,
                                RankGroup& ranks) {
  DeviceRanks reached;
  if (backend.computes_in_host_memory()) return reached;
  const ModelConfig& model = planned.config;
  const int64_t widest_row = std::max(model.vocab_size, int64_t{model.num_heads} * model.head_dim);
  const auto reach = [&](comm::Communicator& host) {
    return make_device_communicator(
        backend, host,
        {.widest_row = widest_row, .link = link_ranks(backend, host), .one_order = config.batch_invariant});
  };
  if (ranks.tensor != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(reached.tensor, reach(*ranks.tensor));
    ranks.tensor = reached.tensor.get();
  }
  if (ranks.stage.count > 1) {
    QUIRE_ASSIGN_OR_RETURN(reached.states, reach(*ranks.all));
    ranks.states = reached.states.get();
  }
  return reached;
}

// For a head that is here, or of this rank for one in the engine's process; nullptr: for none.
Result<std::unique_ptr<TappedStates>> make_taps(const EngineConfig& config, const PlannedModel& planned,
                                                ops::Backend& backend, const RankGroup& ranks,
                                                const HiddenStore* store) {
  const ModelConfig& model = planned.config;
  const std::vector<int32_t>& layers = store == nullptr ? config.state_layers : store->layers();
  if (layers.empty() || !ranks.is_first_of_stage()) return std::unique_ptr<TappedStates>();
  if (std::ranges::adjacent_find(layers, std::greater_equal()) != layers.end() || layers.front() < 0 ||
      layers.back() > model.num_layers + 1) {
    return invalid_argument("state_layers: expected rising numbers from 0 to {}, found {}", model.num_layers + 1,
                            fmt::join(layers, ", "));
  }
  const int64_t most_rows = planned.memory.max_num_batched_tokens;
  auto taps = std::make_unique<TappedStates>(layers, model.hidden_size, backend, most_rows);
  if (taps->has_memory()) return taps;
  return resource_exhausted(
      "no memory for the states of {} rows that a head guesses from. Set --max-num-batched-tokens "
      "lower.",
      most_rows);
}

}  // namespace

Result<std::unique_ptr<Executor>> make_local_executor(const EngineConfig& config, std::unique_ptr<ops::Backend> backend,
                                                      RankGroup ranks) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, open_checkpoint(config));
  std::unique_ptr<ModelDrafts> drafts;
  if (drafts_with_weights(config.speculative_config)) {
    QUIRE_ASSIGN_OR_RETURN(drafts, ModelDrafts::create(config, *backend));
  }
  // Ranks and engines on one host share its memory; of several ranks with cards each has its own.
  int32_t sharing = (ranks.num_on_host > 0 ? ranks.num_on_host : config.num_ranks()) * config.data_parallel_size;
  if (!backend->computes_in_host_memory()) sharing = 1;
  // The host's pages of a pool are taken as they are used, those of a device with memory of its own are gone by now.
  const int64_t to_come = drafts && backend->computes_in_host_memory() ? drafts->pool_bytes() : 0;
  const int64_t free_bytes = backend->free_memory() / sharing - to_come;
  QUIRE_ASSIGN_OR_RETURN(PlannedModel planned, plan_model(config, *checkpoint, *backend, free_bytes));
  if (drafts) {
    QUIRE_RETURN_IF_ERROR(check_vocabulary(*drafts, planned.config));
    planned.memory.most_draft_tokens = drafts->most_tokens();
  }
  if (ranks.all != nullptr) QUIRE_RETURN_IF_ERROR(agree(*ranks.all, planned));
  QUIRE_ASSIGN_OR_RETURN(DeviceRanks device_ranks, reach_ranks(config, *backend, planned, ranks));
  if (!planned.memory.converted_weights.empty()) {
    log_info("--dtype {}: {}", name(config.dtype), planned.memory.converted_weights);
  }
  if (!planned.memory.widened_weights.empty())
    log_info("weights in a form for products: {}", planned.memory.widened_weights);
  nn::Loader loader(nn::Loader::Mode::kLoad, *checkpoint, *backend, planned.quantization, planned.weight_dtype,
                    planned.shard, planned.stage);
  loader.tell(LoadProgress(planned.memory.weight_bytes));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  planned.memory.quantization = loader.quantized().to_string();
  std::shared_ptr<HiddenStore> store;
  if (drafts) {
    QUIRE_ASSIGN_OR_RETURN(store, drafts->attach(*model));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<TappedStates> taps, make_taps(config, planned, *backend, ranks, store.get()));
  if (!backend->computes_in_host_memory()) {
    QUIRE_ASSIGN_OR_RETURN(model, measure_on_device(std::move(model), free_bytes, planned, *backend, ranks));
    if (ranks.all != nullptr) QUIRE_RETURN_IF_ERROR(agree(*ranks.all, planned));  // on what each has seen
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, ModelRunner::create(planned, std::move(model), *backend));
  runner->use_taps(taps.get());
  runner->use_ranks(ranks);
  std::shared_ptr<AdapterStore> adapters;
  std::shared_ptr<RankAdapters> rank_adapters;
  if (planned.adapters.most_loaded > 0) {
    AdapterHost host = adapter_host(loader, *checkpoint, planned);
    if (ranks.all != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(rank_adapters, make_adapters<RankAdapters>(std::move(host), planned, *backend, *runner));
    } else {
      QUIRE_ASSIGN_OR_RETURN(adapters, make_adapters<AdapterStore>(std::move(host), planned, *backend, *runner));
    }
  }
  runner->record_steps();
  if (planned.memory.num_swap_blocks > 0) planned.memory.seconds_per_swapped_block = runner->measure_swap();
  std::unique_ptr<OffloadDisk> disk;
  if (planned.memory.offload_to_disk) {
    QUIRE_ASSIGN_OR_RETURN(disk, open_disk(config, *runner, *backend, planned));
  }
  std::unique_ptr<SlotCopier> copier;
  if (config.kv_transfer) {
    QUIRE_ASSIGN_OR_RETURN(planned.memory.kv_fingerprint, fingerprint_of(config, planned, *backend));
    copier = std::make_unique<SlotCopier>(
        [&storage = runner->storage()](OffloadSlot slot) { return storage.slot_parts(slot); });
  }
  return std::unique_ptr<Executor>(new LocalExecutor(std::move(checkpoint), std::move(backend), std::move(planned),
                                                     std::move(runner), std::move(adapters), std::move(rank_adapters),
                                                     std::move(drafts), std::move(store), std::move(taps),
                                                     std::move(disk), std::move(copier), std::move(device_ranks)));
}

}  // namespace quire::runner
