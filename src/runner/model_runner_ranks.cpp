// What a runner does together with others that have the other parts of its model.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/check.h"
#include "runner/model_runner.h"

namespace quire::runner {

void ModelRunner::use_ranks(const RankGroup& ranks) {
  ranks_ = ranks;
  if (ranks.are_several()) recorder_.keep_step_with_others();
}

// A stage's layers between the states of the one before and those for the one after. Nothing but of the last stage.
ops::View ModelRunner::run_stage(const nn::StepContext& step) {
  nn::HiddenStates states(step, model_->config().hidden_size);
  const auto bytes_of = [](const ops::View& view) {
    return std::as_writable_bytes(std::span(view.floats(), static_cast<size_t>(view.num_rows * view.num_columns)));
  };
  comm::Communicator& stages = ranks_.between_stages();
  if (ranks_.stage.is_first()) {
    model_->embed(step, states);
  } else {
    if (!comes_pending_) {
      std::byte pending{};
      ranks_.all->receive({&pending, 1}, ranks_.previous());
      comes_pending_ = pending != std::byte{0};
    }
    stages.receive(bytes_of(states.residual), ranks_.previous());
    stages.receive(bytes_of(states.delta), ranks_.previous());
    states.pending = *comes_pending_;
  }
  const nn::Range own = nn::layers_of(ranks_.stage, model_->config().num_layers);
  const bool passes_taps = backend_.computes_in_host_memory();
  if (passes_taps) receive_taps(own.first, step.batch.num_tokens);
  model_->run_tapped_layers(step, static_cast<int32_t>(own.first), static_cast<int32_t>(own.end()), states);
  if (ranks_.stage.is_last()) return model_->finish_tapped(step, states);
  if (!goes_pending_) {
    backend_.synchronise();  // which may receive states still
    const std::byte pending{states.pending};
    ranks_.all->send({&pending, 1}, ranks_.next());
    goes_pending_ = states.pending;
  }
  stages.send(bytes_of(states.residual), ranks_.next());
  stages.send(bytes_of(states.delta), ranks_.next());
  if (passes_taps) send_taps(own.end(), step.batch.num_tokens);
  return {};
}

void ModelRunner::pass_fetched_taps(int64_t num_tokens) {
  if (taps_ == nullptr || !ranks_.are_several() || backend_.computes_in_host_memory()) return;
  const nn::Range own = nn::layers_of(ranks_.stage, model_->config().num_layers);
  receive_taps(own.first, num_tokens);
  if (!ranks_.stage.is_last()) send_taps(own.end(), num_tokens);
}

void ModelRunner::receive_taps(int64_t first_layer, int64_t num_tokens) {
  const std::span<float> taken = taken_before(first_layer, num_tokens);
  if (!taken.empty()) ranks_.all->receive(std::as_writable_bytes(taken), ranks_.previous());
}
void ModelRunner::send_taps(int64_t end_layer, int64_t num_tokens) {
  const std::span<const float> to_pass = taken_before(end_layer, num_tokens);
  if (!to_pass.empty()) ranks_.all->send(std::as_bytes(to_pass), ranks_.next());
}

// What taps have of a step of so many tokens before this layer, where a stage ends: it passes on what it was given and
// what it took.
std::span<float> ModelRunner::taken_before(int64_t layer, int64_t num_tokens) {
  if (taps_ == nullptr) return {};
  const std::span<const int32_t> layers = taps_->layers();
  const auto before = std::ranges::lower_bound(layers, layer) - layers.begin();
  return taps_->first(num_tokens, static_cast<size_t>(before));
}

std::vector<size_t> ModelRunner::count_tokens(const StepPlan& plan) {
  std::vector<size_t> counts;
  if (ranks_.all == nullptr) return counts;
  for (const ScheduledSequence& run : plan.scheduled) counts.push_back(states_.at(run.id).tokens.size());
  return counts;
}

// A rank that does not choose tokens has its part of the logits alone, for the one that does.
void ModelRunner::help_to_draw(Step& step) {
  const std::span<const LogitRow> rows = std::span(step.rows).first(step.num_drawn);
  for (size_t begin = 0; begin < rows.size() && ranks_.stage.is_last(); begin += logit_rows_)
    compute_logits(step.hidden, rows.subspan(begin, std::min(logit_rows_, rows.size() - begin)));
  step.chosen_on_device = step.num_drawn == step.rows.size();
}

// What other stages gave, of those that go on: the last one has them already.
void ModelRunner::take_sampled(const StepPlan& plan) {
  if (ranks_.stage.is_last()) return;
  for (const SampledToken& sampled : plan.sampled) {
    SequenceState& state = states_.at(sampled.id);
    state.take(sampled.token);
  }
}

// To the other ranks of the last stage, or from the one that samples. Other stages are not waited for.
void ModelRunner::send_tokens(std::span<std::byte> tokens) {
  if (ranks_.stage.count == 1) return ranks_.all->broadcast(tokens, ranks_.sampling_rank());
  if (!ranks_.samples()) return ranks_.all->receive(tokens, ranks_.sampling_rank());
  for (int rank = ranks_.sampling_rank() + 1; rank < ranks_.all->size(); ++rank) ranks_.all->send(tokens, rank);
}

// Whatever the rank that samples took down of each sequence, a fault's placeholder included, the others of its stage
// take down as well: later plans name positions alone.
void ModelRunner::share_tokens(const StepPlan& plan, const std::vector<size_t>& before) {
  constexpr int32_t kNone = -1;
  if (!ranks_.are_several() || !ranks_.stage.is_last()) return;
  // One behind the other, of each run as many as it gives at most: who listens does not know how many drafts held.
  const auto most_of = [](const ScheduledSequence& run) { return static_cast<size_t>(run.num_draft_tokens) + 1; };
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < plan.scheduled.size(); ++i) {
    const size_t most = most_of(plan.scheduled[i]);
    const size_t end = tokens.size() + most;
    if (ranks_.samples()) {
      const sampling::TokenHistory& known = states_.at(plan.scheduled[i].id).tokens;
      QUIRE_CHECK(known.size() <= before[i] + most);
      for (size_t at = before[i]; at < known.size(); ++at) tokens.push_back(known[at]);
    }
    tokens.resize(end, kNone);
  }
  send_tokens(std::as_writable_bytes(std::span(tokens)));
  if (ranks_.samples() || !ranks_.status().ok()) return;
  std::span<const int32_t> left = tokens;
  for (const ScheduledSequence& run : plan.scheduled) {
    SequenceState& state = states_.at(run.id);
    for (const int32_t token : left.first(most_of(run))) {
      if (token == kNone) break;
      state.take(token);
    }
    left = left.subspan(most_of(run));
  }
}

}  // namespace quire::runner
