// Who carries out a step: the engine's view of one or many workers. One process today; several,
// over shared memory or a network, behind the same interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "types/constraint_table.h"
#include "types/draft_proposer.h"
#include "types/kv_offload.h"
#include "types/memory_plan.h"
#include "types/model_config.h"
#include "types/step_plan.h"

namespace quire::runner {

class AdapterStore;
class RankAdapters;

struct StepTimings {   // seconds of a step's phases
  double prepare = 0;  // blocks copied and swapped, the flat batch built
  double swap = 0;     // of these, blocks between the pools; 0 where that goes on beside `forward`
  double forward = 0;  // of a device with a queue of its own: its calls
  double sample = 0;
  double computed = 0;    // what the step took, but `prepare` and the host's sampling, wherever that goes on
  double wait = 0;        // of these, until a device with memory of its own had the tokens
  bool replayed = false;  // `forward` was recorded before
  bool ahead = false;     // launched before the tokens of the step before were known here
  int32_t host_rows = 0;  // rows of logits that the host sampled from, or scored
  // To choose the tokens on a device with memory of its own: bytes that went up, and seconds of the host's until they
  // were on their way.
  int64_t draw_bytes = 0;
  double collect = 0;
  double constraints = 0;  // processor time that constraints took, beside `forward` or in `sample`
};

struct ExecutedStep {
  StepResult result;
  StepTimings timings;
  // The one that was carried out, for its memory: a step of 64 sequences is planned a tenth quicker in it. Empty where
  // it is elsewhere.
  StepPlan plan;
  // Of a worker whose order says state_layers: what it took before each, [layers, rows of the step, hidden_size].
  std::vector<float> states;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& model() const = 0;
  virtual const MemoryPlan& memory() const = 0;
  virtual const std::string& description() const = 0;  // device and kernels, for people

  // Told by the thread that will make all calls below, before the first.
  virtual void bind_thread() {}

  // Told by the engine, before the first step: where the constraints that plans name are found.
  virtual void use_constraints(std::shared_ptr<const ConstraintSource> constraints) { (void)constraints; }

  // The adapters that plans may name; nullptr: there are none. Whoever plans holds a lease of each that a step uses
  // until its result is collected.
  virtual std::shared_ptr<AdapterStore> adapters() { return nullptr; }
  // In the place of these, of one rank of several: who is told by the process that has them what to keep.
  virtual std::shared_ptr<RankAdapters> rank_adapters() { return nullptr; }

  // A model that guesses for this one, of those whose configuration has one; given away once. Used by the thread that
  // makes the calls below, between them.
  virtual std::unique_ptr<DraftProposer> take_draft_model() { return nullptr; }
  // Blocks of the prefix cache beyond the pool (types/kv_offload.h), where memory().num_offload_slots is over 0.
  // What lies on disk, told once, before the first step.
  virtual std::vector<StoredBlock> take_stored() { return {}; }
  // From any thread; slots that orders name are in no plan that is under way, but for loads of those that are only
  // read. REQUIRES: memory().offload_to_disk, and EngineConfig::kv_transfer of orders of other instances.
  virtual void order(OffloadOrders orders) { (void)orders; }
  virtual OffloadReports take_reports() { return {}; }
  // `notify` is called, on another thread, when there are reports to take. Set before the first order.
  virtual void on_reports(std::function<void()> notify) { (void)notify; }

  // Whether submit() begins a step, which goes on beside the caller: then two should be submitted before the first is
  // collected.
  virtual bool overlaps() const { return false; }

  // Takes on a step; steps run one after the other in the order of submission, at the latest in collect().
  virtual void submit(StepPlan plan) = 0;
  // The oldest step not yet collected, when it is done. A fault of one sequence is in its SequenceResult; an error here
  // means that the worker itself failed and the engine cannot go on unless recover() can. REQUIRES: there is one.
  virtual Result<ExecutedStep> collect() = 0;

  // What is wrong with the workers, also where no step is under way. Thread-safe.
  virtual Status status() const { return {}; }
  // Calls `notify` when status() is no longer ok, on any thread, once each time. Told before the first step.
  virtual void on_failure(std::function<void()> notify) { (void)notify; }
  // Whether recover() may do anything.
  virtual bool can_recover() const { return false; }
  // After such an error: begins anew. Whatever the workers knew is lost, sequences, cached blocks and steps that were
  // submitted and not collected; the number of blocks is as before. Errors: they cannot be started again, or have been
  // too often.
  virtual Status recover() { return unavailable("the worker cannot be started again"); }
};

}  // namespace quire::runner
