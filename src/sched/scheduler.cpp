// Requests come in and go; what is planned in between is schedule.cpp, what comes back commit.cpp.
#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace quire::sched {
namespace {

Status check_positive(const char* field, int64_t value) {
  if (value >= 1) return {};
  return invalid_argument("{} must be at least 1, got {}.", field, value).with_param(field);
}

Status check_not_negative(const char* field, double value) {
  if (value >= 0) return {};
  return invalid_argument("{} must not be negative, got {}.", field, value).with_param(field);
}

// Without parts of prompts every prompt must fit a step.
Status check_whole_prompts(const SchedulerConfig& config) {
  if (config.max_num_batched_tokens < config.max_model_len) {
    return invalid_argument(
               "without chunked prefill a prompt is computed in one step, but a step has {} tokens "
               "(max_num_batched_tokens) and a prompt may have {} (max_model_len): set max_num_batched_tokens to at "
               "least {}, or max_model_len to at most {}.",
               config.max_num_batched_tokens, config.max_model_len, config.max_model_len, config.max_num_batched_tokens)
        .with_param("max_num_batched_tokens");
  }
  if (config.long_prefill_token_threshold > 0) {
    return invalid_argument(
               "without chunked prefill a prompt is computed in one step: leave "
               "long_prefill_token_threshold ({}) out.",
               config.long_prefill_token_threshold)
        .with_param("long_prefill_token_threshold");
  }
  return {};
}

kv::CacheConfig cache_config(const SchedulerConfig& config) {
  return {.num_blocks = config.num_blocks,
          .block_size = config.block_size,
          .windows = config.windows,
          .keeps_states = config.keeps_states,
          .prefix_caching = config.prefix_caching,
          .num_swap_blocks = config.num_swap_blocks,
          .num_offload_slots = config.num_offload_slots,
          .offload_to_disk = config.offload_to_disk,
          .offload_writes = config.offload_writes,
          .tells_events = config.tells_kv_events,
          .hash_seed = config.hash_seed};
}

}  // namespace

Status validate(const SchedulerConfig& config) {
  QUIRE_RETURN_IF_ERROR(check_positive("max_num_seqs", config.max_num_seqs));
  QUIRE_RETURN_IF_ERROR(check_positive("max_num_batched_tokens", config.max_num_batched_tokens));
  QUIRE_RETURN_IF_ERROR(check_positive("max_model_len", config.max_model_len));
  QUIRE_RETURN_IF_ERROR(check_positive("num_blocks", config.num_blocks));
  QUIRE_RETURN_IF_ERROR(check_positive("block_size", config.block_size));
  QUIRE_RETURN_IF_ERROR(check_positive("layer groups", static_cast<int64_t>(config.windows.size())));
  for (const int32_t window : config.windows) QUIRE_RETURN_IF_ERROR(check_not_negative("window", window));
  QUIRE_RETURN_IF_ERROR(check_not_negative("num_swap_blocks", config.num_swap_blocks));
  QUIRE_RETURN_IF_ERROR(check_not_negative("num_offload_slots", config.num_offload_slots));
  QUIRE_RETURN_IF_ERROR(check_not_negative("long_prefill_token_threshold", config.long_prefill_token_threshold));
  QUIRE_RETURN_IF_ERROR(check_not_negative("max_num_partial_prefills", config.max_num_partial_prefills));
  if (config.max_num_partial_prefills == 0) QUIRE_RETURN_IF_ERROR(check_whole_prompts(config));
  QUIRE_RETURN_IF_ERROR(check_not_negative("tokens_per_priority_level", config.tokens_per_priority_level));
  QUIRE_RETURN_IF_ERROR(check_not_negative("max_adapters", config.max_adapters));
  QUIRE_RETURN_IF_ERROR(check_positive("max_plans_in_flight", config.max_plans_in_flight));
  QUIRE_RETURN_IF_ERROR(check_positive("num_stages", config.num_stages));
  QUIRE_RETURN_IF_ERROR(check_positive("least_stage_tokens", config.least_stage_tokens));
  if (config.max_draft_tokens < 0 || config.max_draft_tokens > kMostDraftTokens) {
    return invalid_argument("max_draft_tokens must be 0 to {}, got {}.", kMostDraftTokens, config.max_draft_tokens)
        .with_param("max_draft_tokens");
  }
  QUIRE_RETURN_IF_ERROR(check_not_negative("max_drafting_sequences", config.max_drafting_sequences));
  if (!(config.watermark >= 0 && config.watermark < 1)) {
    return invalid_argument("watermark must be in [0, 1), got {}.", config.watermark).with_param("watermark");
  }
  return {};
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config), cache_(cache_config(config)), shares_(config.tokens_per_priority_level) {
  QUIRE_CHECK(validate(config).ok());
}

Scheduler::~Scheduler() = default;

// ---- accept ----

int64_t Scheduler::max_total_tokens(int64_t num_prompt_tokens, const SamplingParams& params) const {
  if (params.max_tokens) {
    return std::min<int64_t>(num_prompt_tokens + *params.max_tokens, config_.max_model_len);
  }
  // As far as the pool reaches. The last token of an answer is never computed, so it needs no room in the pool.
  const int64_t sequences = params.use_beam_search ? params.num_beams() : 1;
  const auto fits = [&](int64_t tokens) {
    return cache_.most_blocks(tokens - 1, config_.max_num_batched_tokens) * sequences <= config_.num_blocks;
  };
  if (fits(config_.max_model_len)) return config_.max_model_len;
  int64_t low = 1;  // the largest that fits lies in [low, high)
  int64_t high = config_.max_model_len;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

Status Scheduler::check_fits(int64_t num_prompt_tokens, const SamplingParams& params) const {
  if (num_prompt_tokens < 1) {
    return invalid_argument("The prompt must contain at least one token.").with_param("prompt");
  }
  const bool samples = !params.max_tokens || *params.max_tokens > 0;
  if (num_prompt_tokens + (samples ? 1 : 0) > config_.max_model_len) {
    return invalid_argument(
               "The prompt has {} tokens, but the context of {} tokens leaves room for a prompt of "
               "at most {}. Shorten the prompt or raise the engine's max_model_len.",
               num_prompt_tokens, config_.max_model_len, config_.max_model_len - (samples ? 1 : 0))
        .with_param("prompt");
  }
  if (params.use_beam_search && params.num_beams() > config_.max_num_seqs) {
    return invalid_argument("{} beams were asked for, but at most {} sequences run at once (--max-num-seqs).",
                            params.num_beams(), config_.max_num_seqs)
        .with_param("beam_width");
  }
  const int64_t total = max_total_tokens(num_prompt_tokens, params);
  const int64_t sequences = params.use_beam_search ? params.num_beams() : 1;
  // The last token sampled is never computed.
  const int64_t needed =
      sequences * cache_.most_blocks(std::max(num_prompt_tokens, total - 1), config_.max_num_batched_tokens);
  if (needed > config_.num_blocks) {
    return invalid_argument(
               "The prompt of {} tokens with up to {} more needs {} KV cache blocks of {} tokens, "
               "but the whole cache has {}. Ask for fewer tokens or give the engine a larger "
               "cache.",
               num_prompt_tokens, std::max<int64_t>(total - num_prompt_tokens, 0), needed, config_.block_size,
               config_.num_blocks)
        .with_param(params.max_tokens ? "max_tokens" : "prompt");
  }
  return {};
}

Sequence& Scheduler::create(const SequenceRequest& request, SequenceId id, const ShareCharge& charge) {
  auto [place, is_new] = sequences_.try_emplace(id);
  QUIRE_CHECK_MSG(is_new, fmt::format("sequence {} exists already", id));
  place->second = std::make_unique<Sequence>();
  Sequence& sequence = *place->second;
  sequence.id = id;
  sequence.tag = charge.tag;
  sequence.charge = charge;
  sequence.host_work = request.host_work;
  TenantLoad& tenant = tenants_[charge.tenant];
  ++tenant.live;
  tenant.weight = charge.weight;
  sequence.arrival = next_arrival_++;
  sequence.params = request.params;
  sequence.seed = request.seed;
  sequence.eos_ids = request.eos_ids;
  sequence.constraint = request.constraint;
  sequence.output_kind = request.output_kind;
  sequence.second_text = request.second_text;
  sequence.pooled_from = request.pooled_from;
  sequence.wants_every_row = request.wants_every_row;
  sequence.context = request.context;
  sequence.adapter = request.adapter;
  sequence.num_virtual_tokens = request.num_virtual_tokens;
  sequence.drafts.allowed = request.takes_drafts && !request.params->use_beam_search;
  sequence.drafts.prediction = request.prediction;
  sequence.waits_for_tokens = config_.num_stages > 1;
  sequence.tokens = request.prompt;
  sequence.num_prompt_tokens = static_cast<int32_t>(request.prompt.size());
  sequence.max_total_tokens = static_cast<int32_t>(max_total_tokens(sequence.num_prompt_tokens, *request.params));
  ++num_live_;
  return sequence;
}

Status Scheduler::add(SequenceRequest request) {
  QUIRE_CHECK(request.params != nullptr);
  QUIRE_RETURN_IF_ERROR(check_fits(static_cast<int64_t>(request.prompt.size()), *request.params));
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t max_output = max_total_tokens(num_prompt_tokens, *request.params) - num_prompt_tokens;
  if (request.params->use_beam_search && max_output > 0) {
    add_beams(request);
    return {};
  }
  // Forks share their source's prompt.
  Sequence& sequence = create(request, request.id,
                              shares_.arrived(request.tenant, request.weight, request.priority,
                                              request.fork_of ? 0 : num_prompt_tokens, max_output));
  const auto source = request.fork_of ? sequences_.find(*request.fork_of) : sequences_.end();
  // What was computed with another adapter is not to be shared.
  if (source == sequences_.end() || source->second->state == SequenceState::kEnded ||
      source->second->context.lora_id != request.context.lora_id) {
    wait(sequence);
    return {};
  }
  Sequence& parent = *source->second;
  QUIRE_CHECK(parent.num_prompt_tokens == sequence.num_prompt_tokens);
  sequence.fork_of = parent.id;
  sequence.state = SequenceState::kForking;
  if (parent.forks.empty()) fork_sources_.push_back(&parent);
  parent.forks.push_back(sequence.id);
  return {};
}

void Scheduler::add_beams(const SequenceRequest& request) {
  const SamplingParams& params = *request.params;
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  auto group = std::make_unique<BeamGroup>(BeamSearch::Config{
      .num_beams = params.num_beams(),
      .length_penalty = static_cast<double>(params.length_penalty),
      .early_stopping = params.early_stopping,
      .end_ids = params.stop_token_ids,
      .eos_ids = request.eos_ids,
      .min_tokens = params.min_tokens,
      .max_tokens = static_cast<int32_t>(max_total_tokens(num_prompt_tokens, params) - num_prompt_tokens),
      .logprobs = params.logprobs});
  const ShareCharge charge =
      shares_.arrived(request.tenant, request.weight, request.priority, num_prompt_tokens,
                      max_total_tokens(num_prompt_tokens, params) - num_prompt_tokens, params.num_beams());
  for (int32_t beam = 0; beam < params.num_beams(); ++beam) {
    Sequence& sequence = create(request, request.id + static_cast<SequenceId>(beam), charge);
    sequence.beams = group.get();
    sequence.beam = beam;
    sequence.state = beam == 0 ? SequenceState::kWaiting : SequenceState::kBeamUnborn;
    group->members.push_back(&sequence);
  }
  group->num_unborn = params.num_beams() - 1;
  group->candidates.resize(group->members.size());
  wait(*group->members.front());
  beam_groups_.emplace(request.id, std::move(group));
}

void Scheduler::wait(Sequence& sequence) {
  waits_for_disk_ = false;
  waiting_.insert(&sequence);
  tenants_.at(sequence.charge.tenant).waiting.insert(&sequence);
}

// ---- end ----

bool Scheduler::cancel(SequenceId id) {
  const auto place = sequences_.find(id);
  if (place == sequences_.end() || place->second->state == SequenceState::kEnded) return false;
  Sequence& sequence = *place->second;
  if (sequence.beams != nullptr) {
    end_beams(*sequence.beams);
  } else {
    end(sequence);
  }
  return true;
}

void Scheduler::leave_queues(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) {
    running_.erase(std::ranges::lower_bound(running_, &sequence, ServedBefore()));
    const auto adapter = running_adapters_.find(sequence.context.lora_id);
    if (adapter != running_adapters_.end() && --adapter->second == 0) running_adapters_.erase(adapter);
    BeamGroup* group = sequence.beams;
    if (group != nullptr && --group->num_running == 0) num_unborn_beams_ -= group->num_unborn;
  } else if (sequence.state == SequenceState::kWaiting) {
    waiting_.erase(&sequence);
    tenants_.at(sequence.charge.tenant).waiting.erase(&sequence);
    if (sequence.blocks.swapped_out()) --num_swapped_;
    if (matched_ == &sequence) forget_match();
  } else if (sequence.state == SequenceState::kFetching) {
    std::erase(fetching_, &sequence);
  }
}

// The sequence may be gone afterwards.
void Scheduler::end(Sequence& sequence) {
  leave_queues(sequence);
  sequence.state = SequenceState::kEnded;
  --num_live_;
  TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  if (--tenant.live == 0) {  // who comes back was not kept waiting meanwhile
    tenant.finds_no_room = tenant.turned_away = false;
    tenant.tokens = tenant.rows = {};
  }
  if (sequence.known_to_runner) retired_.push_back(sequence.id);
  if (sequence.beams == nullptr) {
    shares_.ended(sequence.charge, sequence.num_output_tokens());
  } else if (sequence.beams->members.front() == &sequence) {
    shares_.ended(sequence.charge, sequence.beams->num_output_tokens);
  }
  if (!sequence.forks.empty()) wake_forks(sequence);
  if (proposer_ != nullptr && sequence.drafts.allowed) proposer_->ended(draft_text(sequence));
  drop_if_idle(sequence);
}

void Scheduler::end_beams(BeamGroup& group) {
  const SequenceId first = group.members.front()->id;
  for (Sequence* member : group.members) end(*member);
  beam_groups_.erase(first);
}

void Scheduler::drop_if_idle(Sequence& sequence) {
  if (sequence.plans_in_flight > 0) return;
  cache_.release(sequence.blocks);
  sequences_.erase(sequence.id);
}

// ---- looking in ----

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = static_cast<int32_t>(num_live_) - stats.running;
  stats.swapped = num_swapped_;
  stats.blocks_total = cache_.pool().num_blocks();
  stats.blocks_used = cache_.pool().num_used();
  stats.blocks_cached = cache_.pool().num_cached();
  stats.swap_slots_used = cache_.num_swap_slots_used();
  stats.swap_slots_total = config_.num_swap_blocks;
  stats.adapters_running = static_cast<int32_t>(running_adapters_.size());
  stats.preemptions = preemptions_;
  stats.swaps = swaps_;
  stats.scheduled_tokens = scheduled_tokens_;
  stats.prefix_query_tokens = cache_.statistics().query_tokens;
  stats.prefix_hit_tokens = cache_.statistics().hit_tokens;
  stats.prefix_walked_blocks = cache_.statistics().walked_blocks;
  stats.drafts = num_drafts_;
  stats.draft_tokens = num_draft_tokens_;
  stats.accepted_draft_tokens = num_accepted_;
  stats.accepted_at = accepted_at_;
  stats.fetching = static_cast<int32_t>(fetching_.size());
  stats.offload_slots_total = config_.num_offload_slots;
  stats.offload = cache_.tiers().statistics();
  return stats;
}

int64_t Scheduler::held_tokens() const {
  int64_t sum = 0;
  for (const Sequence* sequence : running_) sum += sequence->num_computed_tokens;
  return sum;
}

const kv::SequenceBlocks* Scheduler::blocks_of(SequenceId id) const {
  const auto place = sequences_.find(id);
  return place == sequences_.end() ? nullptr : &place->second->blocks;
}

void Scheduler::check_invariants() const {
  std::vector<int32_t> holders(static_cast<size_t>(config_.num_blocks), 0);
  size_t num_ended = 0;
  size_t num_aside = 0;  // forking, unborn, waiting for the disk
  int32_t num_swapped = 0;
  for (const auto& [id, sequence] : sequences_) {
    QUIRE_CHECK(sequence->id == id);
    QUIRE_CHECK(sequence->num_computed_tokens <= sequence->num_known_tokens());
    QUIRE_CHECK(sequence->num_known_tokens() <= sequence->max_total_tokens);
    QUIRE_CHECK(sequence->num_computed_tokens <= sequence->max_computed_tokens());
    QUIRE_CHECK(sequence->drafts.num_in_flight == 0 || sequence->plans_in_flight == 1);
    const int32_t num_covered = sequence->num_computed_tokens + sequence->drafts.num_in_flight;
    QUIRE_CHECK_MSG(
        sequence->blocks.num_blocks() == kv::blocks_for_tokens(num_covered, config_.block_size),
        fmt::format("sequence {} has {} blocks for {} tokens", id, sequence->blocks.num_blocks(), num_covered));
    cache_.count_holders(sequence->blocks, holders);
    if (sequence->blocks.swapped_out()) ++num_swapped;
    if (sequence->state == SequenceState::kEnded) {
      ++num_ended;
      QUIRE_CHECK(sequence->plans_in_flight > 0);
    } else if (sequence->state == SequenceState::kForking || sequence->state == SequenceState::kBeamUnborn ||
               sequence->state == SequenceState::kFetching) {
      ++num_aside;
      QUIRE_CHECK(sequence->blocks.empty());
    }
  }
  cache_.check_invariants(std::move(holders));
  QUIRE_CHECK(num_swapped == num_swapped_);
  for (const Sequence* one : fetching_) QUIRE_CHECK(one->state == SequenceState::kFetching && !one->fetches.empty());
  QUIRE_CHECK(config_.max_adapters == 0 || static_cast<int32_t>(running_adapters_.size()) <= config_.max_adapters);
  for (const auto& [adapter, count] : running_adapters_) {
    QUIRE_CHECK(count ==
                std::ranges::count(running_, adapter, [](const Sequence* one) { return one->context.lora_id; }));
  }
  QUIRE_CHECK(running_.size() + waiting_.size() + num_ended + num_aside == sequences_.size());
  QUIRE_CHECK(sequences_.size() - num_ended == static_cast<size_t>(num_live_));
  QUIRE_CHECK(running_.size() + static_cast<size_t>(num_unborn_beams_) <=
              static_cast<size_t>(kMostSeats * config_.max_num_seqs));
  for (size_t i = 0; i < running_.size(); ++i) {
    QUIRE_CHECK(running_[i]->state == SequenceState::kRunning && !running_[i]->blocks.swapped_out());
    QUIRE_CHECK(i == 0 || running_[i - 1]->goes_before(*running_[i]));
  }
  for (const Sequence* sequence : waiting_) {
    QUIRE_CHECK(sequence->state == SequenceState::kWaiting && sequence->plans_in_flight == 0);
    QUIRE_CHECK(sequence->blocks.empty() || sequence->blocks.swapped_out());
  }
}

}  // namespace quire::sched
