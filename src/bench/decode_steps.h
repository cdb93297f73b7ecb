// Where the time of a step goes that computes one token of each sequence, as the engine recorded its own steps.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <boost/json.hpp>

#include "engine/flight_recorder.h"

namespace quire::bench {

struct DecodeSteps {
  int64_t count = 0;
  double share_replayed = 0;  // of steps recorded before (CUDA graphs)
  // Medians, in seconds:
  double period = 0;  // from the planning of one to that of the next
  double wait = 0;    // of that, for a device with memory of its own
  std::array<double, engine::kNumPhases> phases{};
  double draw_bytes = 0;  // that went to the device to choose the tokens there; a median of bytes
  double collect = 0;     // of the host's, until they were on their way

  // What the host does in a step. Without overlap the device stands still meanwhile; with it only where nothing is left
  // to wait for.
  double host() const { return period - wait; }
};

// Of the recorded steps those of so many tokens that follow each other, one of each sequence.
DecodeSteps decode_steps(const engine::FlightRecorder& recorder, int64_t num_sequences);

boost::json::object decode_steps_json(const DecodeSteps& steps);
// One line; empty where there are no such steps.
std::string decode_steps_line(const DecodeSteps& steps);

}  // namespace quire::bench
