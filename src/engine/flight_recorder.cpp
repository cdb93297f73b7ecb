#include "engine/flight_recorder.h"

#include <algorithm>

namespace quire::engine {
namespace {
namespace json = boost::json;

json::object as_json(const StepRecord& step) {
  json::array runs;
  for (const StepRecord::Run& run : step.runs) {
    json::array numbers = {run.id, run.num_computed_tokens, run.num_new_tokens};
    if (run.num_draft_tokens > 0) numbers.push_back(run.num_draft_tokens);
    runs.push_back(std::move(numbers));
  }
  json::object seconds;
  for (int phase = 0; phase < kNumPhases; ++phase)
    seconds[phase_name(phase)] = step.seconds[static_cast<size_t>(phase)];
  return {{"step", step.step},
          {"time", step.time},
          {"num_tokens", step.num_tokens},
          {"running", step.running},
          {"waiting", step.waiting},
          {"swapped", step.swapped},
          {"blocks", json::object{{"used", step.blocks_used},
                                  {"cached", step.blocks_cached},
                                  {"total", step.blocks_total},
                                  {"copied", step.copies},
                                  {"swapped_in", step.swapped_in},
                                  {"swapped_out", step.swapped_out}}},
          {"preempted", json::array(step.preempted.begin(), step.preempted.end())},
          {"scheduled", std::move(runs)},  // [id, tokens computed before, tokens of this step]
          {"replayed", step.replayed},
          {"launched_ahead", step.ahead},
          {"rows_sampled_on_host", step.host_rows},
          {"bytes_to_sample_on_device", step.draw_bytes},
          {"seconds_collecting_them", step.collect},
          {"seconds_waited", step.wait},
          {"seconds", std::move(seconds)}};
}

json::object as_json(const RequestLife& life) {
  json::array events;
  for (const RequestLife::Event& event : life.events) {
    events.push_back(json::object{{"time", event.time}, {"event", event.what}, {"output_tokens", event.tokens}});
  }
  json::value adapter = nullptr;
  if (!life.adapter.empty()) {
    adapter = json::object{{"name", life.adapter}, {"revision", fmt::format("{:016x}", life.adapter_revision)}};
  }
  return {{"sequence", life.id},
          {"request_id", life.label},
          {"adapter", std::move(adapter)},
          {"prompt_tokens", life.num_prompt_tokens},
          {"cached_tokens", life.num_cached_tokens},
          {"output_tokens", life.num_output_tokens},
          {"finish_reason", life.finish.empty() ? json::value(nullptr) : json::value(life.finish)},
          {"events", std::move(events)}};
}

}  // namespace

void FlightRecorder::record(StepRecord step) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  for (const SequenceId id : step.preempted) {
    const auto life = lives_.find(id);
    if (life != lives_.end()) add_event(life->second, "preempted");
  }
  steps_.push_back(std::move(step));
  if (steps_.size() > most_steps_) steps_.pop_front();
}

void FlightRecorder::queued(SequenceId id, std::string_view label, int64_t num_prompt_tokens,
                            std::string_view adapter) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  RequestLife& life = lives_[id];
  life.adapter = adapter;
  life.id = id;
  life.label = label;
  life.num_prompt_tokens = num_prompt_tokens;
  add_event(life, "queued");
}

void FlightRecorder::adapter_loaded(SequenceId id, uint64_t revision) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  const auto life = lives_.find(id);
  if (life == lives_.end()) return;
  life->second.adapter_revision = revision;
  add_event(life->second, "adapter_loaded");
}

void FlightRecorder::happened(SequenceId id, const char* what) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  const auto life = lives_.find(id);
  if (life != lives_.end()) add_event(life->second, what);
}

void FlightRecorder::delivered(SequenceId id, const TokenEvent& event) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  const auto place = lives_.find(id);
  if (place == lives_.end()) return;
  RequestLife& life = place->second;
  const bool first = life.num_output_tokens == 0 && !event.tokens.empty();
  life.num_output_tokens += static_cast<int64_t>(event.tokens.size());
  if (event.num_cached_tokens) life.num_cached_tokens = *event.num_cached_tokens;
  if (first) add_event(life, "first_token");
  if (event.finish == FinishReason::kNone) return;
  life.finish = to_string(event.finish);
  add_event(life, "finished");
  finished_.push_back(id);
  if (finished_.size() > most_steps_) {
    lives_.erase(finished_.front());
    finished_.pop_front();
  }
}

void FlightRecorder::add_event(RequestLife& life, const char* what) {
  if (life.events.size() == kMostEvents) life.events.erase(life.events.end() - 2);
  life.events.push_back({now(), what, life.num_output_tokens});
}

json::object FlightRecorder::steps(int64_t count) const {
  const std::lock_guard lock(mutex_);
  const size_t wanted = count < 0 ? steps_.size() : std::min(steps_.size(), static_cast<size_t>(count));
  json::array list;
  for (size_t i = steps_.size() - wanted; i < steps_.size(); ++i) list.push_back(as_json(steps_[i]));
  return {{"now", now()}, {"steps", std::move(list)}};
}

std::optional<json::object> FlightRecorder::request(std::string_view label) const {
  const std::lock_guard lock(mutex_);
  std::vector<const RequestLife*> found;
  for (const auto& [id, life] : lives_) {
    if ((!label.empty() && life.label == label) || std::to_string(id) == label) found.push_back(&life);
  }
  if (found.empty()) return std::nullopt;
  std::ranges::sort(found, {}, &RequestLife::id);
  json::array list;
  for (const RequestLife* life : found) list.push_back(as_json(*life));
  return json::object{{"now", now()}, {"answers", std::move(list)}};
}

}  // namespace quire::engine
