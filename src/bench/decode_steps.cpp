#include "bench/decode_steps.h"

#include <vector>

#include <fmt/format.h>

#include "bench/report.h"
#include "bench/statistics.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

bool only_decodes(const json::object& step, int64_t num_sequences) {
  return step.at("num_tokens").as_int64() == num_sequences &&
         static_cast<int64_t>(step.at("scheduled").as_array().size()) == num_sequences;
}

}  // namespace

DecodeSteps decode_steps(const engine::FlightRecorder& recorder, int64_t num_sequences) {
  const json::object recorded = recorder.steps(-1);
  const json::array& all = recorded.at("steps").as_array();
  std::vector<double> periods;
  std::vector<double> waits;
  std::vector<double> draw_bytes;
  std::vector<double> collects;
  std::array<std::vector<double>, engine::kNumPhases> phases;
  int64_t replayed = 0;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const json::object& step = all[i].as_object();
    const json::object& next = all[i + 1].as_object();
    if (!only_decodes(step, num_sequences) || !only_decodes(next, num_sequences)) continue;
    periods.push_back(next.at("time").to_number<double>() - step.at("time").to_number<double>());
    waits.push_back(step.at("seconds_waited").to_number<double>());
    draw_bytes.push_back(step.at("bytes_to_sample_on_device").to_number<double>());
    collects.push_back(step.at("seconds_collecting_them").to_number<double>());
    replayed += step.at("replayed").as_bool() ? 1 : 0;
    const json::object& seconds = step.at("seconds").as_object();
    for (int phase = 0; phase < engine::kNumPhases; ++phase) {
      phases[static_cast<size_t>(phase)].push_back(seconds.at(engine::phase_name(phase)).to_number<double>());
    }
  }
  DecodeSteps steps{.count = static_cast<int64_t>(periods.size())};
  if (periods.empty()) return steps;
  steps.share_replayed = static_cast<double>(replayed) / static_cast<double>(steps.count);
  steps.period = median(periods);
  steps.wait = median(waits);
  steps.draw_bytes = median(draw_bytes);
  steps.collect = median(collects);
  for (size_t phase = 0; phase < phases.size(); ++phase) steps.phases[phase] = median(phases[phase]);
  return steps;
}

json::object decode_steps_json(const DecodeSteps& steps) {
  json::object phases;
  for (int phase = 0; phase < engine::kNumPhases; ++phase) {
    phases[engine::phase_name(phase)] = figure(steps.phases[static_cast<size_t>(phase)]);
  }
  return {{"count", steps.count},
          {"share_replayed", figure(steps.share_replayed)},
          {"seconds", figure(steps.period)},
          {"seconds_waited", figure(steps.wait)},
          {"seconds_of_host", figure(steps.host())},
          {"bytes_to_sample_on_device", figure(steps.draw_bytes)},
          {"seconds_collecting_them", figure(steps.collect)},
          {"phases", std::move(phases)}};
}

std::string decode_steps_line(const DecodeSteps& steps) {
  if (steps.count == 0) return {};
  std::string phases;
  for (int phase = 0; phase < engine::kNumPhases; ++phase) {
    const double seconds = steps.phases[static_cast<size_t>(phase)];
    if (seconds > 0) phases += fmt::format(", {} {:.1f}", engine::phase_name(phase), seconds * 1e6);
  }
  return fmt::format("Steps of decoding: {:.1f} us (median of {}), of these the device was waited for {:.1f}{}\n",
                     steps.period * 1e6, steps.count, steps.wait * 1e6, phases);
}

}  // namespace quire::bench
