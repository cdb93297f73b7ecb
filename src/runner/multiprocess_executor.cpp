#include "runner/multiprocess_executor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "runner/adapter_ranks.h"
#include "runner/adapter_store.h"
#include "runner/memory_planner.h"
#include "runner/open_checkpoint.h"
#include "runner/plan_codec.h"
#include "runner/remote_masks.h"
#include "runner/worker_messages.h"
#include "runner/worker_segment.h"

namespace quire::runner {
namespace {

using Clock = std::chrono::steady_clock;

// The cores of one rank: its part of those that there are. Fewer cores than ranks: all share them.
Status divide_cores(const EngineConfig& config, EngineConfig& of_rank) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, parse_core_list(config.cpu_affinity));
  if (cores.empty()) cores = usable_cores();
  cores = cores_by_node(cores, numa_nodes());
  const std::string own = part_of_cores(cores, of_rank.rank, config.num_ranks());
  if (own.empty()) {
    of_rank.threads = std::max(config.threads, 1);
  } else {
    of_rank.cpu_affinity = own;
  }
  return {};
}

// Outlives the workers, whose memory it keeps.
class SegmentLink final : public AdapterLink {
 public:
  SegmentLink(std::shared_ptr<comm::SharedSegment> memory, const WorkerSegment& segment)
      : memory_(std::move(memory)), segment_(segment) {}
  int num_ranks() const override { return segment_.num_ranks(); }
  Status write(int rank, std::string_view order) override {
    return segment_.adapter_orders(rank).write(order, [this] { return segment_.goes_on(); });
  }
  Result<std::string> read(int rank) override {
    return segment_.adapter_reports(rank).read([this] { return segment_.goes_on(); });
  }
  void end(std::string_view reason) override { segment_.end(reason); }

 private:
  const std::shared_ptr<comm::SharedSegment> memory_;
  const WorkerSegment segment_;
};

// One life of the workers: from their start until the first of them fails.
class WorkerGroup {
 public:
  WorkerGroup(comm::SharedSegment memory, const WorkerSegment::Shape& shape)
      : memory_(std::make_shared<comm::SharedSegment>(std::move(memory))),
        segment_(memory_->data(), shape),
        seen_(static_cast<size_t>(shape.num_ranks())) {}

  ~WorkerGroup() {
    end("the engine stops");
    if (answering_.joinable()) answering_.join();
    const auto patience = Clock::now() + kFarewell;
    while (Clock::now() < patience &&
           std::ranges::any_of(processes_, [](auto& process) { return !process->ended().has_value(); })) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    processes_.clear();
  }

  const WorkerSegment& segment() const { return segment_; }
  std::shared_ptr<AdapterLink> adapter_link() const { return std::make_shared<SegmentLink>(memory_, segment_); }
  void end(std::string_view reason) { segment_.end(reason); }
  Status status() const { return segment_.status(); }

  Status launch(WorkerLauncher& launcher) {
    for (int rank = 0; rank < segment_.num_ranks(); ++rank) {
      QUIRE_ASSIGN_OR_RETURN(auto process, launcher.launch(*memory_, segment_.shape(), rank));
      processes_.push_back(std::move(process));
    }
    return {};
  }

  // Looks at all of them; ends the group where one does not live. Called every kLook.
  void look() {
    if (!status().ok()) return;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Seen& seen = seen_[rank];
      const uint64_t beats = segment_.heartbeat(static_cast<int>(rank)).load();
      seen.silent_looks = beats == seen.beats ? seen.silent_looks + 1 : 0;
      seen.beats = beats;
      std::string why;
      if (const auto ended = processes_[rank]->ended()) {
        why = *ended;
      } else if (is_hung(*processes_[rank], seen)) {
        why = fmt::format("has given no sign of life for {:.1f} s", seen.silent_looks * kLook.count() / 1000.0);
      } else {
        continue;
      }
      const Status said = status();  // by itself, before it went
      end(said.ok()
              ? fmt::format("worker {} of {} (process {}) {}", rank, processes_.size(), processes_[rank]->id(), why)
              : said.message());
      return;
    }
  }

  // Asked by the rank that samples.
  void answer_masks(std::shared_ptr<const ConstraintSource> constraints) {
    if (answering_.joinable()) return;
    answering_ = std::thread([this, constraints = std::move(constraints)] {
      MaskServer server(constraints);
      const auto goes_on = [this] { return segment_.goes_on(); };
      comm::MessageRing questions = segment_.questions();
      comm::MessageRing answers = segment_.answers();
      while (true) {
        const auto question = questions.read(goes_on);
        if (!question.ok()) return;
        const auto answer = server.answer(*question);
        if (!answer.ok()) return end(fmt::format("a worker asks what cannot be: {}", answer.status().message()));
        if (!answers.write(*answer, goes_on).ok()) return;
      }
    });
  }

  PlanWriter plans;

  static constexpr std::chrono::milliseconds kLook{50};

 private:
  struct Seen {
    uint64_t beats = 0;
    int silent_looks = 0;
  };
  // Looks and not time: where nobody gets on, the watching thread included, nobody is to blame.
  static constexpr int kMostSilentLooks = 12;
  // Of one that has not begun, whose program may come from a slow disk, and of one that could run if it had a core.
  static constexpr int kMostLooksToBegin = 1200;
  static constexpr int kMostStarvedLooks = 200;

  static bool is_hung(const WorkerProcess& process, const Seen& seen) {
    if (seen.silent_looks < kMostSilentLooks) return false;
    if (seen.beats == 0) return seen.silent_looks >= kMostLooksToBegin;
    return seen.silent_looks >= kMostStarvedLooks || !process.could_run();
  }
  static constexpr std::chrono::milliseconds kFarewell{500};

  std::shared_ptr<comm::SharedSegment> memory_;
  WorkerSegment segment_;
  std::vector<std::unique_ptr<WorkerProcess>> processes_;
  std::vector<Seen> seen_;
  std::thread answering_;
};

class MultiprocessExecutor final : public Executor {
 public:
  MultiprocessExecutor(EngineConfig config, std::unique_ptr<WorkerLauncher> launcher, PlannedModel planned)
      : config_(std::move(config)),
        launcher_(std::move(launcher)),
        planned_(std::move(planned)),
        sampling_rank_(config_.num_ranks() - config_.tensor_parallel_size),
        watcher_([this] { watch(); }) {
    const AdapterLimits& limits = planned_.adapters;
    if (limits.most_loaded == 0) return;
    adapter_ranks_ = std::make_shared<AdapterRanks>(limits.most_bytes, /*restarts=*/true);
    adapters_ = std::make_shared<AdapterStore>(
        [ranks = adapter_ranks_](const checkpoint::AdapterFile& file, const std::string& path, int32_t number) {
          return ranks->load(file, path, number);
        },
        limits);
  }

  ~MultiprocessExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    bell_.notify_all();
    watcher_.join();  // and with it the workers, which are that thread's
    if (adapter_ranks_ != nullptr) adapter_ranks_->close();
  }

  const ModelConfig& model() const override { return planned_.config; }
  const MemoryPlan& memory() const override { return planned_.memory; }
  const std::string& description() const override { return description_; }
  bool overlaps() const override { return true; }
  std::shared_ptr<AdapterStore> adapters() override { return adapters_; }
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    constraints_ = std::move(constraints);
    if (group_ != nullptr) group_->answer_masks(constraints_);
  }

  void submit(StepPlan plan) override {
    const std::string message = group_->plans.write(plan);
    const auto goes_on = [this] { return group_->segment().goes_on(); };
    for (int rank = 0; rank < config_.num_ranks(); ++rank) {
      // Where it fails collect() says why.
      if (!group_->segment().orders(rank).write(message, goes_on).ok()) return;
    }
  }

  Result<ExecutedStep> collect() override {
    const auto goes_on = [this] { return group_->segment().goes_on(); };
    const auto message = group_->segment().results(sampling_rank_).read(goes_on);
    if (message.status().code() == StatusCode::kUnavailable) return group_->status();
    QUIRE_RETURN_IF_ERROR(message.status());
    QUIRE_ASSIGN_OR_RETURN(Result<ExecutedStep> step, decode_step(*message));
    return step;
  }

  Status status() const override {
    const std::lock_guard lock(mutex_);
    return group_ == nullptr ? unavailable("the workers are not started") : group_->status();
  }
  void on_failure(std::function<void()> notify) override {
    const std::lock_guard lock(mutex_);
    notify_ = std::move(notify);
  }

  bool can_recover() const override { return true; }
  Status recover() override {
    Status why = status();
    if (why.ok()) why = unavailable("a worker has sent what cannot be read");
    while (true) {
      const auto now = Clock::now();
      while (!restarts_.empty() &&
             std::chrono::duration<double>(now - restarts_.front()).count() > config_.restart_window)
        restarts_.pop_front();
      if (static_cast<int32_t>(restarts_.size()) >= config_.max_restarts) {
        if (adapter_ranks_ != nullptr) adapter_ranks_->close();
        return unavailable(
            "{}; they have been started again {} times within {:.0f} s, which is all that is allowed "
            "(--max-restarts)",
            why.message(), restarts_.size(), config_.restart_window);
      }
      restarts_.push_back(now);
      log_warning("{}: all workers are started again", why.message());
      why = start();
      if (why.ok()) break;
    }
    log_info("the workers are ready again after {:.2f} s",
             std::chrono::duration<double>(Clock::now() - restarts_.back()).count());
    return {};
  }

  // Ends what there is, and begins a new life of all workers.
  Status start() {
    std::packaged_task<Status()> begin([this] { return begin_group(); });
    std::future<Status> begun = begin.get_future();
    {
      const std::lock_guard lock(mutex_);
      task_ = &begin;
    }
    bell_.notify_all();
    QUIRE_RETURN_IF_ERROR(begun.get());
    QUIRE_RETURN_IF_ERROR(order_all());
    QUIRE_RETURN_IF_ERROR(hear_all());
    if (constraints_ != nullptr) group_->answer_masks(constraints_);
    if (adapter_ranks_ == nullptr) return {};
    QUIRE_ASSIGN_OR_RETURN(const std::vector<int32_t> lost, adapter_ranks_->connect(group_->adapter_link()));
    for (const int32_t number : lost) adapters_->lose(number);
    return {};
  }

 private:
  // On the watching thread: a worker does not outlive the thread that started it.
  Status begin_group() {
    std::unique_ptr<WorkerGroup> old;
    {
      const std::lock_guard lock(mutex_);
      old = std::move(group_);
    }
    old.reset();
    const WorkerSegment::Shape shape{config_.pipeline_parallel_size, config_.tensor_parallel_size};
    QUIRE_ASSIGN_OR_RETURN(comm::SharedSegment memory, comm::SharedSegment::create(WorkerSegment::bytes(shape)));
    auto group = std::make_unique<WorkerGroup>(std::move(memory), shape);
    const Status launched = group->launch(*launcher_);
    const std::lock_guard lock(mutex_);
    told_ = false;
    group_ = std::move(group);
    return launched;
  }

  Status order_all() {
    const auto goes_on = [this] { return group_->segment().goes_on(); };
    for (int rank = 0; rank < config_.num_ranks(); ++rank) {
      EngineConfig own = config_;
      own.rank = rank;
      if (own.device.kind == DeviceChoice::Kind::kCuda) own.device.card += rank;
      // The scheduler has made its plans for so many blocks.
      if (description_.empty()) {
        QUIRE_RETURN_IF_ERROR(divide_cores(config_, own));
      } else {
        own.num_gpu_blocks_override = planned_.memory.num_blocks;
        QUIRE_RETURN_IF_ERROR(divide_cores(config_, own));
      }
      QUIRE_RETURN_IF_ERROR(group_->segment().orders(rank).write(encode_order(own), goes_on));
    }
    return {};
  }

  // What a worker said before it went: it knows better why than who sees it gone.
  Status last_words() {
    const auto no_longer = [] { return false; };
    for (int rank = 0; rank < config_.num_ranks(); ++rank) {
      const auto message = group_->segment().results(rank).read(no_longer);
      if (!message.ok()) continue;
      const auto report = decode_report(*message);
      if (report.ok() && !report->status.ok() && report->status.code() != StatusCode::kUnavailable)
        return report->status;
    }
    return group_->status();
  }

  // All are ready, or the first error is told.
  Status hear_all() {
    const auto goes_on = [this] { return group_->segment().goes_on(); };
    for (int rank = 0; rank < config_.num_ranks(); ++rank) {
      const auto message = group_->segment().results(rank).read(goes_on);
      if (message.status().code() == StatusCode::kUnavailable) return last_words();
      QUIRE_RETURN_IF_ERROR(message.status());
      QUIRE_ASSIGN_OR_RETURN(WorkerReport report, decode_report(*message));
      if (!report.status.ok()) {
        group_->end(report.status.message());
        return report.status;
      }
      if (rank > 0) continue;
      MemoryPlan& memory = planned_.memory;
      if (!description_.empty() && report.num_blocks != memory.num_blocks) {
        return internal_error("the workers have {} blocks now, and had {}", report.num_blocks, memory.num_blocks);
      }
      memory.num_blocks = report.num_blocks;
      memory.kv_bytes = memory.num_blocks * memory.block_bytes;
      memory.num_swap_blocks = report.num_swap_blocks;
      memory.quantization = report.quantization;
      memory.seconds_per_swapped_block = report.seconds_per_swapped_block;
      memory.max_num_batched_tokens = report.max_num_batched_tokens;
      memory.weight_bytes = report.weight_bytes;
      memory.workspace_bytes = report.workspace_bytes;
      description_ = config_.num_ranks() == 1 ? fmt::format("a worker: {}", report.description)
                                              : fmt::format("{} workers: {}", config_.num_ranks(), report.description);
    }
    return {};
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (true) {
      bell_.wait_for(lock, WorkerGroup::kLook, [this] { return stopping_ || task_ != nullptr; });
      if (stopping_) break;
      if (auto* task = std::exchange(task_, nullptr)) {
        lock.unlock();
        (*task)();
        lock.lock();
        continue;
      }
      if (group_ == nullptr) continue;
      group_->look();
      if (group_->status().ok() || std::exchange(told_, true)) continue;
      log_error("{}", group_->status().message());
      if (notify_) notify_();
    }
    std::unique_ptr<WorkerGroup> last = std::move(group_);
    lock.unlock();
    last.reset();
  }

  const EngineConfig config_;
  const std::unique_ptr<WorkerLauncher> launcher_;
  PlannedModel planned_;     // of rank 0; its pool is every worker's
  const int sampling_rank_;  // runner/rank_group.h
  std::string description_;  // empty until they have been ready once
  std::shared_ptr<const ConstraintSource> constraints_;
  std::shared_ptr<AdapterRanks> adapter_ranks_;  // nullptr: there are no adapters
  std::shared_ptr<AdapterStore> adapters_;       // the same
  std::deque<Clock::time_point> restarts_;       // within the window

  mutable std::mutex mutex_;
  std::condition_variable bell_;
  bool stopping_ = false;                         // guarded by mutex_, like all below
  std::packaged_task<Status()>* task_ = nullptr;  // for the watching thread
  std::unique_ptr<WorkerGroup> group_;            // replaced by that thread while nobody else is at work with it
  bool told_ = false;                             // that it has failed
  std::function<void()> notify_;
  std::thread watcher_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Executor>> make_multiprocess_executor(const EngineConfig& config,
                                                             std::unique_ptr<WorkerLauncher> launcher,
                                                             ops::Backend& planner) {
  const bool on_cards = config.device.kind == DeviceChoice::Kind::kCuda;
  QUIRE_RETURN_IF_ERROR(validate(config, on_cards ? DeviceChoice::Kind::kCuda : DeviceChoice::Kind::kCpu));
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const checkpoint::Checkpoint> checkpoint, open_checkpoint(config));
  // What cannot be is told before anything is started. How much room a card has its worker says.
  constexpr int64_t kWhatever = int64_t{1} << 50;
  const int64_t free_bytes =
      on_cards ? kWhatever : planner.free_memory() / (config.num_ranks() * config.data_parallel_size);
  QUIRE_ASSIGN_OR_RETURN(PlannedModel planned, plan_model(config, *checkpoint, planner, free_bytes));
  auto executor = std::make_unique<MultiprocessExecutor>(config, std::move(launcher), std::move(planned));
  QUIRE_RETURN_IF_ERROR(executor->start());
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace quire::runner
