#include "runner/network_executor.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "runner/adapter_ranks.h"
#include "runner/adapter_store.h"
#include "runner/memory_planner.h"
#include "runner/open_checkpoint.h"
#include "runner/plan_codec.h"
#include "runner/remote_masks.h"
#include "runner/worker_messages.h"

namespace quire::runner {
namespace {

using comm::Tag;

// Hears the other ranks' signs of life, and says so once when the group has ended.
class RankWatch {
 public:
  explicit RankWatch(comm::NetworkGroup& group)
      : group_(group), seen_(static_cast<size_t>(group.size())), thread_([this] { watch(); }) {}
  ~RankWatch() { stop(); }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    bell_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  // Until this is told, whoever waits for the ranks hears it.
  void on_failure(std::function<void()> failed) {
    const std::lock_guard lock(mutex_);
    failed_ = std::move(failed);
  }

 private:
  struct Seen {
    bool once = false;
    int silent_looks = 0;
  };
  static constexpr std::chrono::milliseconds kLook{50};
  // Looks and not time, as the watch over workers of one host: 5 s, for networks that stand still now and then.
  static constexpr int kMostSilentLooks = 100;

  void watch() {
    std::unique_lock lock(mutex_);
    bool told = false;
    while (!stopping_) {
      lock.unlock();
      group_.look_for_ends();
      if (group_.goes_on()) look();
      const Status status = group_.status();
      lock.lock();
      if (!status.ok() && !stopping_ && failed_ && !std::exchange(told, true)) {
        log_error("{}", status.message());
        failed_();
      }
      if (!stopping_) bell_.wait_for(lock, kLook);
    }
  }

  void look() {
    for (int rank = 1; rank < group_.size(); ++rank) {
      Seen& seen = seen_[static_cast<size_t>(rank)];
      ++seen.silent_looks;
      while (group_.has_message(rank, Tag::kBeat) && group_.read(rank, Tag::kBeat).ok()) {
        seen = {.once = true, .silent_looks = 0};
      }
      if (!seen.once || seen.silent_looks < kMostSilentLooks) continue;
      return group_.end(fmt::format("rank {} of {} has given no sign of life for 5 s", rank, group_.size()),
                        comm::NetworkGroup::How::kLost);
    }
  }

  comm::NetworkGroup& group_;
  std::vector<Seen> seen_;
  std::mutex mutex_;
  std::condition_variable bell_;
  bool stopping_ = false;  // guarded by mutex_, like the next
  std::function<void()> failed_;
  std::thread thread_;  // last: it uses all of the above
};

class NetworkLink final : public AdapterLink {
 public:
  explicit NetworkLink(comm::NetworkGroup& group) : group_(group) {}
  int num_ranks() const override { return group_.size(); }
  Status write(int rank, std::string_view order) override {
    return group_.write(rank, Tag::kAdapterOrder, std::string(order));
  }
  Result<std::string> read(int rank) override { return group_.read(rank, Tag::kAdapterReport); }
  void end(std::string_view reason) override { group_.end(reason); }

 private:
  comm::NetworkGroup& group_;
};

class NetworkExecutor final : public Executor {
 public:
  NetworkExecutor(EngineConfig config, comm::NetworkGroup& group, const NetworkSelf& self, MakeBackend make_backend)
      : config_(std::move(config)),
        group_(group),
        sampling_rank_(config_.num_ranks() - config_.tensor_parallel_size),
        watch_(group),
        own_rank_([this, self, make_backend = std::move(make_backend)] {
          (void)run_network_worker(group_, config_, self, make_backend);
        }) {}

  ~NetworkExecutor() override {
    watch_.stop();
    group_.end("the engine stops");
    if (adapter_ranks_ != nullptr) adapter_ranks_->close();
    own_rank_.join();
    if (answering_.joinable()) answering_.join();
  }

  const ModelConfig& model() const override { return planned_.config; }
  const MemoryPlan& memory() const override { return planned_.memory; }
  const std::string& description() const override { return description_; }
  bool overlaps() const override { return true; }
  std::shared_ptr<AdapterStore> adapters() override { return adapters_; }

  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    if (answering_.joinable()) return;
    answering_ = std::thread([this, constraints = std::move(constraints)] { answer_masks(constraints); });
  }

  void submit(StepPlan plan) override {
    const std::string message = plans_.write(plan);
    for (int rank = 0; rank < group_.size(); ++rank) {
      // Where it fails collect() says why.
      if (!group_.write(rank, Tag::kOrder, message).ok()) return;
    }
  }

  Result<ExecutedStep> collect() override {
    QUIRE_ASSIGN_OR_RETURN(const std::string message, group_.read(sampling_rank_, Tag::kResult));
    QUIRE_ASSIGN_OR_RETURN(Result<ExecutedStep> step, decode_step(message));
    return step;
  }

  Status status() const override { return group_.status(); }
  void on_failure(std::function<void()> notify) override { watch_.on_failure(std::move(notify)); }

  // All ranks know each other to be the same, and are ready.
  Status start(ops::Backend& planner) {
    std::vector<WorkerHello> hellos;
    for (int rank = 0; rank < group_.size(); ++rank) {
      QUIRE_ASSIGN_OR_RETURN(const std::string message, group_.read(rank, Tag::kResult));
      auto hello = decode_hello(message);
      if (!hello.ok()) return refuse(Status(hello.status()).with_prefix(fmt::format("rank {}: ", rank)));
      hellos.push_back(*std::move(hello));
    }
    const Status same = check_same(hellos);
    if (!same.ok()) return refuse(same);
    QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const checkpoint::Checkpoint> checkpoint, open_checkpoint(config_));
    // What cannot be is told before anything is loaded.
    QUIRE_ASSIGN_OR_RETURN(
        planned_, plan_model(config_, *checkpoint, planner, planner.free_memory() / num_on_host_of(hellos, 0)));
    for (int rank = 0; rank < group_.size(); ++rank) {
      QUIRE_RETURN_IF_ERROR(group_.write(rank, Tag::kOrder, encode_order(order_of_rank(config_, hellos, rank))));
    }
    QUIRE_RETURN_IF_ERROR(hear_reports());
    return begin_adapters();
  }

 private:
  Status refuse(Status why) {
    group_.end(why.message());
    return why;
  }

  Status hear_reports() {
    for (int rank = 0; rank < group_.size(); ++rank) {
      QUIRE_ASSIGN_OR_RETURN(const std::string message, group_.read(rank, Tag::kResult));
      const auto report = decode_report(message);
      if (!report.ok()) return refuse(report.status());
      if (!report->status.ok()) return refuse(report->status);
      if (rank > 0) continue;
      MemoryPlan& memory = planned_.memory;
      memory.num_blocks = report->num_blocks;
      memory.kv_bytes = memory.num_blocks * memory.block_bytes;
      memory.num_swap_blocks = report->num_swap_blocks;
      memory.quantization = report->quantization;
      memory.seconds_per_swapped_block = report->seconds_per_swapped_block;
      description_ = fmt::format("{} ranks over {}: {}", group_.size(),
                                 config_.distributed_executor_backend == DistributedBackend::kMpi ? "MPI" : "TCP",
                                 report->description);
    }
    return {};
  }

  Status begin_adapters() {
    const AdapterLimits& limits = planned_.adapters;
    if (limits.most_loaded == 0) return {};
    adapter_ranks_ = std::make_shared<AdapterRanks>(limits.most_bytes, /*restarts=*/false);
    QUIRE_RETURN_IF_ERROR(adapter_ranks_->connect(std::make_shared<NetworkLink>(group_)).status());
    adapters_ = std::make_shared<AdapterStore>(
        [ranks = adapter_ranks_](const checkpoint::AdapterFile& file, const std::string& path, int32_t number) {
          return ranks->load(file, path, number);
        },
        limits);
    return {};
  }

  // Of the rank that samples.
  void answer_masks(const std::shared_ptr<const ConstraintSource>& constraints) {
    MaskServer server(constraints);
    while (true) {
      const auto question = group_.read(sampling_rank_, Tag::kQuestion);
      if (!question.ok()) return;
      auto answer = server.answer(*question);
      if (!answer.ok()) return group_.end(fmt::format("a rank asks what cannot be: {}", answer.status().message()));
      if (!group_.write(sampling_rank_, Tag::kAnswer, *std::move(answer)).ok()) return;
    }
  }

  const EngineConfig config_;
  comm::NetworkGroup& group_;
  const int sampling_rank_;  // runner/rank_group.h
  PlannedModel planned_;     // of rank 0; its pool is every rank's
  std::string description_;
  PlanWriter plans_;
  std::shared_ptr<AdapterRanks> adapter_ranks_;  // nullptr: there are no adapters
  std::shared_ptr<AdapterStore> adapters_;       // the same
  RankWatch watch_;
  std::thread answering_;
  std::thread own_rank_;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_network_executor(const EngineConfig& config, comm::NetworkGroup& group,
                                                        const NetworkSelf& self, MakeBackend make_backend,
                                                        ops::Backend& planner) {
  QUIRE_RETURN_IF_ERROR(validate(config, DeviceChoice::Kind::kCpu));
  QUIRE_CHECK(group.rank() == 0);
  if (group.size() != config.num_ranks()) {
    return invalid_argument(
        "MPI has started {} processes, but tensor_parallel_size {} and pipeline_parallel_size {} want {}: mpirun -np "
        "{}, or other sizes",
        group.size(), config.tensor_parallel_size, config.pipeline_parallel_size, config.num_ranks(),
        config.num_ranks());
  }
  // An executor is made once of a group: whoever had it has ended it.
  QUIRE_RETURN_IF_ERROR(group.status());
  auto executor = std::make_unique<NetworkExecutor>(config, group, self, std::move(make_backend));
  QUIRE_RETURN_IF_ERROR(executor->start(planner));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace quire::runner
