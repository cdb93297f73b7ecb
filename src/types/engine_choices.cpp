#include "types/engine_choices.h"

#include <charconv>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {
namespace {

template <typename Choice>
struct Word {
  std::string_view text;  // empty: not listed
  Choice choice;
};

// A word of another program that is understood and not taken.
struct RefusedWord {
  std::string_view text;
  std::string_view why;
};

template <typename Choice>
struct Words {
  std::string_view field;  // of EngineConfig
  std::span<const Word<Choice>> words;
  std::span<const RefusedWord> refused = {};
};

constexpr Word<LoadFormat> kLoadFormats[] = {{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}};
constexpr RefusedWord kOtherLoadFormats[] = {{"safetensors", "leave it out, a file says itself what it is"},
                                             {"gguf", "leave it out, a file says itself what it is"}};
constexpr Words<LoadFormat> words_of(LoadFormat /*type*/) {
  return {"load_format", kLoadFormats, kOtherLoadFormats};
}

constexpr Word<WeightDType> kWeightDTypes[] = {{"auto", WeightDType::kAuto},     {"float32", WeightDType::kFloat32},
                                               {"float", WeightDType::kFloat32}, {"float16", WeightDType::kFloat16},
                                               {"half", WeightDType::kFloat16},  {"bfloat16", WeightDType::kBFloat16}};
constexpr Words<WeightDType> words_of(WeightDType /*type*/) {
  return {"dtype", kWeightDTypes};
}

constexpr Word<Quantization> kQuantizations[] = {{"int8", Quantization::kInt8},
                                                 {"int4", Quantization::kInt4},
                                                 {"fp8", Quantization::kFp8},
                                                 {"awq", Quantization::kAwq},
                                                 {"awq_marlin", Quantization::kAwq},
                                                 {"gptq", Quantization::kGptq},
                                                 {"gptq_marlin", Quantization::kGptq},
                                                 {"compressed-tensors", Quantization::kCompressedTensors},
                                                 {"bitsandbytes", Quantization::kBitsandbytes},
                                                 {"modelopt", Quantization::kModelopt},
                                                 {"torchao", Quantization::kTorchao},
                                                 {"hqq", Quantization::kHqq},
                                                 {"fbgemm_fp8", Quantization::kFbgemmFp8},
                                                 {"mxfp4", Quantization::kMxfp4},
                                                 {"quark", Quantization::kQuark},
                                                 {"none", Quantization::kNone},
                                                 {"", Quantization::kNone}};
constexpr Words<Quantization> words_of(Quantization /*type*/) {
  return {"quantization", kQuantizations};
}

constexpr Word<ActivationDType> kActivationDTypes[] = {
    {"auto", ActivationDType::kAuto}, {"float32", ActivationDType::kFloat32}, {"bfloat16", ActivationDType::kBFloat16},
    {"int8", ActivationDType::kInt8}, {"int12", ActivationDType::kInt12},     {"int16", ActivationDType::kInt16}};
constexpr Words<ActivationDType> words_of(ActivationDType /*type*/) {
  return {"activation_dtype", kActivationDTypes};
}

constexpr Word<LoraDType> kLoraDTypes[] = {{"auto", LoraDType::kAuto},     {"float32", LoraDType::kFloat32},
                                           {"float", LoraDType::kFloat32}, {"float16", LoraDType::kFloat16},
                                           {"half", LoraDType::kFloat16},  {"bfloat16", LoraDType::kBFloat16}};
constexpr Words<LoraDType> words_of(LoraDType /*type*/) {
  return {"lora_dtype", kLoraDTypes};
}

constexpr Word<KvCacheDType> kKvCacheDTypes[] = {
    {"auto", KvCacheDType::kAuto},         {"float32", KvCacheDType::kFloat32}, {"float16", KvCacheDType::kFloat16},
    {"bfloat16", KvCacheDType::kBFloat16}, {"fp8", KvCacheDType::kFp8E4M3},     {"fp8_e4m3", KvCacheDType::kFp8E4M3},
    {"fp8_e5m2", KvCacheDType::kFp8E5M2},  {"int8", KvCacheDType::kInt8}};
constexpr Words<KvCacheDType> words_of(KvCacheDType /*type*/) {
  return {"kv_cache_dtype", kKvCacheDTypes};
}

constexpr Word<PreemptionMode> kPreemptionModes[] = {
    {"recompute", PreemptionMode::kRecompute}, {"swap", PreemptionMode::kSwap}, {"auto", PreemptionMode::kAuto}};
constexpr Words<PreemptionMode> words_of(PreemptionMode /*type*/) {
  return {"preemption_mode", kPreemptionModes};
}

constexpr Word<SchedulingPolicy> kSchedulingPolicies[] = {{"fcfs", SchedulingPolicy::kFcfs},
                                                          {"priority", SchedulingPolicy::kPriority}};
constexpr Words<SchedulingPolicy> words_of(SchedulingPolicy /*type*/) {
  return {"scheduling_policy", kSchedulingPolicies};
}

constexpr Word<AttentionBackend> kAttentionBackends[] = {{"auto", AttentionBackend::kAuto},
                                                         {"native", AttentionBackend::kNative},
                                                         {"flashinfer", AttentionBackend::kFlashInfer},
                                                         {"fa3", AttentionBackend::kFa3}};
constexpr Words<AttentionBackend> words_of(AttentionBackend /*type*/) {
  return {"attention_backend", kAttentionBackends};
}

constexpr Word<Isa> kIsas[] = {{"auto", Isa::kAuto},
                               {"portable", Isa::kPortable},
                               {"avx2", Isa::kAvx2},
                               {"avx512", Isa::kAvx512},
                               {"avx512_bf16", Isa::kAvx512Bf16}};
constexpr Word<DistributedBackend> kDistributedBackends[] = {{"auto", DistributedBackend::kAuto},
                                                             {"uni", DistributedBackend::kUni},
                                                             {"mp", DistributedBackend::kMp},
                                                             {"mpi", DistributedBackend::kMpi},
                                                             {"ray", DistributedBackend::kRay}};
constexpr RefusedWord kOtherDistributedBackends[] = {
    {"external_launcher", "quire starts its workers itself: choose mp"}};
constexpr Words<DistributedBackend> words_of(DistributedBackend /*type*/) {
  return {"distributed_executor_backend", kDistributedBackends, kOtherDistributedBackends};
}

constexpr Words<Isa> words_of(Isa /*type*/) {
  return {"isa", kIsas};
}

constexpr Word<Runner> kRunners[] = {
    {"auto", Runner::kAuto}, {"generate", Runner::kGenerate}, {"pooling", Runner::kPooling}};
constexpr RefusedWord kOtherRunners[] = {
    {"draft", "a model that drafts is named by speculative_config, beside the one that it drafts for"}};
constexpr Words<Runner> words_of(Runner /*type*/) {
  return {"runner", kRunners, kOtherRunners};
}

constexpr Word<Convert> kConverts[] = {
    {"auto", Convert::kAuto}, {"none", Convert::kNone}, {"embed", Convert::kEmbed}, {"classify", Convert::kClassify}};
constexpr RefusedWord kOtherConverts[] = {
    {"reward", "a model with a reward head is served as it is: \"classify\", or leave it out"}};
constexpr Words<Convert> words_of(Convert /*type*/) {
  return {"convert", kConverts, kOtherConverts};
}

constexpr Word<PoolingType> kPoolingTypes[] = {
    {"LAST", PoolingType::kLast}, {"MEAN", PoolingType::kMean}, {"CLS", PoolingType::kCls}};
constexpr RefusedWord kOtherPoolingTypes[] = {{"ALL", "a vector for each token is not built yet"},
                                              {"STEP", "a score for each step of an answer is not built yet"}};
constexpr Words<PoolingType> words_of(PoolingType /*type*/) {
  return {"pooling_type", kPoolingTypes, kOtherPoolingTypes};
}

constexpr Word<SpeculativeMethod> kSpeculativeMethods[] = {{"none", SpeculativeMethod::kNone},
                                                           {"ngram", SpeculativeMethod::kNgram},
                                                           {"[ngram]", SpeculativeMethod::kNgram},
                                                           {"suffix", SpeculativeMethod::kSuffix},
                                                           {"draft_model", SpeculativeMethod::kDraftModel},
                                                           {"eagle", SpeculativeMethod::kEagle},
                                                           {"eagle3", SpeculativeMethod::kEagle3},
                                                           {"medusa", SpeculativeMethod::kMedusa},
                                                           {"dflash", SpeculativeMethod::kDflash},
                                                           {"mtp", SpeculativeMethod::kMtp},
                                                           {"deepseek_mtp", SpeculativeMethod::kMtp}};
constexpr std::string_view kNoHeads =
    "of heads that draft dflash, eagle, eagle3, medusa and mtp are built; choose one of these, ngram, suffix or "
    "draft_model";
constexpr RefusedWord kOtherMethods[] = {{"mlp_speculator", kNoHeads},
                                         {"qwen3_next_mtp", kNoHeads},
                                         {"ngram_gpu", "guesses are looked for on the host; choose ngram"},
                                         {"custom_class", "code of others is never loaded"}};
constexpr Words<SpeculativeMethod> words_of(SpeculativeMethod /*type*/) {
  return {"speculative_config: method", kSpeculativeMethods, kOtherMethods};
}

// vLLM's words of several versions: "strict" compares, the others draw.
constexpr Word<AcceptanceMethod> kAcceptanceMethods[] = {{"exact", AcceptanceMethod::kExact},
                                                         {"strict", AcceptanceMethod::kExact},
                                                         {"rejection_sampler", AcceptanceMethod::kRejection},
                                                         {"standard", AcceptanceMethod::kRejection},
                                                         {"probabilistic", AcceptanceMethod::kRejection},
                                                         {"typical_acceptance_sampler", AcceptanceMethod::kTypical}};
constexpr RefusedWord kOtherAcceptanceMethods[] = {{"synthetic", "guesses are never accepted by the dice alone"}};
constexpr Words<AcceptanceMethod> words_of(AcceptanceMethod /*type*/) {
  return {"speculative_config: acceptance method", kAcceptanceMethods, kOtherAcceptanceMethods};
}

Status unknown_word(std::string_view field, std::string_view text, std::string_view known) {
  return invalid_argument("{} \"{}\" is not known; choose one of: {}", field, text, known);
}

template <typename Choice>
std::string_view first_word(Choice choice) {
  for (const Word<Choice>& word : words_of(Choice{}).words) {
    if (word.choice == choice) return word.text;
  }
  QUIRE_CHECK_MSG(false, "a choice without a word");
  return "";
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

template <typename Choice>
Result<Choice> parse_choice(std::string_view text) {
  const Words<Choice> all = words_of(Choice{});
  std::string known;
  for (const Word<Choice>& word : all.words) {
    if (word.text == text) return word.choice;
    if (!word.text.empty()) known += fmt::format("{}{}", known.empty() ? "" : ", ", word.text);
  }
  for (const RefusedWord& word : all.refused) {
    if (word.text == text) return invalid_argument("{} \"{}\": {}", all.field, text, word.why);
  }
  return unknown_word(all.field, text, known);
}

template <>
Result<DeviceChoice> parse_choice(std::string_view text) {
  if (text == "auto") return DeviceChoice();
  if (text == "cpu") return DeviceChoice::cpu();
  if (const std::optional<int> card = parse_card(text)) return DeviceChoice::cuda(*card);
  return unknown_word("device", text, "auto, cpu, cuda, cuda:N");
}

template Result<LoadFormat> parse_choice(std::string_view text);
template Result<WeightDType> parse_choice(std::string_view text);
template Result<Quantization> parse_choice(std::string_view text);
template Result<ActivationDType> parse_choice(std::string_view text);
template Result<LoraDType> parse_choice(std::string_view text);
template Result<KvCacheDType> parse_choice(std::string_view text);
template Result<PreemptionMode> parse_choice(std::string_view text);
template Result<SchedulingPolicy> parse_choice(std::string_view text);
template Result<AttentionBackend> parse_choice(std::string_view text);
template Result<Isa> parse_choice(std::string_view text);
template Result<DistributedBackend> parse_choice(std::string_view text);
template Result<Runner> parse_choice(std::string_view text);
template Result<Convert> parse_choice(std::string_view text);
template Result<PoolingType> parse_choice(std::string_view text);
template Result<SpeculativeMethod> parse_choice(std::string_view text);
template Result<AcceptanceMethod> parse_choice(std::string_view text);

std::string_view name(LoadFormat choice) {
  return first_word(choice);
}
std::string_view name(WeightDType choice) {
  return first_word(choice);
}
std::string_view name(Quantization choice) {
  return first_word(choice);
}
std::string_view name(ActivationDType choice) {
  return first_word(choice);
}
std::string_view name(LoraDType choice) {
  return first_word(choice);
}
std::string_view name(KvCacheDType choice) {
  return first_word(choice);
}
std::string_view name(PreemptionMode choice) {
  return first_word(choice);
}
std::string_view name(SchedulingPolicy choice) {
  return first_word(choice);
}
std::string_view name(AttentionBackend choice) {
  return first_word(choice);
}
std::string_view name(DistributedBackend choice) {
  return first_word(choice);
}
std::string_view name(Isa choice) {
  return first_word(choice);
}
std::string_view name(Runner choice) {
  return first_word(choice);
}
std::string_view name(Convert choice) {
  return first_word(choice);
}
std::string_view name(PoolingType choice) {
  return first_word(choice);
}
std::string_view name(SpeculativeMethod choice) {
  return first_word(choice);
}
std::string_view name(AcceptanceMethod choice) {
  return first_word(choice);
}

std::string name(DeviceChoice choice) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kAuto:
      return "auto";
    case DeviceChoice::Kind::kCpu:
      return "cpu";
    case DeviceChoice::Kind::kCuda:
      break;
  }
  return choice.card == 0 ? "cuda" : fmt::format("cuda:{}", choice.card);
}

}  // namespace quire
