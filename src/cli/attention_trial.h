// Kernels of attention that are not quire's own are tried in a process of their own before `auto` takes them: where one
// ends the process, hangs or is wrong, the server goes on without.
#pragma once

#include <functional>

#include "base/status.h"
#include "runner/worker_launcher.h"
#include "types/engine_choices.h"
#include "types/engine_config.h"

namespace quire::cli {

// Starts `quire try-attention`, once for each card, which ends while the caller gets the card ready. What is returned
// waits for it; empty: nothing is to be tried (another choice than auto, a program that is not quire's own or has no
// such process).
std::function<Status()> begin_attention_trial(const EngineConfig& config, int card);

// What that process does. Errors: internal where a kernel is wrong; invalid_argument: no card; unavailable: there is
// none, or no CUDA.
Status try_attention(const DeviceChoice& device);

// Until it ends. Errors: internal, how it did or that it took too long.
Status wait_for_trial(runner::WorkerProcess& process, double seconds);

}  // namespace quire::cli
