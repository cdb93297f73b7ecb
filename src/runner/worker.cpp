#include "runner/worker.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread_pool.h"
#include "runner/local_executor.h"
#include "runner/plan_codec.h"
#include "runner/remote_masks.h"
#include "runner/worker_messages.h"

namespace quire::runner {
namespace {

// Says that the process runs, also while a step takes long.
class Heart {
 public:
  explicit Heart(std::atomic<uint64_t>& beats) : thread_([this, &beats] { beat(beats); }) {}
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

  void beat(std::atomic<uint64_t>& beats) {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      beats.fetch_add(1);
      bell_.wait_for(lock, kBeat);
    }
  }

  std::mutex mutex_;
  std::condition_variable bell_;
  bool stopping_ = false;
  std::thread thread_;
};

class Worker {
 public:
  Worker(const WorkerSegment& segment, int rank) : segment_(segment), rank_(rank) {}

  Status start(const MakeBackend& make_backend) {
    QUIRE_ASSIGN_OR_RETURN(const std::string order, read_order());
    QUIRE_ASSIGN_OR_RETURN(const EngineConfig config, decode_order(order));
    const WorkerSegment::Shape shape{config.pipeline_parallel_size, config.tensor_parallel_size};
    if (config.rank != rank_ || shape != segment_.shape()) {
      return invalid_argument("rank {} of {} is told to be rank {} of {}", rank_, segment_.num_ranks(), config.rank,
                              config.num_ranks());
    }
    QUIRE_ASSIGN_OR_RETURN(const std::vector<int> cores, parse_core_list(config.cpu_affinity));
    keep_to_cores(cores);
    const bool has_a_core = usable_cores().size() >= static_cast<size_t>(std::max(config.threads, 1));
    const std::chrono::microseconds spin(has_a_core && !cores.empty() ? 200 : 0);
    QUIRE_RETURN_IF_ERROR(join(config, spin));
    QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(config));
    QUIRE_ASSIGN_OR_RETURN(executor_, make_local_executor(config, std::move(backend), ranks_));
    all_->barrier();  // nobody is ready before all are
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
    }
    return segment_.results(rank_).write(encode(report), goes_on());
  }

  Status work() {
    executor_->bind_thread();
    if (ranks_.samples()) {
      executor_->use_constraints(make_remote_constraints([this](std::string_view question) { return ask(question); }));
    }
    PlanReader plans;
    comm::MessageRing results = segment_.results(rank_);
    while (true) {
      const Result<std::string> message = read_order();
      if (!segment_.goes_on()) return {};
      QUIRE_RETURN_IF_ERROR(message.status());
      QUIRE_ASSIGN_OR_RETURN(StepPlan plan, plans.read(*message));
      executor_->submit(std::move(plan));
      const Result<ExecutedStep> step = executor_->collect();
      if (!segment_.goes_on()) return {};
      QUIRE_RETURN_IF_ERROR(ranks_.status());
      if (ranks_.samples()) {
        QUIRE_RETURN_IF_ERROR(results.write(encode(step), goes_on()));
      } else {
        QUIRE_RETURN_IF_ERROR(step.status());
      }
    }
  }

 private:
  std::function<bool()> goes_on() const {
    return [this] { return segment_.goes_on(); };
  }
  Status join(const EngineConfig& config, std::chrono::microseconds spin) {
    const int stage = rank_ / config.tensor_parallel_size;
    QUIRE_ASSIGN_OR_RETURN(
        all_, comm::join_shared_group(segment_.all(), segment_.all_shape(), {.rank = rank_, .spin = spin}));
    ranks_ = {.all = all_.get(), .stage = {stage, config.pipeline_parallel_size}};
    if (config.tensor_parallel_size == 1) return {};
    QUIRE_ASSIGN_OR_RETURN(stage_,
                           comm::join_shared_group(segment_.stage(stage), segment_.stage_shape(),
                                                   {.rank = rank_ % config.tensor_parallel_size, .spin = spin}));
    ranks_.tensor = stage_.get();
    return {};
  }
  Result<std::string> read_order() const { return segment_.orders(rank_).read(goes_on()); }

  // Threads that sample ask in turn.
  Result<std::string> ask(std::string_view question) {
    const std::lock_guard lock(asking_);
    QUIRE_RETURN_IF_ERROR(segment_.questions().write(question, goes_on()));
    return segment_.answers().read(goes_on());
  }

  const WorkerSegment segment_;
  const int rank_;
  std::mutex asking_;
  std::unique_ptr<comm::Communicator> all_;    // outlive the executor
  std::unique_ptr<comm::Communicator> stage_;  // nullptr: of one rank
  RankGroup ranks_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

Status run_worker(const WorkerSegment& segment, int rank, const MakeBackend& make_backend) {
  const Heart heart(segment.heartbeat(rank));
  Worker worker(segment, rank);
  const Status started = worker.start(make_backend);
  if (!segment.goes_on()) return {};
  QUIRE_RETURN_IF_ERROR(worker.report(started));
  QUIRE_RETURN_IF_ERROR(started);
  Status ended = worker.work();
  if (!ended.ok()) segment.end(ended.message());
  return ended;
}

}  // namespace quire::runner
