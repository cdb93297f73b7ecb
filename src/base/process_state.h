// What the kernel says of other processes.
#pragma once

#include <sys/types.h>

namespace quire {

// Whether a thread of the process runs or waits for nothing but a core. false: none does (all sleep, or were stopped),
// or the kernel does not say.
bool has_runnable_thread(pid_t process);

}  // namespace quire
