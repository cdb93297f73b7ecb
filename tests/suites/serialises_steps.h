#pragma once

namespace quire::suites {

// --executor=serialising was given; set by main() before anything runs.
extern bool serialises_steps;

}  // namespace quire::suites
