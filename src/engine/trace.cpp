#include "engine/trace.h"

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/hashing.h"

namespace quire::engine {
namespace {
namespace json = boost::json;

template <typename Values>
json::array array_of(const Values& values) {
  return json::array(values.begin(), values.end());
}

json::object as_json(const sched::SchedulerConfig& c) {
  return {{"max_num_seqs", c.max_num_seqs},
          {"max_num_batched_tokens", c.max_num_batched_tokens},
          {"max_model_len", c.max_model_len},
          {"num_blocks", c.num_blocks},
          {"block_size", c.block_size},
          {"windows", array_of(c.windows)},
          {"keeps_states", c.keeps_states},
          {"prefix_caching", c.prefix_caching},
          {"num_swap_blocks", c.num_swap_blocks},
          {"preemption_mode", static_cast<int>(c.preemption_mode)},
          {"long_prefill_token_threshold", c.long_prefill_token_threshold},
          {"max_num_partial_prefills", c.max_num_partial_prefills},
          {"watermark", c.watermark},
          {"tokens_per_priority_level", c.tokens_per_priority_level},
          {"max_plans_in_flight", c.max_plans_in_flight},
          {"num_stages", c.num_stages},
          {"least_stage_tokens", c.least_stage_tokens},
          {"max_adapters", c.max_adapters},
          {"tokens_per_position", c.tokens_per_position},
          {"max_draft_tokens", c.max_draft_tokens}};
}

sched::SchedulerConfig config_from(const json::object& o) {
  sched::SchedulerConfig c;
  c.max_num_seqs = o.at("max_num_seqs").to_number<int32_t>();
  c.max_num_batched_tokens = o.at("max_num_batched_tokens").to_number<int32_t>();
  c.max_model_len = o.at("max_model_len").to_number<int32_t>();
  c.num_blocks = o.at("num_blocks").to_number<int32_t>();
  c.block_size = o.at("block_size").to_number<int32_t>();
  c.windows = json::value_to<std::vector<int32_t>>(o.at("windows"));
  if (const json::value* states = o.if_contains("keeps_states")) c.keeps_states = states->as_bool();
  c.prefix_caching = o.at("prefix_caching").as_bool();
  c.num_swap_blocks = o.at("num_swap_blocks").to_number<int32_t>();
  c.preemption_mode = static_cast<sched::PreemptionMode>(o.at("preemption_mode").to_number<int>());
  c.long_prefill_token_threshold = o.at("long_prefill_token_threshold").to_number<int32_t>();
  c.max_num_partial_prefills = o.at("max_num_partial_prefills").to_number<int32_t>();
  c.watermark = o.at("watermark").to_number<double>();
  c.tokens_per_priority_level = o.at("tokens_per_priority_level").to_number<double>();
  c.max_plans_in_flight = o.at("max_plans_in_flight").to_number<int32_t>();
  if (const json::value* stages = o.if_contains("num_stages")) c.num_stages = stages->to_number<int32_t>();
  if (const json::value* least = o.if_contains("least_stage_tokens"))
    c.least_stage_tokens = least->to_number<int32_t>();
  if (const json::value* adapters = o.if_contains("max_adapters")) c.max_adapters = adapters->to_number<int32_t>();
  if (const json::value* cost = o.if_contains("tokens_per_position")) c.tokens_per_position = cost->to_number<double>();
  if (const json::value* most = o.if_contains("max_draft_tokens")) c.max_draft_tokens = most->to_number<int32_t>();
  // How many were worth their cost was measured: the plans say it.
  c.drafts_by_gain = false;
  return c;
}

template <typename T>
json::value optional_value(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

// The fields that scheduling and committing look at.
json::object as_json(const SamplingParams& p) {
  json::object o = {{"n", p.n},
                    {"best_of", optional_value(p.best_of)},
                    {"max_tokens", optional_value(p.max_tokens)},
                    {"min_tokens", p.min_tokens},
                    {"stop_token_ids", array_of(p.stop_token_ids)},
                    {"logprobs", optional_value(p.logprobs)},
                    {"prompt_logprobs", optional_value(p.prompt_logprobs)}};
  if (p.use_beam_search) {
    o["beam_width"] = p.num_beams();
    o["length_penalty"] = p.length_penalty;
    o["early_stopping"] = static_cast<int>(p.early_stopping);
  }
  if (p.repetition_detection) {
    o["repetition"] = json::array{p.repetition_detection->max_pattern_size, p.repetition_detection->min_pattern_size,
                                  p.repetition_detection->min_count};
  }
  return o;
}

std::optional<int32_t> optional_int(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  return value.to_number<int32_t>();
}

SamplingParams params_from(const json::object& o) {
  SamplingParams p;
  p.n = o.at("n").to_number<int32_t>();
  p.best_of = optional_int(o.at("best_of"));
  p.max_tokens = optional_int(o.at("max_tokens"));
  p.min_tokens = o.at("min_tokens").to_number<int32_t>();
  p.stop_token_ids = json::value_to<std::vector<TokenId>>(o.at("stop_token_ids"));
  p.logprobs = optional_int(o.at("logprobs"));
  p.prompt_logprobs = optional_int(o.at("prompt_logprobs"));
  if (const json::value* width = o.if_contains("beam_width")) {
    p.use_beam_search = true;
    p.beam_width = width->to_number<int32_t>();
    p.length_penalty = o.at("length_penalty").to_number<float>();
    p.early_stopping = static_cast<EarlyStopping>(o.at("early_stopping").to_number<int>());
  }
  if (const json::value* repetition = o.if_contains("repetition")) {
    const json::array& list = repetition->as_array();
    p.repetition_detection = RepetitionDetection{.max_pattern_size = list.at(0).to_number<int32_t>(),
                                                 .min_pattern_size = list.at(1).to_number<int32_t>(),
                                                 .min_count = list.at(2).to_number<int32_t>()};
  }
  return p;
}

json::object as_json(const sched::SequenceRequest& r) {
  return {{"id", r.id},
          {"prompt", array_of(r.prompt)},
          {"params", as_json(*r.params)},
          {"seed", r.seed},
          {"eos_ids", array_of(r.eos_ids)},
          {"priority", r.priority},
          {"tenant", r.tenant},
          {"weight", r.weight},
          {"host_work", r.host_work},
          {"salt", r.context.salt},
          {"lora_id", r.context.lora_id},
          {"is_long", r.context.is_long},
          {"output_kind", static_cast<int>(r.output_kind)},
          {"second_text", r.second_text},
          {"pooled_from", r.pooled_from},
          {"wants_every_row", r.wants_every_row},
          {"fork_of", optional_value(r.fork_of)}};
}

sched::SequenceRequest request_from(const json::object& o) {
  sched::SequenceRequest r;
  r.id = o.at("id").to_number<SequenceId>();
  r.prompt = json::value_to<std::vector<TokenId>>(o.at("prompt"));
  r.params = std::make_shared<const SamplingParams>(params_from(o.at("params").as_object()));
  r.seed = o.at("seed").to_number<uint64_t>();
  r.eos_ids = json::value_to<std::vector<TokenId>>(o.at("eos_ids"));
  r.priority = o.at("priority").to_number<int32_t>();
  r.tenant = o.at("tenant").to_number<int32_t>();
  r.weight = o.at("weight").to_number<double>();
  r.host_work = o.at("host_work").to_number<int64_t>();
  if (const json::value* kind = o.if_contains("output_kind")) {
    r.output_kind = static_cast<OutputKind>(kind->to_number<int>());
    r.second_text = o.at("second_text").to_number<int32_t>();
    r.wants_every_row = o.at("wants_every_row").as_bool();
    if (const json::value* from = o.if_contains("pooled_from")) r.pooled_from = from->to_number<int32_t>();
  }
  r.context.salt = json::value_to<std::string>(o.at("salt"));
  r.context.lora_id = o.at("lora_id").to_number<int32_t>();
  if (const json::value* is_long = o.if_contains("is_long")) r.context.is_long = is_long->as_bool();
  if (!o.at("fork_of").is_null()) r.fork_of = o.at("fork_of").to_number<SequenceId>();
  return r;
}

template <typename T>
uint64_t digest(const std::vector<T>& values, uint64_t seed) {
  return hash_bytes(values.data(), values.size() * sizeof(T), seed);
}

// Of all that a runner would do differently.
uint64_t digest(const StepPlan& plan) {
  uint64_t d = plan.step;
  for (const BeamMove& move : plan.moves) {
    d = digest(std::vector<uint64_t>{move.id, move.source, static_cast<uint64_t>(move.token)}, d);
  }
  d = digest(plan.retired, d);
  for (const NewSequence& added : plan.added) {
    d = digest(added.output, digest(added.prompt, d ^ added.id ^ (static_cast<uint64_t>(added.adapter) << 32)));
  }
  d = digest(plan.copies, digest(plan.swap_in, digest(plan.swap_out, d)));
  for (const ScheduledSequence& run : plan.scheduled) {
    const std::vector<uint64_t> numbers = {run.id, static_cast<uint64_t>(run.num_computed_tokens),
                                           static_cast<uint64_t>(run.num_new_tokens), run.samples ? 1u : 0u,
                                           static_cast<uint64_t>(run.num_candidates)};
    d = digest(numbers, d);
    if (run.num_draft_tokens > 0) d = digest(std::vector<int32_t>{run.num_draft_tokens}, d);
  }
  if (!plan.draft_tokens.empty()) d = digest(plan.draft_tokens, d);
  return digest(plan.table_blocks, digest(plan.table_changes, d));
}

json::object as_json(const StepPlan& plan) {
  json::array runs;
  for (const ScheduledSequence& run : plan.scheduled) {
    json::array numbers = {run.id, run.num_computed_tokens, run.num_new_tokens};
    if (run.num_draft_tokens > 0) numbers.push_back(run.num_draft_tokens);
    runs.push_back(std::move(numbers));
  }
  json::object o = {
      {"step", plan.step}, {"digest", fmt::format("{:016x}", digest(plan))}, {"scheduled", std::move(runs)}};
  if (plan.draft_tokens.empty()) return o;
  json::array drafts;
  std::span<const TokenId> left = plan.draft_tokens;
  for (const ScheduledSequence& run : plan.scheduled) {
    if (run.num_draft_tokens == 0) continue;
    const auto count = static_cast<size_t>(run.num_draft_tokens);
    drafts.push_back(json::array{run.id, array_of(left.first(count))});
    left = left.subspan(count);
  }
  o["drafts"] = std::move(drafts);
  return o;
}

json::object as_json(const StepResult& result) {
  json::array sequences;
  for (const SequenceResult& one : result.sequences) {
    json::object o = {{"id", one.id}};
    if (!one.tokens.empty()) o["tokens"] = array_of(one.tokens);
    if (!one.prompt_logprobs.empty()) o["prompt_logprobs"] = one.prompt_logprobs.size();
    if (!one.error.ok()) o["error"] = one.error.message();
    if (!one.candidates.empty()) {
      json::array candidates;
      for (const TokenLogprob& c : one.candidates) candidates.push_back(json::array{c.id, c.logprob});
      o["candidates"] = std::move(candidates);
    }
    sequences.push_back(std::move(o));
  }
  return {{"step", result.step}, {"sequences", std::move(sequences)}};
}

StepResult result_from(const json::object& o) {
  StepResult result;
  result.step = o.at("step").to_number<uint64_t>();
  for (const json::value& value : o.at("sequences").as_array()) {
    const json::object& one = value.as_object();
    SequenceResult& sequence = result.sequences.emplace_back();
    sequence.id = one.at("id").to_number<SequenceId>();
    if (const auto* tokens = one.if_contains("tokens")) sequence.tokens = json::value_to<std::vector<TokenId>>(*tokens);
    if (const auto* count = one.if_contains("prompt_logprobs")) {
      sequence.prompt_logprobs.resize(count->to_number<size_t>());
    }
    if (const auto* error = one.if_contains("error")) {
      sequence.error = internal_error("{}", std::string_view(error->as_string()));
    }
    if (const auto* candidates = one.if_contains("candidates")) {
      for (const json::value& c : candidates->as_array()) {
        sequence.candidates.push_back({c.at(0).to_number<TokenId>(), c.at(1).to_number<float>(), 0});
      }
    }
  }
  return result;
}

// Proposes what a recorded plan has.
class RecordedDrafts final : public DraftProposer {
 public:
  void take(const json::object& plan) {
    drafts_.clear();
    const json::value* drafts = plan.if_contains("drafts");
    if (drafts == nullptr) return;
    for (const json::value& one : drafts->as_array()) {
      drafts_[one.at(0).to_number<SequenceId>()] = json::value_to<std::vector<TokenId>>(one.at(1));
    }
  }
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    const auto found = drafts_.find(text.id);
    if (found == drafts_.end()) return;
    proposal.tokens = found->second;
    if (proposal.tokens.size() > static_cast<size_t>(most)) proposal.tokens.resize(static_cast<size_t>(most));
    proposal.agreement.assign(proposal.tokens.size(), 1.0f);
  }
  void ended(const DraftText& /*text*/) override {}

 private:
  std::map<SequenceId, std::vector<TokenId>> drafts_;
};

// A scheduler being taken through a trace.
class Replay {
 public:
  // False: a plan differs, and what follows would compare apples with pears.
  bool take(const json::object& line) {
    const auto& [key, value] = *line.begin();
    if (key == "config") {
      const sched::SchedulerConfig config = config_from(value.as_object());
      if (const Status valid = validate(config); !valid.ok()) throw std::runtime_error(valid.message());
      scheduler_ = std::make_unique<sched::Scheduler>(config);
      scheduler_->set_draft_proposer(&drafts_);
      return true;
    }
    if (scheduler_ == nullptr) throw std::runtime_error("the first line must be the config");
    if (key == "add") {
      ++report.num_requests;
      if (const Status added = scheduler_->add(request_from(value.as_object())); !added.ok()) {
        throw std::runtime_error(added.message());
      }
    } else if (key == "cancel") {
      scheduler_->cancel(value.to_number<SequenceId>());
    } else if (key == "reset") {
      scheduler_->reset_prefix_cache();
    } else if (key == "costs") {
      scheduler_->set_preemption_costs(
          {value.at(0).to_number<double>(), value.at(1).to_number<double>(), value.at(2).to_number<double>()});
    } else if (key == "plan") {
      return plan(value.as_object());
    } else if (key == "result") {
      commit(result_from(value.as_object()));
    } else {
      throw std::runtime_error("unknown key \"" + std::string(key) + "\"");
    }
    return true;
  }

  ReplayReport finish() {
    if (scheduler_ != nullptr) report.last = scheduler_->stats();
    return std::move(report);
  }

  ReplayReport report;

 private:
  bool plan(const json::object& recorded) {
    StepPlan& mine = plans_.emplace_back();
    drafts_.take(recorded);
    const bool planned = scheduler_->schedule(mine);
    scheduler_->check_invariants();
    ++report.num_steps;
    report.num_tokens += mine.num_tokens;
    if (planned && recorded.at("digest").as_string() == fmt::format("{:016x}", digest(mine))) return true;
    report.difference = "step " + json::serialize(recorded.at("step")) + ": recorded " + json::serialize(recorded) +
                        ", here " + (planned ? json::serialize(as_json(mine)) : "nothing to schedule");
    return false;
  }

  void commit(StepResult result) {
    if (plans_.empty()) throw std::runtime_error("a result without a plan");
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    if (result.step != plan.step || result.sequences.size() != plan.scheduled.size()) {
      throw std::runtime_error("a result of another plan");
    }
    for (size_t i = 0; i < plan.scheduled.size(); ++i) {
      const ScheduledSequence& run = plan.scheduled[i];
      const SequenceResult& one = result.sequences[i];
      const bool gives =
          run.num_candidates > 0
              ? !one.candidates.empty()
              : !one.tokens.empty() && one.tokens.size() <= static_cast<size_t>(run.num_draft_tokens) + 1;
      if (one.id != run.id || (run.samples && one.error.ok() && !gives)) {
        throw std::runtime_error("a result without what its plan asked for");
      }
    }
    for (const SequenceResult& one : result.sequences) report.num_sampled += static_cast<int64_t>(one.tokens.size());
    scheduler_->commit(plan, std::move(result));
    scheduler_->check_invariants();
  }

  RecordedDrafts drafts_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::deque<StepPlan> plans_;
};

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::open(const std::string& path, const sched::SchedulerConfig& config) {
  std::unique_ptr<TraceWriter> writer(new TraceWriter());
  writer->file_.open(path, std::ios::trunc);
  if (!writer->file_) {
    return invalid_argument("trace_file: cannot write \"{}\": {}", path, std::strerror(errno)).with_param("trace_file");
  }
  writer->write("config", as_json(config));
  return writer;
}

void TraceWriter::write(const char* key, json::value value) {
  file_ << json::serialize(json::object{{key, std::move(value)}}) << '\n';
}

void TraceWriter::add(const sched::SequenceRequest& request) {
  write("add", as_json(request));
}
void TraceWriter::cancel(SequenceId id) {
  write("cancel", id);
}
void TraceWriter::reset_prefix_cache() {
  write("reset", true);
}
void TraceWriter::costs(const sched::PreemptionCosts& costs) {
  write("costs",
        json::array{costs.seconds_per_recomputed_token, costs.seconds_per_swapped_block, costs.attention_factor});
}
void TraceWriter::planned(const StepPlan& plan) {
  write("plan", as_json(plan));
}
void TraceWriter::committed(const StepResult& result) {
  write("result", as_json(result));
  file_.flush();  // an incident may end the process
}

Result<ReplayReport> replay(std::istream& trace) {
  Replay replayed;
  std::string text;
  if (trace.peek() == std::istream::traits_type::eof()) return data_loss("nothing is in the trace");
  for (int64_t number = 1; std::getline(trace, text); ++number) {
    const bool last = trace.peek() == std::istream::traits_type::eof();
    try {
      const json::value line = json::parse(text);
      if (!line.is_object() || line.as_object().size() != 1)
        throw std::runtime_error("expected an object with one key");
      if (!replayed.take(line.as_object())) break;
    } catch (const std::exception& error) {
      if (last && number > 1) break;  // the writer was cut off
      return data_loss("line {} of the trace: {}", number, error.what());
    }
  }
  return replayed.finish();
}

}  // namespace quire::engine
