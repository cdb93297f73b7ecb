// How long this process has been there: what a cold start costs includes loading the program itself.
#pragma once

namespace quire::bench {

// Seconds since the system made the process; exact to its clock tick (10 ms). 0 where the system does not tell.
double seconds_since_process_start();

}  // namespace quire::bench
