// The host's own time in a step of decoding on a card: the engine, the scheduler, the runner and the backend of cards
// as they are, on a card that does nothing (tests/cuda_on_host), so that nothing else takes time.
//
//     bench_host_step [MODEL, a folder with a config.json; bench/shapes/qwen3-0.6b] [SEQUENCES, 256] [OUTPUT.json]
//
// Prompts of 512 tokens, answers of 448 more. What NVIDIA's own runtime and driver take is not in it; the table says
// how often a step calls them.
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

// What a step asks of the card, and how long it stands still for the host.
struct Asked {
  std::array<double, Call::kKinds> calls{};  // by kind, on the mean
  double gap = 0;  // median seconds from the moment a step's tokens are there to the call that begins the next one
};

// Of the calls of whole steps at the end: those between two waits for tokens.
Asked asked(const std::vector<Call>& calls, size_t num_steps) {
  Asked all;
  std::vector<double> gaps;
  std::vector<size_t> waits;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == Call::kWaitForDownload) waits.push_back(i);
  }
  const size_t begin = waits.size() > num_steps + 1 ? waits.size() - num_steps - 1 : 0;
  for (size_t w = begin; w + 1 < waits.size(); ++w) {
    bool begun = false;
    for (size_t i = waits[w]; i < waits[w + 1]; ++i) {
      ++all.calls[calls[i].kind];
      if (begun || (calls[i].kind != Call::kLaunch && calls[i].kind != Call::kReplay)) continue;
      begun = true;
      gaps.push_back(std::chrono::duration<double>(calls[i].at - calls[waits[w]].at).count());
    }
  }
  for (double& count : all.calls) count /= static_cast<double>(std::max<size_t>(gaps.size(), 1));
  all.gap = bench::median(gaps);
  return all;
}

Result<boost::json::object> measure(const Variant& variant, const std::string& model, int32_t sequences) {
  constexpr int64_t kInput = 512;
  constexpr int64_t kOutput = 448;
  EngineConfig config{.model = model, .skip_tokenizer_init = true};
  config.load_format = "dummy";
  config.device = "cuda";
  config.max_model_len = kInput + kOutput;
  config.max_num_seqs = sequences;
  config.enable_prefix_caching = false;
  config.max_num_batched_tokens = 8192;
  config.async_scheduling = variant.async_scheduling;
  config.enforce_eager = variant.enforce_eager;
  config.flight_recorder_steps = static_cast<int32_t>(kOutput);
  QUIRE_ASSIGN_OR_RETURN(auto executor, cli::make_executor(config));
  QUIRE_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(config, std::move(executor)));
  const bench::LatencyOptions options{.input_len = kInput,
                                      .output_len = kOutput,
                                      .batch_size = sequences,
                                      .num_iters_warmup = 0,
                                      .num_iters = 1,
                                      .disable_detokenize = true};
  QUIRE_ASSIGN_OR_RETURN(const bench::LatencyResult result,
                         bench::run_latency(*engine, options, [](const std::string&) {}));
  const bench::DecodeSteps& steps = result.decode_steps;
  engine.reset();
  const Asked all = asked(cuda_on_host::calls(), static_cast<size_t>(steps.count));
  cuda_on_host::calls().clear();
  std::printf("%-22s %s", variant.name, bench::decode_steps_line(steps).c_str());
  std::printf("%-22s   a step's tokens to the call that begins the next: %.1f us; calls a step:", "", all.gap * 1e6);
  constexpr const char* kNames[] = {"launches", "replays", "copies up",       "copies down",
                                    "events",   "waits",   "waits for tokens"};
  boost::json::object calls;
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    calls[kNames[kind]] = bench::figure(all.calls[kind]);
    std::printf(" %.1f %s%s", all.calls[kind], kNames[kind], kind + 1 < std::size(kNames) ? "," : "\n");
  }
  boost::json::object told = bench::decode_steps_json(steps);
  told["variant"] = variant.name;
  told["seconds_from_tokens_to_next_launch"] = bench::figure(all.gap);
  told["calls"] = std::move(calls);
  return told;
}

Status run(const std::string& model, int32_t sequences, const std::string& output) {
  cuda_on_host::make_card_idle(size_t{64} << 30);
  boost::json::array variants;
  for (const Variant& variant : kVariants) {
    QUIRE_ASSIGN_OR_RETURN(boost::json::object told, measure(variant, model, sequences));
    variants.push_back(std::move(told));
  }
  if (output.empty()) return {};
  return bench::write_json(output, {{"model", model}, {"sequences", sequences}, {"variants", std::move(variants)}});
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  const std::string model = count > 1 ? arguments[1] : "bench/shapes/qwen3-0.6b";
  const int sequences = count > 2 ? std::atoi(arguments[2]) : 256;
  const quire::Status status = quire::run(model, sequences, count > 3 ? arguments[3] : "");
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_host_step: %s\n", status.message().c_str());
  return 1;
}
