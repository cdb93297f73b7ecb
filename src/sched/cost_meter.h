// What computing a token and swapping a block cost on this machine, learned from what steps took: for preemption mode
// "auto" (rule 4 of sched/scheduler.h) and for what a step may have of each tenant (rule 5).
#pragma once

#include "sched/scheduler.h"
#include "types/step_plan.h"

namespace quire::sched {

class CostMeter {
 public:
  // known: what is known before the first step; 0: nothing.
  CostMeter(const SchedulerConfig& config, const PreemptionCosts& known);

  // computed: seconds of the step's forward pass; swap: of its copies between the pools, 0: there were none. True: the
  // costs are others now. A step tells of a token where it has enough of them to cost by the token and not by the
  // weights: 64, or a third of what rule 5 gives a step at the cost known so far. That step may be shorter than 64, for
  // ever: a cost that was found too high by the first steps (weights still coming in from disk, a machine that was
  // busy) must not keep the steps short that alone could show otherwise.
  bool observe(const PlannedStep& plan, double computed, double swap);

  const PreemptionCosts& costs() const { return costs_; }

 private:
  double least_cost() const;

  const double tokens_per_position_;
  const double tenant_step_seconds_;
  PreemptionCosts costs_;
};

}  // namespace quire::sched
