#include "runner/draft_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "runner/open_checkpoint.h"
#include "sampling/random.h"

namespace quire::runner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kDraftTexts = 8;      // of the longest kind that the pool holds at once
constexpr int32_t kBlocksOfStates = 2;  // of a text, in turns
constexpr int32_t kChoices = 64;        // that a guess is drawn from, at most: a model's likeliest

bool is_of_states(const MemoryPlan& memory, size_t group) {
  return memory.keeps_states && memory.windows[group] == nn::KvLayerSpec::kStateWindow;
}

// How many blocks a table of so many has of its own.
size_t blocks_of_group(const MemoryPlan& memory, size_t group, size_t length) {
  return is_of_states(memory, group) ? std::min<size_t>(length, kBlocksOfStates) : length;
}

// The likeliest tokens, falling, as the request's temperature, top_k, top_p and min_p weigh them; they add up to 1.
std::vector<DraftProbability> weigh(std::span<const TokenLogprob> likeliest, const SamplingParams& params) {
  std::vector<DraftProbability> choices;
  double total = 0;
  for (const TokenLogprob& one : likeliest) {
    if (params.top_k > 0 && choices.size() >= static_cast<size_t>(params.top_k)) break;
    const double weight = std::exp(static_cast<double>(one.logprob - likeliest.front().logprob) /
                                   static_cast<double>(params.temperature));
    if (weight < static_cast<double>(params.min_p)) break;
    choices.push_back({one.id, static_cast<float>(weight)});
    total += static_cast<double>(choices.back().probability);
  }
  double mass = 0;
  size_t kept = 0;
  while (kept < choices.size() && (kept == 0 || mass < static_cast<double>(params.top_p) * total)) {
    mass += static_cast<double>(choices[kept++].probability);
  }
  choices.resize(kept);
  for (DraftProbability& one : choices)
    one.probability = static_cast<float>(static_cast<double>(one.probability) / mass);
  return choices;
}

TokenId draw(std::span<const DraftProbability> choices, double u) {
  double sum = 0;
  for (const DraftProbability& one : choices) {
    sum += static_cast<double>(one.probability);
    if (sum > u) return one.token;
  }
  return choices.back().token;
}

EngineConfig config_of_drafter(const EngineConfig& config) {
  EngineConfig own;
  // A layer that predicts further tokens is in the model's own checkpoint.
  own.model = config.speculative_config.model.empty() ? config.model : config.speculative_config.model;
  own.load_format = config.load_format;
  own.dtype = config.dtype;
  own.quantization = config.speculative_config.quantization;
  own.activation_dtype = config.activation_dtype;
  own.block_size = config.block_size;
  own.max_num_seqs = 1;
  own.max_num_batched_tokens = config.max_num_batched_tokens > 0 ? std::min(config.max_num_batched_tokens, 512) : 0;
  // A block is computed in one piece.
  if (config.speculative_config.method == SpeculativeMethod::kDflash && own.max_num_batched_tokens > 0)
    own.max_num_batched_tokens = std::max(own.max_num_batched_tokens, kMostSpeculativeTokens + 1);
  own.device = config.device;
  // What a head is given lies elsewhere for its first pass of a text and for the next ones.
  own.enforce_eager = config.enforce_eager || is_head(config.speculative_config.method);
  return own;
}

// A number of its own for each token of an answer: what is guessed for it does not depend on where a guess began.
void draw_guess(const DraftText& text, std::span<const TokenLogprob> likeliest, DraftProposal& proposal) {
  constexpr float kAgreement = 0.7f;  // of all alike
  const std::vector<DraftProbability> choices = weigh(likeliest, *text.params);
  const size_t index = text.tokens.size() + proposal.tokens.size() - static_cast<size_t>(text.num_prompt_tokens);
  const double u = sampling::uniform(text.seed, index, sampling::RandomStream::kDraft);
  proposal.tokens.push_back(draw(choices, u));
  proposal.agreement.push_back(kAgreement);
  proposal.num_choices.push_back(static_cast<int32_t>(choices.size()));
  proposal.probabilities.insert(proposal.probabilities.end(), choices.begin(), choices.end());
}

}  // namespace

Result<PlannedDrafter> plan_drafter(const EngineConfig& config, ops::Backend& backend, const models::Family* family) {
  EngineConfig own = config_of_drafter(config);
  auto opened = open_checkpoint(own);
  if (!opened.ok()) return opened.status().with_prefix("speculative_config: model: ");
  PlannedDrafter drafter{.checkpoint = std::move(*opened), .planned = {}};
  const auto plan = [&] {
    return family != nullptr ? plan_model(*family, own, *drafter.checkpoint, backend, 0)
                             : plan_model(own, *drafter.checkpoint, backend, 0);
  };
  // First for its sizes alone: the pool is to hold a few texts as long as those of the other model may be.
  own.num_gpu_blocks_override = 1;
  auto planned = plan();
  if (!planned.ok()) return planned.status().with_prefix("speculative_config: model: ");
  drafter.planned = std::move(*planned);
  own.max_model_len =
      std::min<int64_t>(drafter.planned.config.max_position,
                        config.max_model_len > 0 ? config.max_model_len : drafter.planned.max_model_len);
  if (config.speculative_config.max_model_len > 0) {
    own.max_model_len = std::min(own.max_model_len, config.speculative_config.max_model_len);
  }
  const int64_t texts = std::min(config.max_num_seqs, kDraftTexts);
  const MemoryPlan& memory = drafter.planned.memory;
  const auto longest = static_cast<size_t>(own.max_model_len / memory.block_size + 1);
  size_t blocks = 0;  // of a text
  for (size_t group = 0; group < memory.windows.size(); ++group) {
    blocks += blocks_of_group(memory, group, longest) + (is_of_states(memory, group) ? 1 : 0);
  }
  own.num_gpu_blocks_override = std::max<int64_t>(texts * static_cast<int64_t>(blocks), 1);
  QUIRE_ASSIGN_OR_RETURN(drafter.planned, plan());
  return drafter;
}

DraftRunner::DraftRunner(PlannedDrafter drafter, std::unique_ptr<ModelRunner> runner, bool draws)
    : drafter_(std::move(drafter)), runner_(std::move(runner)), draws_(draws) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 0;
  params.ignore_eos = true;
  likeliest_ = std::make_shared<const SamplingParams>(params);
  params.logprobs = kChoices;
  choices_ = std::make_shared<const SamplingParams>(params);
  for (auto block = static_cast<BlockId>(planned().memory.num_blocks); block-- > 0;) free_.push_back(block);
}

DraftRunner::Text& DraftRunner::text_of(SequenceId id) {
  Text& text = texts_[id];
  text.last_used = ++num_used_;
  return text;
}

int32_t DraftRunner::num_computed(SequenceId id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? 0 : found->second.num_computed;
}

void DraftRunner::observe_rows(int32_t rows, double seconds) {
  constexpr int32_t kMany = 16;
  if (rows < kMany) return;
  const double each = std::max(seconds, 0.0) / rows;
  seconds_per_row_ = seconds_per_row_ == 0 ? each : seconds_per_row_ + (each - seconds_per_row_) / 8;
}

void DraftRunner::ended(SequenceId id) {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return;
  forget(found->second);
  texts_.erase(found);
}

void DraftRunner::forget(Text& text) {
  if (text.id != 0) retired_.push_back(std::exchange(text.id, 0));
  for (size_t group = 0; group < text.tables.size(); ++group) {
    const std::vector<BlockId>& table = text.tables[group];
    const size_t count = blocks_of_group(planned().memory, group, table.size());
    free_.insert(free_.end(), table.begin(), table.begin() + static_cast<std::ptrdiff_t>(count));
  }
  text.tables.clear();
  text.num_computed = 0;
}

bool DraftRunner::find_room(Text& text, int32_t end) {
  const auto wanted = static_cast<size_t>((end + planned().memory.block_size - 1) / planned().memory.block_size);
  text.tables.resize(num_groups());
  // With what states of guesses take while they are made.
  const auto missing = [&] {
    const MemoryPlan& memory = planned().memory;
    size_t sum = 0;
    for (size_t group = 0; group < num_groups(); ++group) {
      const size_t length = text.tables[group].size();
      sum += blocks_of_group(memory, group, std::max(wanted, length)) - blocks_of_group(memory, group, length);
      sum += is_of_states(memory, group) ? 1 : 0;
    }
    return sum;
  };
  while (free_.size() < missing()) {
    Text* oldest = nullptr;
    for (auto& [id, other] : texts_) {
      const bool holds = &other != &text && !other.tables.empty() && !other.tables.front().empty();
      if (holds && (oldest == nullptr || other.last_used < oldest->last_used)) oldest = &other;
    }
    if (oldest == nullptr) return false;
    forget(*oldest);
  }
  for (size_t group = 0; group < text.tables.size(); ++group) {
    std::vector<BlockId>& table = text.tables[group];
    while (table.size() < wanted) {
      if (blocks_of_group(planned().memory, group, table.size() + 1) <= table.size()) {
        table.push_back(table[table.size() - kBlocksOfStates]);
        continue;
      }
      table.push_back(free_.back());
      free_.pop_back();
    }
  }
  return true;
}

std::vector<DraftRunner::SetAside> DraftRunner::set_states_aside(Text& text, StepPlan& plan) {
  std::vector<SetAside> aside;
  const auto size = planned().memory.block_size;
  if (text.num_computed % size == 0) return aside;  // what follows lies in a block of its own
  const auto index = static_cast<size_t>(text.num_computed / size);
  for (size_t group = 0; group < num_groups(); ++group) {
    if (!is_of_states(planned().memory, group)) continue;
    QUIRE_CHECK(!free_.empty());
    BlockId& place = text.tables[group][index];
    aside.push_back({group, index, std::exchange(place, free_.back())});
    free_.pop_back();
    plan.copies.push_back({aside.back().block, place});
    tell_whole_table(plan, text.id, static_cast<int32_t>(group), text.tables[group]);
  }
  return aside;
}

void DraftRunner::put_back(const std::vector<SetAside>& aside, Text& text) {
  for (const SetAside& one : aside) free_.push_back(std::exchange(text.tables[one.group][one.index], one.block));
}

// A request that draws is guessed for by drawing, as it draws and with its numbers: where the models agree, so do the
// draws, while the likeliest token would be right as often as it is drawn. Where guesses are drawn by numbers of their
// own, or the answer's beginning is not known here, or Mirostat has a state that is not, it is the likeliest.
DraftRunner::Told DraftRunner::told_of(const DraftText& asked, std::span<const TokenId> tokens, bool draws,
                                       Text& text) const {
  Told told{.tokens = tokens, .num_prompt_tokens = tokens.size(), .params = draws ? choices_ : likeliest_};
  const size_t answer = asked.tokens.size() - static_cast<size_t>(asked.num_prompt_tokens);
  const bool copies = !draws_ && asked.params != nullptr && !asked.params->greedy() && asked.params->mirostat == 0;
  if (!copies || answer >= tokens.size()) return told;
  if (text.drawn_by == nullptr) {
    SamplingParams own = *asked.params;
    own.logprobs = 0;
    own.prompt_logprobs.reset();
    own.structured_output.reset();
    text.drawn_by = std::make_shared<const SamplingParams>(std::move(own));
  }
  told.num_prompt_tokens = tokens.size() - answer;
  told.params = text.drawn_by;
  told.seed = asked.seed;
  return told;
}

// The runner's tokens only ever grow, and guesses may have been wrong: it learns the text anew, whose keys and values
// are still there.
StepPlan DraftRunner::first_plan(Text& text, const Told& told, std::span<const TokenId> guesses) {
  StepPlan plan;
  if (text.id != 0) retired_.push_back(text.id);
  plan.retired = std::exchange(retired_, {});
  text.id = ++next_id_;
  NewSequence& added = plan.added.emplace_back();
  added.id = text.id;
  const auto begin = told.tokens.begin();
  const auto answer = begin + static_cast<std::ptrdiff_t>(told.num_prompt_tokens);
  added.prompt.assign(begin, answer);
  added.output.assign(answer, told.tokens.end());
  added.output.insert(added.output.end(), guesses.begin(), guesses.end());
  added.params = told.params;
  added.seed = told.seed;
  for (size_t group = 0; group < num_groups(); ++group) {
    tell_whole_table(plan, text.id, static_cast<int32_t>(group), text.tables[group]);
  }
  return plan;
}

SequenceResult DraftRunner::run(StepPlan plan) {
  runner_->launch(std::move(plan));
  runner_->choose();
  return std::move(runner_->finish().result.sequences.front());
}

void DraftRunner::guess(const DraftText& asked, std::span<const TokenId> tokens, int32_t most, Text& text, Hooks& hooks,
                        DraftProposal& proposal) {
  const auto size = static_cast<int32_t>(tokens.size());
  // States of more would come round to the block of the text's last.
  if (keeps_states()) most = std::min(most, planned().memory.block_size);
  const int32_t num_missing = size - text.num_computed;
  const bool is_near = num_missing <= 8;
  const Clock::time_point start = Clock::now();
  const bool draws = draws_ && asked.params != nullptr && !asked.params->greedy() && asked.params->mirostat == 0;
  const Told told = told_of(asked, tokens, draws, text);
  StepPlan plan = first_plan(text, told, {});
  proposal.source = DraftSource::kModel;
  std::vector<SetAside> aside;
  bool has_set_aside = !keeps_states();
  while (static_cast<int32_t>(proposal.tokens.size()) < most) {
    const int32_t end = size + static_cast<int32_t>(proposal.tokens.size());
    // The last guess is not what the runner chose.
    if (draws && !proposal.tokens.empty()) plan = first_plan(text, told, proposal.tokens);
    if (!proposal.tokens.empty() && !std::exchange(has_set_aside, true)) aside = set_states_aside(text, plan);
    const int32_t first = text.num_computed;
    const int32_t count = std::min(end - first, static_cast<int32_t>(planned().memory.max_num_batched_tokens));
    plan.step = ++num_steps_;
    plan.scheduled = {
        {.id = text.id, .num_computed_tokens = first, .num_new_tokens = count, .samples = first + count == end}};
    plan.num_tokens = count;
    hooks.before_run(first, count);
    SequenceResult result = run(std::exchange(plan, {}));
    if (!result.error.ok()) break;
    hooks.after_run(count);
    text.num_computed += count;
    if (text.num_computed < end) continue;
    if (result.tokens.empty() || result.logprobs.empty()) break;
    if (draws) {
      draw_guess(asked, result.logprobs.front().top, proposal);
      continue;
    }
    proposal.tokens.push_back(result.tokens.front());
    proposal.agreement.push_back(std::clamp(std::exp(result.logprobs.front().chosen.logprob), 1e-3f, 1.0f));
  }
  put_back(aside, text);
  if (keeps_states()) text.num_computed = std::min(text.num_computed, size);
  if (proposal.tokens.empty()) return;
  const auto guesses = static_cast<double>(proposal.tokens.size());
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!is_near) return observe_rows(num_missing, seconds - guesses * seconds_per_token_);
  seconds /= guesses;
  seconds_per_token_ = seconds_per_token_ == 0 ? seconds : seconds_per_token_ + (seconds - seconds_per_token_) / 8;
}

bool DraftRunner::compute(std::span<const TokenId> tokens, int32_t num_last, Text& text, Hooks& hooks) {
  const Told told{.tokens = tokens, .num_prompt_tokens = tokens.size(), .params = likeliest_};
  const auto end = static_cast<int32_t>(tokens.size());
  const auto most = static_cast<int32_t>(planned().memory.max_num_batched_tokens);
  QUIRE_CHECK(num_last <= most);
  StepPlan plan = first_plan(text, told, {});
  const Clock::time_point start = Clock::now();
  for (int32_t first = text.num_computed; first < end;) {
    const int32_t count = end - first <= most ? end - first : std::min(most, end - num_last - first);
    plan.step = ++num_steps_;
    plan.scheduled = {{.id = text.id, .num_computed_tokens = first, .num_new_tokens = count}};
    plan.num_tokens = count;
    hooks.before_run(first, count);
    if (!run(std::exchange(plan, {})).error.ok()) return false;
    hooks.after_run(count);
    first += count;
  }
  observe_rows(end - text.num_computed, std::chrono::duration<double>(Clock::now() - start).count());
  return true;
}

}  // namespace quire::runner
