// The real scheduler with a cost model in place of a model: what a policy does to throughput, latency and memory, in
// virtual time.
//
//   quire_simulate [--requests N] [--rates 0.2,0.4,0] [--policies quire,prefill-first,static] [--lengths FILE]
//                  [--csv FILE] [--timeline FILE] [--seed S] [--blocks N] [--max-num-seqs N] ...
//                  [--stages P] [--ranks N] [--seconds-per-hop H] [--seconds-per-sum S] ...
//   quire_simulate --step-cost [--csv FILE]     wall time of one schedule() and commit()
//
// A step takes a + b * tokens + c * (pairs of a token and one that it attends to) seconds. The defaults are this
// project's figures for SmolLM2-135M on two cores (bench/results): a step of one row 7.8 ms, 2.2 ms for each row more,
// 10 us a layer for a row that attends to 256 tokens.
//
// With --stages and --ranks (policy quire alone) the model is divided: each stage takes its part of that time, divided
// by the ranks, and --sums of them (of all stages; two a layer) S + T seconds a token each (--seconds-per-sum-token T);
// between stages a step is on its way for H + G seconds a token (--seconds-per-hop-token G), while the stage that sent
// it goes on. Stages are at work on different steps, as the engine's are. --name N: what the report calls it.
//
// Requests arrive as a Poisson process (rate in requests a second; 0: all at the beginning) with lengths drawn from
// FILE, lines of "prompt answer". Every policy gets the same trace and the same pool:
//   quire          src/sched, prefix caching on (the prompts have nothing in common)
//   prefill-first  a step is either prompts or decodes, and prompts go first while they find room: waiting prompts
//                  stall all that run; the last is recomputed when blocks run out (as vLLM's first scheduler did)
//   static         room for the longest request is reserved; a batch is filled once and runs to its longest answer;
//                  rows that have ended are still computed. Prompts are not padded, and tokens are delivered when made.
//
// KV utilisation: over all steps while requests wait, the sum of the tokens whose keys and values are held by running
// sequences, over the sum of the slots of the blocks taken (static: of the slots reserved). KV occupancy: blocks taken
// over blocks there are. TTFT: arrival to first token. TPOT: first to last token over tokens less one. ITL: between two
// tokens of one answer.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "sched/scheduler.h"

namespace quire::sched {
namespace {

using Options = std::map<std::string, std::string>;

struct CostModel {
  double per_step = 5.6e-3;
  double per_token = 2.2e-3;
  double per_pair = 1.2e-6;

  // How the model is divided.
  int32_t stages = 1;
  int32_t ranks = 1;  // of a stage
  double sums = 0;    // between the ranks, of all stages
  double per_sum = 0;
  double per_sum_token = 0;
  double per_hop = 0;
  double per_hop_token = 0;

  double seconds(int64_t tokens, int64_t pairs) const {
    return per_step + per_token * static_cast<double>(tokens) + per_pair * static_cast<double>(pairs);
  }
  double stage_seconds(int64_t tokens, int64_t pairs) const {
    const double exchange = ranks > 1 ? sums * (per_sum + per_sum_token * static_cast<double>(tokens)) : 0;
    return (seconds(tokens, pairs) / ranks + exchange) / stages;
  }
  double hop_seconds(int64_t tokens) const { return per_hop + per_hop_token * static_cast<double>(tokens); }
};

// Pairs of a run of `count` tokens behind `before` others.
int64_t pairs(int64_t before, int64_t count) {
  return count * before + count * (count + 1) / 2;
}

struct Request {
  double arrival = 0;
  int32_t prompt = 0;
  int32_t answer = 0;
  // Filled in by the policy.
  double first = -1;
  double last = -1;
  int32_t delivered = 0;
};

// Of positive values, in bins 1 % apart: tens of millions of them in little memory.
class Histogram {
 public:
  void add(double value) {
    const auto bin = static_cast<size_t>(std::clamp(std::log(std::max(value, 1e-6) / 1e-6) / kStep, 0.0, kBins - 1.0));
    ++counts_[bin];
    ++total_;
  }
  double percentile(double share) const {
    const auto wanted = static_cast<int64_t>(share * static_cast<double>(total_));
    int64_t seen = 0;
    for (size_t bin = 0; bin < counts_.size(); ++bin) {
      seen += counts_[bin];
      if (seen > wanted) return 1e-6 * std::exp((static_cast<double>(bin) + 0.5) * kStep);
    }
    return 0;
  }

 private:
  static constexpr double kStep = 0.01;
  static constexpr double kBins = 3000;
  std::vector<int64_t> counts_ = std::vector<int64_t>(static_cast<size_t>(kBins));
  int64_t total_ = 0;
};

struct Report {
  std::string policy;
  double rate = 0;
  double seconds = 0;  // virtual
  int64_t steps = 0;
  int64_t computed_tokens = 0;
  int64_t preemptions = 0;
  double held_tokens = 0;  // sums over the steps in which requests wait
  double taken_slots = 0;
  double all_slots = 0;
  double wall_seconds = 0;
  Histogram between_tokens;
  std::vector<std::array<double, 3>> timeline;  // time, utilisation, occupancy
};

struct Simulation {
  SchedulerConfig config;
  CostModel cost;
  std::vector<Request> requests;  // by arrival
  bool keeps_timeline = false;
  Report report;

  int64_t slots() const { return int64_t{config.num_blocks} * config.block_size; }

  void deliver(Request& request, double now) {
    if (request.delivered++ == 0) {
      request.first = now;
    } else {
      report.between_tokens.add(now - request.last);
    }
    request.last = now;
  }
  void account(double now, int64_t held, int64_t taken, bool saturated) {
    ++report.steps;
    if (!saturated) return;
    report.held_tokens += static_cast<double>(held);
    report.taken_slots += static_cast<double>(taken);
    report.all_slots += static_cast<double>(slots());
    if (!keeps_timeline || report.steps % 100 != 0 || taken == 0) return;
    report.timeline.push_back({now, static_cast<double>(held) / static_cast<double>(taken),
                               static_cast<double>(taken) / static_cast<double>(slots())});
  }

  void run_quire(unsigned seed);
  void run_prefill_first();
  void run_static(int32_t reserved);
};

// ---- policies ----

void Simulation::run_quire(unsigned seed) {
  Scheduler scheduler(config);
  std::mt19937 random(seed);
  size_t next = 0;
  double now = 0;
  StepPlan plan;
  struct Step {
    PlannedStep plan;
    StepResult result;
    double done = 0;
  };
  std::deque<Step> under_way;
  std::vector<double> stage_free(static_cast<size_t>(cost.stages));
  while (next < requests.size() || scheduler.has_work()) {
    for (; next < requests.size() && requests[next].arrival <= now; ++next) {
      SequenceRequest asked;
      asked.id = next;
      for (int32_t i = 0; i < requests[next].prompt; ++i) asked.prompt.push_back(static_cast<TokenId>(random() >> 1));
      SamplingParams params;
      params.max_tokens = requests[next].answer;
      asked.params = std::make_shared<const SamplingParams>(std::move(params));
      const Status status = scheduler.add(std::move(asked));
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
        std::exit(1);
      }
    }
    while (scheduler.schedule(plan)) {
      const SchedulerStats stats = scheduler.stats();
      account(now, scheduler.held_tokens(), int64_t{stats.blocks_used} * config.block_size, stats.waiting > 0);
      Step& step = under_way.emplace_back();
      step.plan.note(plan);
      step.result.step = plan.step;
      step.result.sequences.resize(plan.scheduled.size());
      int64_t attended = 0;
      for (size_t i = 0; i < plan.scheduled.size(); ++i) {
        const ScheduledSequence& run = plan.scheduled[i];
        attended += pairs(run.num_computed_tokens, run.num_new_tokens);
        step.result.sequences[i].id = run.id;
        if (run.samples) step.result.sequences[i].tokens = {static_cast<TokenId>(random() >> 1)};
      }
      step.done = now;
      for (size_t stage = 0; stage < stage_free.size(); ++stage) {
        if (stage > 0) step.done += cost.hop_seconds(plan.num_tokens);
        step.done = std::max(step.done, stage_free[stage]) + cost.stage_seconds(plan.num_tokens, attended);
        stage_free[stage] = step.done;
      }
    }
    const bool has_room = static_cast<int32_t>(under_way.size()) < config.max_plans_in_flight;
    const bool one_comes =
        next < requests.size() && (under_way.empty() || requests[next].arrival < under_way.front().done);
    if (has_room && one_comes) {
      now = requests[next].arrival;
      continue;
    }
    now = under_way.front().done;
    for (const CommitEvent& event : scheduler.commit(under_way.front().plan, std::move(under_way.front().result)))
      deliver(requests[event.id], now);
    under_way.pop_front();
  }
  report.seconds = now;
  report.computed_tokens = static_cast<int64_t>(scheduler.stats().scheduled_tokens);
  report.preemptions = static_cast<int64_t>(scheduler.stats().preemptions);
}

void Simulation::run_prefill_first() {
  struct Running {
    size_t request;
    int64_t computed;
  };
  std::deque<size_t> waiting;  // preempted ones in front, with what they have delivered
  std::vector<Running> running;
  int64_t free = config.num_blocks;
  const auto blocks = [&](int64_t tokens) { return kv::blocks_for_tokens(tokens, config.block_size); };
  const auto watermark = static_cast<int64_t>(config.watermark * config.num_blocks);
  size_t next = 0;
  double now = 0;
  while (next < requests.size() || !waiting.empty() || !running.empty()) {
    for (; next < requests.size() && requests[next].arrival <= now; ++next) waiting.push_back(next);
    if (waiting.empty() && running.empty()) {
      now = requests[next].arrival;
      continue;
    }
    int64_t tokens = 0;
    int64_t attended = 0;
    const size_t before = running.size();
    while (!waiting.empty() && running.size() < static_cast<size_t>(config.max_num_seqs)) {
      const Request& request = requests[waiting.front()];
      const int64_t known = request.prompt + request.delivered;
      const bool fits = blocks(known) + (running.empty() ? 0 : watermark) <= free;
      if (!fits || (tokens > 0 && tokens + known > config.max_num_batched_tokens)) break;
      free -= blocks(known);
      tokens += known;
      attended += pairs(0, known);
      running.push_back({waiting.front(), known});
      waiting.pop_front();
    }
    size_t begin = before;
    if (tokens == 0) {
      begin = 0;
      for (size_t i = 0; i < running.size(); ++i) {
        if (running[i].computed % config.block_size == 0) {
          while (free == 0 && running.size() > i + 1) {  // the last gives way
            free += blocks(running.back().computed);
            waiting.push_front(running.back().request);
            running.pop_back();
            ++report.preemptions;
          }
          if (free == 0) {
            free += blocks(running[i].computed);
            waiting.push_front(running[i].request);
            running.pop_back();
            ++report.preemptions;
            break;
          }
          --free;
        }
        ++tokens;
        attended += pairs(running[i].computed++, 1);
      }
    }
    int64_t held = 0;
    for (const Running& one : running) held += one.computed;
    account(now, held, (config.num_blocks - free) * config.block_size, !waiting.empty());
    report.computed_tokens += tokens;
    now += cost.seconds(tokens, attended);
    for (size_t i = begin; i < running.size(); ++i) deliver(requests[running[i].request], now);
    std::erase_if(running, [&](const Running& one) {
      if (requests[one.request].delivered < requests[one.request].answer) return false;
      free += blocks(one.computed);
      return true;
    });
  }
  report.seconds = now;
}

void Simulation::run_static(int32_t reserved) {
  const auto width = static_cast<size_t>(std::min<int64_t>(config.max_num_seqs, slots() / reserved));
  size_t next = 0;
  double now = 0;
  while (next < requests.size()) {
    now = std::max(now, requests[next].arrival);
    const size_t first = next;
    int64_t tokens = 0;
    int64_t attended = 0;
    int32_t longest = 0;
    for (; next < requests.size() && next - first < width && requests[next].arrival <= now; ++next) {
      tokens += requests[next].prompt;
      attended += pairs(0, requests[next].prompt);
      longest = std::max(longest, requests[next].answer);
    }
    const auto rows = static_cast<int64_t>(next - first);
    for (int32_t step = 0; step < longest; ++step) {
      int64_t held = 0;
      for (size_t i = first; i < next; ++i) held += requests[i].prompt + std::min(step, requests[i].answer);
      account(now, held, rows * reserved, next < requests.size() && requests[next].arrival <= now);
      if (step > 0) {
        tokens = rows;
        attended = 0;
        for (size_t i = first; i < next; ++i) attended += requests[i].prompt + step;
      }
      report.computed_tokens += tokens;
      now += cost.seconds(tokens, attended);
      for (size_t i = first; i < next; ++i) {
        if (step < requests[i].answer) deliver(requests[i], now);
      }
    }
  }
  report.seconds = now;
}

// ---- traces and reports ----

std::string option(const Options& options, const std::string& name, const std::string& otherwise) {
  const auto place = options.find(name);
  return place == options.end() ? otherwise : place->second;
}

double number(const Options& options, const std::string& name, double otherwise) {
  const auto place = options.find(name);
  return place == options.end() ? otherwise : std::strtod(place->second.c_str(), nullptr);
}

std::vector<std::string> list(const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

std::vector<Request> draw_trace(const std::string& path, size_t count, double rate, unsigned seed) {
  std::ifstream file(path);
  std::vector<std::pair<int32_t, int32_t>> lengths;
  for (int32_t prompt = 0, answer = 0; file >> prompt >> answer;) lengths.emplace_back(prompt, answer);
  if (lengths.empty()) {
    std::fprintf(stderr, "No lengths in %s: expected lines of two numbers (--lengths FILE).\n", path.c_str());
    std::exit(1);
  }
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(rate > 0 ? rate : 1.0);
  std::uniform_int_distribution<size_t> which(0, lengths.size() - 1);
  std::vector<Request> requests(count);
  double now = 0;
  for (Request& request : requests) {
    std::tie(request.prompt, request.answer) = lengths[which(random)];
    if (rate > 0) request.arrival = now += gap(random);
  }
  return requests;
}

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto place = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(place));
  return values[place];
}

constexpr const char* kHeader =
    "policy,rate,requests,seconds,steps,answer_tokens_per_second,requests_per_second,computed_tokens,preemptions,"
    "kv_utilisation,kv_occupancy,ttft_p50,ttft_p95,ttft_p99,tpot_p50,tpot_p95,tpot_p99,itl_p50,itl_p95,itl_p99,"
    "e2e_p50,e2e_p95,e2e_p99,wall_seconds\n";

void print(const Simulation& simulation, std::FILE* csv) {
  const Report& report = simulation.report;
  std::vector<double> ttft, tpot, e2e;
  int64_t tokens = 0;
  for (const Request& request : simulation.requests) {
    tokens += request.delivered;
    ttft.push_back(request.first - request.arrival);
    e2e.push_back(request.last - request.arrival);
    if (request.answer > 1) tpot.push_back((request.last - request.first) / (request.answer - 1));
  }
  const auto count = static_cast<double>(simulation.requests.size());
  const double utilisation = report.taken_slots > 0 ? report.held_tokens / report.taken_slots : 0;
  const double occupancy = report.all_slots > 0 ? report.taken_slots / report.all_slots : 0;
  std::string row = report.policy;
  const auto add = [&row](double value) {
    char text[32];
    std::snprintf(text, sizeof text, ",%.6g", value);
    row += text;
  };
  for (const double value :
       {report.rate, count, report.seconds, static_cast<double>(report.steps),
        static_cast<double>(tokens) / report.seconds, count / report.seconds,
        static_cast<double>(report.computed_tokens), static_cast<double>(report.preemptions), utilisation, occupancy}) {
    add(value);
  }
  for (std::vector<double>* values : {&ttft, &tpot}) {
    for (const double share : {0.5, 0.95, 0.99}) add(percentile(*values, share));
  }
  for (const double share : {0.5, 0.95, 0.99}) add(report.between_tokens.percentile(share));
  for (const double share : {0.5, 0.95, 0.99}) add(percentile(e2e, share));
  add(report.wall_seconds);
  if (csv != nullptr) {
    std::fprintf(csv, "%s\n", row.c_str());
    std::fflush(csv);
  }
  std::printf(
      "%-13s rate %5.2f: %6.1f tok/s, %5.3f req/s, KV utilisation %5.2f %% (of %5.2f %% of the pool), preemptions "
      "%lld\n"
      "    TTFT p50 %8.2f p95 %8.2f p99 %8.2f s   TPOT p50 %6.3f p95 %6.3f p99 %6.3f s\n"
      "    ITL  p50 %8.3f p95 %8.3f p99 %8.3f s   E2E  p50 %6.1f p95 %6.1f p99 %6.1f s   (%.1f s of wall time)\n",
      report.policy.c_str(), report.rate, static_cast<double>(tokens) / report.seconds, count / report.seconds,
      100 * utilisation, 100 * occupancy, static_cast<long long>(report.preemptions), percentile(ttft, 0.5),
      percentile(ttft, 0.95), percentile(ttft, 0.99), percentile(tpot, 0.5), percentile(tpot, 0.95),
      percentile(tpot, 0.99), report.between_tokens.percentile(0.5), report.between_tokens.percentile(0.95),
      report.between_tokens.percentile(0.99), percentile(e2e, 0.5), percentile(e2e, 0.95), percentile(e2e, 0.99),
      report.wall_seconds);
  std::fflush(stdout);
}

SchedulerConfig simulated_config(const Options& options) {
  SchedulerConfig config;
  config.max_num_seqs = static_cast<int32_t>(number(options, "max-num-seqs", 128));
  config.max_num_batched_tokens = static_cast<int32_t>(number(options, "max-num-batched-tokens", 512));
  config.max_model_len = static_cast<int32_t>(number(options, "max-model-len", 2048));
  config.num_blocks = static_cast<int32_t>(number(options, "blocks", 1024));
  config.block_size = static_cast<int32_t>(number(options, "block-size", 16));
  config.num_stages = config.max_plans_in_flight = static_cast<int32_t>(number(options, "stages", 1));
  config.least_stage_tokens = static_cast<int32_t>(number(options, "least-stage-tokens", config.least_stage_tokens));
  return config;
}

int simulate(const Options& options, std::FILE* csv) {
  const auto count = static_cast<size_t>(number(options, "requests", 100000));
  const auto seed = static_cast<unsigned>(number(options, "seed", 1));
  if (csv != nullptr) std::fputs(kHeader, csv);
  std::ofstream timeline;
  if (options.contains("timeline")) {
    timeline.open(options.at("timeline"));
    timeline << "policy,seconds,kv_utilisation,kv_occupancy\n";
  }
  for (const std::string& rate : list(option(options, "rates", "0"))) {
    const bool divided = options.contains("stages") || options.contains("ranks");
    for (const std::string& policy :
         list(option(options, "policies", divided ? "quire" : "quire,prefill-first,static"))) {
      if (divided && policy != "quire") {
        std::fprintf(stderr, "--policies: %s divides no model; --stages and --ranks are of quire.\n", policy.c_str());
        return 1;
      }
      Simulation simulation;
      simulation.config = simulated_config(options);
      simulation.cost.per_step = number(options, "seconds-per-step", simulation.cost.per_step);
      simulation.cost.per_token = number(options, "seconds-per-token", simulation.cost.per_token);
      simulation.cost.per_pair = number(options, "seconds-per-pair", simulation.cost.per_pair);
      simulation.cost.stages = static_cast<int32_t>(number(options, "stages", 1));
      simulation.cost.ranks = static_cast<int32_t>(number(options, "ranks", 1));
      if (simulation.cost.stages < 1 || simulation.cost.ranks < 1) {
        std::fprintf(stderr, "--stages and --ranks: expected at least 1.\n");
        return 1;
      }
      simulation.cost.sums = number(options, "sums", 0);
      simulation.cost.per_sum = number(options, "seconds-per-sum", 0);
      simulation.cost.per_sum_token = number(options, "seconds-per-sum-token", 0);
      simulation.cost.per_hop = number(options, "seconds-per-hop", 0);
      simulation.cost.per_hop_token = number(options, "seconds-per-hop-token", 0);
      simulation.keeps_timeline = timeline.is_open();
      simulation.report.policy = option(options, "name", policy);
      simulation.report.rate = std::strtod(rate.c_str(), nullptr);
      simulation.requests = draw_trace(option(options, "lengths", "bench/data/sharegpt_lengths.tsv"), count,
                                       simulation.report.rate, seed);
      const auto begin = std::chrono::steady_clock::now();
      if (policy == "quire") {
        simulation.run_quire(seed);
      } else if (policy == "prefill-first") {
        simulation.run_prefill_first();
      } else if (policy == "static") {
        simulation.run_static(simulation.config.max_model_len);
      } else {
        std::fprintf(stderr, "--policies: %s is none of quire, prefill-first, static.\n", policy.c_str());
        return 1;
      }
      simulation.report.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      for (const Request& request : simulation.requests) {
        if (request.delivered == request.answer) continue;
        std::fprintf(stderr, "a request got %d tokens of %d\n", request.delivered, request.answer);
        return 1;
      }
      print(simulation, csv);
      for (const auto& [time, utilisation, occupancy] : simulation.report.timeline) {
        timeline << policy << ',' << time << ',' << utilisation << ',' << occupancy << '\n';
      }
    }
  }
  return 0;
}

// ---- the cost of the scheduler itself ----

// Median over steps of the wall time of schedule() and commit() together, with `count` sequences decoding behind
// `context` tokens each. What stands for the model is not timed.
double step_seconds(int32_t count, int32_t context, int steps) {
  SchedulerConfig config;
  config.max_num_seqs = count;
  config.max_num_batched_tokens = 16 * count + 8192;
  config.max_model_len = context + 4 * steps;
  config.num_blocks = count * (config.max_model_len / config.block_size + 2) + 100;
  config.watermark = 0;
  Scheduler scheduler(config);
  std::mt19937 random(1);
  SamplingParams params;
  params.max_tokens = 4 * steps;
  const auto shared = std::make_shared<const SamplingParams>(std::move(params));
  for (int32_t id = 0; id < count; ++id) {
    SequenceRequest request;
    request.id = static_cast<SequenceId>(id);
    for (int32_t i = 0; i < context; ++i) request.prompt.push_back(static_cast<TokenId>(random() >> 1));
    request.params = shared;
    if (!scheduler.add(std::move(request)).ok()) std::exit(1);
  }
  StepPlan plan;  // comes back with its memory, as an executor in the same process gives it
  PlannedStep kept;
  std::vector<double> seconds;
  while (static_cast<int>(seconds.size()) < steps) {
    const auto begin = std::chrono::steady_clock::now();
    if (!scheduler.schedule(plan)) std::exit(1);
    kept.note(plan);
    const auto planned = std::chrono::steady_clock::now();
    StepResult result;
    result.step = plan.step;
    result.sequences.resize(plan.scheduled.size());
    for (size_t i = 0; i < plan.scheduled.size(); ++i) {
      result.sequences[i].id = plan.scheduled[i].id;
      if (plan.scheduled[i].samples) result.sequences[i].tokens = {static_cast<TokenId>(random() >> 1)};
    }
    const auto executed = std::chrono::steady_clock::now();
    (void)scheduler.commit(kept, std::move(result));
    const auto end = std::chrono::steady_clock::now();
    if (plan.num_tokens == count && plan.scheduled.size() == static_cast<size_t>(count)) {
      seconds.push_back(std::chrono::duration<double>((planned - begin) + (end - executed)).count());
    }
  }
  return percentile(seconds, 0.5);
}

int print_step_cost(std::FILE* csv) {
  if (csv != nullptr) std::fputs("sequences,context,seconds\n", csv);
  for (const int32_t context : {128, 1024}) {
    for (const int32_t count : {1, 64, 1024, 10000}) {
      const double seconds = step_seconds(count, context, count >= 10000 ? 100 : 400);
      std::printf("%6d sequences of %4d tokens: %10.2f us a step, %.3f us a sequence\n", count, context, 1e6 * seconds,
                  1e6 * seconds / count);
      std::fflush(stdout);
      if (csv != nullptr) std::fprintf(csv, "%d,%d,%.9f\n", count, context, seconds);
    }
  }
  return 0;
}

}  // namespace

int simulator_main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool flag = argument == "--step-cost";
    if (!argument.starts_with("--") || (!flag && i + 1 == argc)) {
      std::fprintf(stderr, "%s: expected --option VALUE; the options stand at the top of bench/simulator.cpp.\n",
                   argv[i]);
      return 1;
    }
    options[argument.substr(2)] = flag ? "" : argv[++i];
  }
  std::FILE* csv = options.contains("csv") ? std::fopen(options.at("csv").c_str(), "w") : nullptr;
  if (options.contains("csv") && csv == nullptr) {
    std::perror(options.at("csv").c_str());
    return 1;
  }
  const int status = options.contains("step-cost") ? print_step_cost(csv) : simulate(options, csv);
  if (csv != nullptr) std::fclose(csv);
  return status;
}

}  // namespace quire::sched

int main(int argc, char** argv) {
  return quire::sched::simulator_main(argc, argv);
}
