// The processes of a model that is computed in several: the quire program, as `quire worker`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner/worker_launcher.h"

namespace quire::cli {

inline constexpr int kSegmentDescriptor = 3;  // of the shared memory, in the worker

// program: the path of a quire program of this version; empty: the one that runs now. Errors: not_found where there is
// no program to be run at the path; unimplemented without a path in a program that is not quire's own, which has no
// such command.
Result<std::unique_ptr<runner::WorkerLauncher>> make_process_launcher(const std::string& program);

// Whether the program that runs now is quire's own, which has its commands.
bool is_quire();

// The program that runs now once more, with these arguments (the first is its name), and these variables ("NAME=value")
// beside what it has in its environment. It has the terminal's output, and reads nothing. Its destructor kills it.
// Errors: resource_exhausted.
Result<std::unique_ptr<runner::WorkerProcess>> start_again(const std::vector<std::string>& arguments,
                                                           const std::vector<std::string>& environment);

}  // namespace quire::cli
