#include "cli/backend.h"

#include <charconv>

#include "base/log.h"
#include "base/thread_pool.h"
#include "ops/cpu/cpu_backend.h"
#include "runner/local_executor.h"
#ifdef QUIRE_HAS_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cli {

namespace {

Result<ActivationDType> parse_activation_dtype(std::string_view text) {
  if (text == "auto") return ActivationDType::kAuto;
  if (text == "float32") return ActivationDType::kFloat32;
  if (text == "int8") return ActivationDType::kInt8;
  if (text == "int12") return ActivationDType::kInt12;
  if (text == "int16") return ActivationDType::kInt16;
  if (text == "bfloat16") return ActivationDType::kBFloat16;
  return invalid_argument(
      "activation_dtype \"{}\" is not known; choose one of: auto, float32, bfloat16, int8, int12, int16", text);
}

// Kernels of attention that only a card has.
bool names_attention_of_cards(const EngineConfig& config) {
  return config.attention_backend == "flashinfer" || config.attention_backend == "fa3";
}

Status check_attention_backend(const EngineConfig& config) {
  if (!names_attention_of_cards(config) && config.attention_backend != "auto" && config.attention_backend != "native") {
    return invalid_argument("attention_backend \"{}\" is not known; choose one of: auto, native, flashinfer, fa3",
                            config.attention_backend);
  }
  if (names_attention_of_cards(config) && config.kv_cache_dtype == "float32") {
    return invalid_argument(
        "attention_backend \"{}\" reads no caches of float32; with kv_cache_dtype \"float32\" choose native",
        config.attention_backend);
  }
  return {};
}

Result<std::unique_ptr<ops::Backend>> make_cpu(const EngineConfig& config) {
  if (names_attention_of_cards(config)) {
    return invalid_argument("attention_backend \"{}\" is for --device cuda; on a CPU choose native",
                            config.attention_backend);
  }
  ops::CpuBackendOptions options;
  options.threads = config.threads;
  options.isa = config.isa;
  auto cores = parse_core_list(config.cpu_affinity);
  if (!cores.ok()) return cores.status().with_prefix("cpu_affinity: ");
  options.cores = std::move(*cores);
  QUIRE_ASSIGN_OR_RETURN(options.activation_dtype, parse_activation_dtype(config.activation_dtype));
  return ops::make_cpu_backend(options);
}

int num_cards() {
#ifdef QUIRE_HAS_CUDA
  return ops::cuda_device_count();
#else
  return 0;
#endif
}

Result<std::unique_ptr<ops::Backend>> make_cuda(const EngineConfig& config, [[maybe_unused]] int card) {
  // What chooses among the CPU's kernels would have no effect.
  if (config.isa != "auto") return invalid_argument("isa \"{}\" is for --device cpu", config.isa);
  if (config.activation_dtype != "auto" && config.activation_dtype != "float32") {
    return unimplemented("activation_dtype \"{}\" on a card: supported there: auto, float32", config.activation_dtype);
  }
#ifdef QUIRE_HAS_CUDA
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
  for (const auto backend :
       {ops::AttentionBackend::kNative, ops::AttentionBackend::kFlashInfer, ops::AttentionBackend::kFa3}) {
    if (config.attention_backend == ops::name(backend)) attention = backend;
  }
  auto cores = parse_core_list(config.cpu_affinity);
  if (!cores.ok()) return cores.status().with_prefix("cpu_affinity: ");
  return ops::make_cuda_backend({.device = card,
                                 .host_threads = config.threads,
                                 .cores = std::move(*cores),
                                 .batch_invariant = config.batch_invariant,
                                 .rounds_activations = config.activation_dtype == "auto",
                                 .attention = attention});
#else
  return unavailable(
      "device \"{}\": this quire was built without CUDA. Build it where the CUDA toolkit is installed "
      "(cmake -DQUIRE_CUDA=ON), or choose cpu",
      config.device);
#endif
}

// "cuda" is card 0, "cuda:N" card N; nothing: no card's name.
std::optional<int> parse_card(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return std::nullopt;
  text.remove_prefix(5);
  int card = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), card);
  if (error != std::errc() || end != text.data() + text.size() || card < 0) return std::nullopt;
  return card;
}

}  // namespace

Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config) {
  QUIRE_RETURN_IF_ERROR(check_attention_backend(config));
  if (config.device == "cpu") return make_cpu(config);
  if (config.device == "auto") {
    if (num_cards() == 0) return make_cpu(config);
    auto card = make_cuda(config, 0);
    if (card.ok()) return card;
    log_warning("card 0 is left alone: {}", card.status().message());
    return make_cpu(config);
  }
  if (const std::optional<int> card = parse_card(config.device)) return make_cuda(config, *card);
  return invalid_argument("device \"{}\" is not known; choose one of: auto, cpu, cuda, cuda:N", config.device);
}

Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> backend, make_backend(config));
  return runner::make_local_executor(config, std::move(backend));
}

}  // namespace quire::cli
