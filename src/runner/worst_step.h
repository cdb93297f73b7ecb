// The steps that take the most memory there may be, to be run at start where what they take cannot be known from
// headers: on a device with memory of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "models/model.h"
#include "runner/memory_planner.h"
#include "runner/model_runner.h"
#include "types/step_plan.h"

namespace quire::runner {

// What a run of them needs of the pool: blocks of their own for all tokens of both steps.
int64_t blocks_of_worst_steps(const PlannedModel& planned);

// Runs a step of max_num_batched_tokens tokens of prompts, of as many sequences as may run, and then one in which all
// of them decode; each time every sequence's token is drawn from edited logits. Waits for the device. Answers are left
// nowhere but in the runner's pool. REQUIRES: the runner is made of `planned`, whose pool may be smaller than
// blocks_of_worst_steps(): sequences then write over each other's blocks, which takes no other memory.
void run_worst_steps(const PlannedModel& planned, ModelRunner& runner);

// Gives the pool of a plan whose size follows from the memory what is left beside `taken` bytes, which weights and
// workspace were seen to take; a pool whose size was asked for stays. As plan_model() does with what it computes.
// Errors: resource_exhausted when not a single block fits.
Status size_pool_by(int64_t taken, PlannedModel& planned);

// On a device with memory of its own: runs the worst steps of the model with a small pool, sees what they and the
// weights took of the `free_bytes` that were free before the weights were loaded, and sizes the plan's pool by it. Logs
// what was computed beside it. Returns the model. ranks: who runs the same with the other parts of the model. Errors:
// resource_exhausted.
Result<std::unique_ptr<models::Model>> measure_on_device(std::unique_ptr<models::Model> model, int64_t free_bytes,
                                                         PlannedModel& planned, ops::Backend& backend,
                                                         const RankGroup& ranks = {});

}  // namespace quire::runner
