// The host's own time in a step of decoding on a card: the engine, the scheduler, the runner and the backend of cards
// as they are, on a card that does nothing (tests/cuda_on_host), so that nothing else takes time.
//
//     bench_host_step [MODEL, a folder with a config.json; bench/shapes/qwen3-0.6b] [SEQUENCES, 256] [OUTPUT.json]
//                     [REPETITION_PENALTY, 1] [INPUT, 256]
//
// Prompts of INPUT random tokens, answers of 768 more. What NVIDIA's own runtime and driver take is not in it; the
// table says how often a step calls them.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/latency.h"
#include "bench/report.h"
#include "bench/statistics.h"
#include "cli/backend.h"
#include "tests/cuda_on_host/idle_card.h"

namespace quire {
namespace {

using cuda_on_host::Call;

struct Variant {
  const char* name;
  bool async_scheduling;
  bool enforce_eager;
};
constexpr Variant kVariants[] = {{"replayed", false, false},
                                 {"replayed, overlapping", true, false},
                                 {"eager", false, true},
                                 {"eager, overlapping", true, true}};

// What a step asks of the card, and how long it stands still for the host. Medians.
struct Asked {
  std::array<double, Call::kKinds> calls{};  // by kind
  double gap = 0;  // seconds from the moment a step's tokens are there to the call that begins the next one
};

// Of what lies between two waits for tokens.
Asked asked(const std::vector<Call>& calls) {
  std::vector<double> gaps;
  std::array<std::vector<double>, Call::kKinds> counts;
  const Call* tokens = nullptr;
  std::array<double, Call::kKinds> count{};
  bool begun = false;
  for (const Call& call : calls) {
    if (call.kind == Call::kWaitForDownload) {
      for (size_t kind = 0; kind < Call::kKinds && tokens != nullptr; ++kind) counts[kind].push_back(count[kind]);
      tokens = &call;
      count = {};
      begun = false;
    }
    ++count[call.kind];
    if (begun || tokens == nullptr || (call.kind != Call::kLaunch && call.kind != Call::kReplay)) continue;
    begun = true;
    gaps.push_back(std::chrono::duration<double>(call.at - tokens->at).count());
  }
  Asked all{.gap = bench::median(gaps)};
  for (size_t kind = 0; kind < Call::kKinds; ++kind) all.calls[kind] = bench::median(counts[kind]);
  return all;
}

struct Load {
  int32_t sequences = 256;
  float repetition_penalty = 1;
  int64_t input = 256;
};

Result<boost::json::object> measure(const Variant& variant, const std::string& model, const Load& load) {
  constexpr int64_t kOutput = 768;
  constexpr int64_t kBatches = 4;
  EngineConfig config{.model = model, .skip_tokenizer_init = true};
  config.load_format = LoadFormat::kDummy;
  config.device = DeviceChoice::cuda();
  config.max_model_len = load.input + kOutput;
  config.max_num_seqs = load.sequences;
  config.enable_prefix_caching = false;
  config.max_num_batched_tokens = 8192;
  config.async_scheduling = variant.async_scheduling;
  config.enforce_eager = variant.enforce_eager;
  config.flight_recorder_steps = static_cast<int32_t>(kBatches * kOutput);
  QUIRE_ASSIGN_OR_RETURN(auto executor, cli::make_executor(config));
  QUIRE_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(config, {}, std::move(executor)));
  const bench::LatencyOptions options{.input_len = load.input,
                                      .output_len = kOutput,
                                      .batch_size = load.sequences,
                                      .num_iters_warmup = 0,
                                      .num_iters = kBatches,
                                      .repetition_penalty = load.repetition_penalty,
                                      .disable_detokenize = true};
  QUIRE_ASSIGN_OR_RETURN(const bench::LatencyResult result,
                         bench::run_latency(*engine, options, [](const std::string&) {}));
  const bench::DecodeSteps& steps = result.decode_steps;
  engine.reset();
  if (steps.count == 0) return internal_error("answers ended before all requests were there: run it again, alone");
  const Asked all = asked(cuda_on_host::calls());
  cuda_on_host::calls().clear();
  std::printf("%-22s %s", variant.name, bench::decode_steps_line(steps).c_str());
  std::printf("%-22s   to choose the tokens: %.0f bytes a step, collected in %.1f us\n", "", steps.draw_bytes,
              steps.collect * 1e6);
  std::printf("%-22s   a step's tokens to the call that begins the next: %.1f us; calls a step:", "", all.gap * 1e6);
  constexpr const char* kNames[] = {"launches", "replays", "copies up",       "copies down",
                                    "events",   "waits",   "waits for tokens"};
  boost::json::object calls;
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    calls[kNames[kind]] = bench::figure(all.calls[kind]);
    std::printf(" %.0f %s%s", all.calls[kind], kNames[kind], kind + 1 < std::size(kNames) ? "," : "\n");
  }
  boost::json::object told = bench::decode_steps_json(steps);
  told["variant"] = variant.name;
  told["seconds_from_tokens_to_next_launch"] = bench::figure(all.gap);
  told["calls"] = std::move(calls);
  return told;
}

Status run(const std::string& model, const Load& load, const std::string& output) {
  cuda_on_host::make_card_idle(size_t{64} << 30);
  boost::json::array variants;
  for (const Variant& variant : kVariants) {
    QUIRE_ASSIGN_OR_RETURN(boost::json::object told, measure(variant, model, load));
    variants.push_back(std::move(told));
  }
  if (output.empty()) return {};
  return bench::write_json(output, {{"model", model},
                                    {"sequences", load.sequences},
                                    {"repetition_penalty", load.repetition_penalty},
                                    {"input", load.input},
                                    {"variants", std::move(variants)}});
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  const std::string model = count > 1 ? arguments[1] : "bench/shapes/qwen3-0.6b";
  quire::Load load;
  if (count > 2) load.sequences = std::atoi(arguments[2]);
  if (count > 4) load.repetition_penalty = static_cast<float>(std::atof(arguments[4]));
  if (count > 5) load.input = std::atoll(arguments[5]);
  const quire::Status status = quire::run(model, load, count > 3 ? arguments[3] : "");
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_host_step: %s\n", status.message().c_str());
  return 1;
}
