#include "runner/worker.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "runner/local_executor.h"
#include "runner/plan_codec.h"
#include "runner/rank_adapters.h"
#include "runner/remote_masks.h"
#include "runner/worker_messages.h"

namespace quire::runner {
namespace {

// Says that the process runs, also while a step takes long.
class Heart {
 public:
  explicit Heart(WorkerChannel& channel) : thread_([this, &channel] { beat(channel); }) {}
  ~Heart() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    bell_.notify_all();
    thread_.join();
  }

 private:
  static constexpr std::chrono::milliseconds kBeat{50};

  void beat(WorkerChannel& channel) {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      channel.beat();
      lock.lock();
      if (!stopping_) bell_.wait_for(lock, kBeat);
    }
  }

  std::mutex mutex_;
  std::condition_variable bell_;
  bool stopping_ = false;
  std::thread thread_;
};

class SegmentChannel final : public WorkerChannel {
 public:
  SegmentChannel(const WorkerSegment& segment, int rank) : segment_(segment), rank_(rank) {}

  int rank() const override { return rank_; }
  WorkerSegment::Shape shape() const override { return segment_.shape(); }
  Result<std::string> read_order() override { return segment_.orders(rank_).read(waits()); }
  Status write_result(std::string_view message) override { return segment_.results(rank_).write(message, waits()); }
  Result<std::string> ask(std::string_view question) override {
    QUIRE_RETURN_IF_ERROR(segment_.questions().write(question, waits()));
    return segment_.answers().read(waits());
  }
  Result<std::string> read_adapter_order() override { return segment_.adapter_orders(rank_).read(waits()); }
  Status write_adapter_report(std::string_view message) override {
    return segment_.adapter_reports(rank_).write(message, waits());
  }
  bool goes_on() const override { return segment_.goes_on(); }
  void end(std::string_view reason) override { segment_.end(reason); }
  void beat() override { segment_.heartbeat(rank_).fetch_add(1); }

  Result<RankGroup> join(const EngineConfig& config, std::chrono::microseconds spin) override {
    const int stage = rank_ / config.tensor_parallel_size;
    QUIRE_ASSIGN_OR_RETURN(
        all_, comm::join_shared_group(segment_.all(), segment_.all_shape(), {.rank = rank_, .spin = spin}));
    RankGroup ranks{.all = all_.get(), .stage = {stage, config.pipeline_parallel_size}};
    if (config.tensor_parallel_size == 1) return ranks;
    QUIRE_ASSIGN_OR_RETURN(stage_,
                           comm::join_shared_group(segment_.stage(stage), segment_.stage_shape(),
                                                   {.rank = rank_ % config.tensor_parallel_size, .spin = spin}));
    ranks.tensor = stage_.get();
    return ranks;
  }

 private:
  std::function<bool()> waits() const {
    return [this] { return segment_.goes_on(); };
  }

  const WorkerSegment segment_;
  const int rank_;
  std::unique_ptr<comm::Communicator> all_;
  std::unique_ptr<comm::Communicator> stage_;  // nullptr: of one rank
};

// Reads adapters beside the steps, as the rank is told, until the group ends.
class AdapterReader {
 public:
  AdapterReader(WorkerChannel& channel, std::shared_ptr<RankAdapters> adapters)
      : channel_(channel), adapters_(std::move(adapters)), thread_([this] {
          const Status ended = read();
          if (channel_.goes_on()) channel_.end(ended.message());
        }) {}
  ~AdapterReader() { thread_.join(); }

 private:
  Status read() {
    while (true) {
      QUIRE_ASSIGN_OR_RETURN(const std::string message, channel_.read_adapter_order());
      QUIRE_ASSIGN_OR_RETURN(const AdapterOrder order, decode_adapter_order(message));
      const AdapterReport report = adapters_->carry_out(order);
      if (order.kind == AdapterOrder::Kind::kDrop) continue;
      QUIRE_RETURN_IF_ERROR(channel_.write_adapter_report(encode(report)));
    }
  }

  WorkerChannel& channel_;
  const std::shared_ptr<RankAdapters> adapters_;
  std::thread thread_;
};

// Memory of the nodes that these cores are of. Where that is all of the machine there is nothing to bind.
Status stay_near(const std::vector<int>& cores, bool strictly) {
  const std::vector<NumaNode> nodes = numa_nodes();
  const std::vector<int> own = nodes_of_cores(cores.empty() ? usable_cores() : cores, nodes);
  if (strictly && own.empty()) return unavailable("numa_bind: the system names no NUMA node of these cores");
  if (!strictly && (own.empty() || own.size() == nodes.size())) return {};
  const Status bound = bind_memory(own, strictly ? NumaBinding::kStrict : NumaBinding::kPreferred);
  if (strictly || bound.ok()) return bound;
  log_warning("{}; it lies where the system puts it", bound.message());  // a sandbox may forbid it
  return {};
}

class Worker {
 public:
  explicit Worker(WorkerChannel& channel) : channel_(channel) {}

  Status start(const MakeBackend& make_backend) {
    QUIRE_ASSIGN_OR_RETURN(const std::string order, channel_.read_order());
    QUIRE_ASSIGN_OR_RETURN(const EngineConfig config, decode_order(order));
    const WorkerSegment::Shape shape{config.pipeline_parallel_size, config.tensor_parallel_size};
    const WorkerSegment::Shape expected = channel_.shape();
    if (config.rank != channel_.rank() || shape != expected) {
      return invalid_argument("rank {} of {} is told to be rank {} of {}", channel_.rank(), expected.num_ranks(),
                              config.rank, config.num_ranks());
    }
    QUIRE_ASSIGN_OR_RETURN(const std::vector<int> cores, parse_core_list(config.cpu_affinity));
    keep_to_cores(cores);
    QUIRE_RETURN_IF_ERROR(stay_near(cores, config.numa_bind));
    const bool has_a_core = usable_cores().size() >= static_cast<size_t>(std::max(config.threads, 1));
    const std::chrono::microseconds spin(has_a_core && !cores.empty() ? 200 : 0);
    QUIRE_ASSIGN_OR_RETURN(ranks_, channel_.join(config, spin));
    QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(config));
    QUIRE_ASSIGN_OR_RETURN(executor_, make_local_executor(config, std::move(backend), ranks_));
    ranks_.all->barrier();  // nobody is ready before all are
    return ranks_.status();
  }

  Status report(const Status& status) const {
    WorkerReport report{.status = status};
    if (status.ok()) {
      const MemoryPlan& memory = executor_->memory();
      report.description = executor_->description();
      report.quantization = memory.quantization;
      report.num_blocks = memory.num_blocks;
      report.num_swap_blocks = memory.num_swap_blocks;
      report.seconds_per_swapped_block = memory.seconds_per_swapped_block;
      report.max_num_batched_tokens = memory.max_num_batched_tokens;
      report.weight_bytes = memory.weight_bytes;
      report.workspace_bytes = memory.workspace_bytes;
    }
    return channel_.write_result(encode(report));
  }

  Status work() {
    executor_->bind_thread();
    if (ranks_.samples()) {
      executor_->use_constraints(make_remote_constraints([this](std::string_view question) { return ask(question); }));
    }
    const std::shared_ptr<RankAdapters> adapters = executor_->rank_adapters();
    if (adapters != nullptr) reader_ = std::make_unique<AdapterReader>(channel_, adapters);
    PlanReader plans;
    while (true) {
      const Result<std::string> message = channel_.read_order();
      if (!channel_.goes_on()) return {};
      QUIRE_RETURN_IF_ERROR(message.status());
      QUIRE_ASSIGN_OR_RETURN(StepPlan plan, plans.read(*message));
      if (adapters != nullptr) adapters->begin_step();
      executor_->submit(std::move(plan));
      const Result<ExecutedStep> step = executor_->collect();
      if (adapters != nullptr) adapters->end_step();
      if (!channel_.goes_on()) return {};
      QUIRE_RETURN_IF_ERROR(ranks_.status());
      if (ranks_.samples()) {
        QUIRE_RETURN_IF_ERROR(channel_.write_result(encode(step)));
      } else {
        QUIRE_RETURN_IF_ERROR(step.status());
      }
    }
  }

 private:
  // Threads that sample ask in turn.
  Result<std::string> ask(std::string_view question) {
    const std::lock_guard lock(asking_);
    return channel_.ask(question);
  }

  WorkerChannel& channel_;
  std::mutex asking_;
  RankGroup ranks_;  // the channel's
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AdapterReader> reader_;  // nullptr: there are no adapters; goes when the group has ended
};

}  // namespace

Status run_worker(WorkerChannel& channel, const MakeBackend& make_backend) {
  const Heart heart(channel);
  Worker worker(channel);
  const Status started = worker.start(make_backend);
  if (!channel.goes_on()) return {};
  QUIRE_RETURN_IF_ERROR(worker.report(started));
  QUIRE_RETURN_IF_ERROR(started);
  Status ended = worker.work();
  if (!ended.ok()) channel.end(ended.message());
  return ended;
}

Status run_worker(const WorkerSegment& segment, int rank, const MakeBackend& make_backend) {
  SegmentChannel channel(segment, rank);
  return run_worker(channel, make_backend);
}

}  // namespace quire::runner
