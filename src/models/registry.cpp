#include "models/registry.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include <fmt/ranges.h>

#include "base/log.h"
#include "checkpoint/gguf_description.h"
#include "checkpoint/text_quote.h"
#include "models/afmoe.h"
#include "models/apertus.h"
#include "models/arcee.h"
#include "models/bamba.h"
#include "models/bert.h"
#include "models/cohere.h"
#include "models/cwm.h"
#include "models/deepseek.h"
#include "models/ernie4_5.h"
#include "models/exaone4.h"
#include "models/falcon.h"
#include "models/falcon_h1.h"
#include "models/gemma.h"
#include "models/gemma2.h"
#include "models/gemma3.h"
#include "models/gemma4.h"
#include "models/glm4.h"
#include "models/glm4_moe.h"
#include "models/gpt2.h"
#include "models/gpt_neox.h"
#include "models/gpt_oss.h"
#include "models/granite.h"
#include "models/granite_hybrid.h"
#include "models/granite_moe.h"
#include "models/helium.h"
#include "models/hunyuan.h"
#include "models/internlm3.h"
#include "models/lfm2.h"
#include "models/llama.h"
#include "models/llama4.h"
#include "models/minimax_m2.h"
#include "models/mistral.h"
#include "models/mixtral.h"
#include "models/modern_bert.h"
#include "models/nemotron.h"
#include "models/nemotron_h.h"
#include "models/olmo.h"
#include "models/olmo2.h"
#include "models/olmo_hybrid.h"
#include "models/olmoe.h"
#include "models/opt.h"
#include "models/phi.h"
#include "models/phi3.h"
#include "models/qwen2.h"
#include "models/qwen2_moe.h"
#include "models/qwen3.h"
#include "models/qwen3_moe.h"
#include "models/qwen3_next.h"
#include "models/qwen_vl.h"
#include "models/seed_oss.h"
#include "models/smollm3.h"
#include "models/stablelm.h"
#include "models/starcoder2.h"

namespace quire::models {
namespace {

// The same with nothing behind the last layer, and with a head over classes.
constexpr Family as_states(Family family) {
  family.role = FamilyRole::kStates;
  return family;
}
constexpr Family as_classifier(Family family) {
  family.role = FamilyRole::kClassifies;
  return family;
}

struct Entry {
  const char* architecture;
  Family family;
};

constexpr Entry kFamilies[] = {
    {"AfmoeForCausalLM", kAfmoeFamily},
    {"ApertusForCausalLM", kApertusFamily},
    {"ArceeForCausalLM", kArceeFamily},
    {"BambaForCausalLM", kBambaFamily},
    {"BertForMaskedLM", kBertFamily},
    {"BertForSequenceClassification", as_classifier(kBertFamily)},
    {"BertModel", kBertFamily},
    {"CohereForCausalLM", kCohereFamily},
    {"Cohere2ForCausalLM", kCohere2Family},
    {"CwmForCausalLM", kCwmFamily},
    {"DeepseekV2ForCausalLM", kDeepseekV2Family},
    {"DeepseekV3ForCausalLM", kDeepseekV3Family},
    {"Dots1ForCausalLM", kDots1Family},
    {"Ernie4_5ForCausalLM", kErnie45Family},
    {"Ernie4_5_MoeForCausalLM", kErnie45MoeFamily},
    {"Exaone4ForCausalLM", kExaone4Family},
    {"ExaoneMoeForCausalLM", kExaoneMoeFamily},
    {"FalconForCausalLM", kFalconFamily},
    {"FalconH1ForCausalLM", kFalconH1Family},
    {"FlexOlmoForCausalLM", kFlexOlmoFamily},
    {"GPT2LMHeadModel", kGpt2Family},
    {"GPTBigCodeForCausalLM", kGptBigCodeFamily},
    {"GPTNeoXForCausalLM", kGptNeoxFamily},
    {"GemmaForCausalLM", kGemmaFamily},
    {"Gemma2ForCausalLM", kGemma2Family},
    {"Gemma3ForCausalLM", kGemma3Family},
    {"Gemma3ForConditionalGeneration", kGemma3Family},
    {"Gemma4ForCausalLM", kGemma4Family},
    {"Gemma4ForConditionalGeneration", kGemma4Family},
    {"Glm4ForCausalLM", kGlm4Family},
    {"Glm4MoeForCausalLM", kGlm4MoeFamily},
    {"Glm4MoeLiteForCausalLM", kGlm4MoeLiteFamily},
    {"GlmForCausalLM", kGlmFamily},
    {"GptOssForCausalLM", kGptOssFamily},
    {"MixtralForCausalLM", kMixtralFamily},
    {"Qwen2MoeForCausalLM", kQwen2MoeFamily},
    {"Qwen3MoeForCausalLM", kQwen3MoeFamily},
    {"GraniteForCausalLM", kGraniteFamily},
    {"GraniteMoeForCausalLM", kGraniteMoeFamily},
    {"GraniteMoeHybridForCausalLM", kGraniteHybridFamily},
    {"GraniteMoeSharedForCausalLM", kGraniteSharedFamily},
    {"HeliumForCausalLM", kHeliumFamily},
    {"HunYuanDenseV1ForCausalLM", kHunyuanFamily},
    {"HunYuanMoEV1ForCausalLM", kHunyuanMoeFamily},
    {"InternLM3ForCausalLM", kInternLm3Family},
    {"Lfm2ForCausalLM", kLfm2Family},
    {"Lfm2MoeForCausalLM", kLfm2MoeFamily},
    {"LlamaForCausalLM", kLlamaFamily},
    {"Llama4ForCausalLM", kLlama4Family},
    {"Llama4ForConditionalGeneration", kLlama4Family},
    {"MiniMaxM2ForCausalLM", kMinimaxM2Family},
    {"MinistralForCausalLM", kMistralFamily},
    {"Ministral3ForCausalLM", kMinistral3Family},
    {"Mistral3ForConditionalGeneration", kMistral3Family},
    {"Mistral4ForCausalLM", kMistral4Family},
    {"MistralForCausalLM", kMistralFamily},
    {"NemotronHForCausalLM", kNemotronHFamily},
    {"NemotronForCausalLM", kNemotronFamily},
    {"OPTForCausalLM", kOptFamily},
    {"OlmoForCausalLM", kOlmoFamily},
    {"Olmo2ForCausalLM", kOlmo2Family},
    {"Olmo3ForCausalLM", kOlmo3Family},
    {"OlmoHybridForCausalLM", kOlmoHybridFamily},
    {"OlmoeForCausalLM", kOlmoeFamily},
    {"PhiForCausalLM", kPhiFamily},
    {"Phi3ForCausalLM", kPhi3Family},
    {"Qwen2ForCausalLM", kQwen2Family},
    {"Qwen2VLForConditionalGeneration", kQwen2VlFamily},
    {"Qwen2_5_VLForConditionalGeneration", kQwen2VlFamily},
    {"Qwen3ForCausalLM", kQwen3Family},
    {"Qwen3NextForCausalLM", kQwen3NextFamily},
    {"Qwen3VLForConditionalGeneration", kQwen3VlFamily},
    {"Qwen3_5ForCausalLM", kQwen35Family},
    {"Qwen3_5ForConditionalGeneration", kQwen35Family},
    {"Qwen3_5MoeForCausalLM", kQwen35MoeFamily},
    {"Qwen3_5MoeForConditionalGeneration", kQwen35MoeFamily},
    {"SeedOssForCausalLM", kSeedOssFamily},
    {"SmolLM3ForCausalLM", kSmolLm3Family},
    {"SolarOpenForCausalLM", kSolarOpenFamily},
    {"StableLmForCausalLM", kStableLmFamily},
    {"Starcoder2ForCausalLM", kStarcoder2Family},
    {"ModernBertForMaskedLM", kModernBertFamily},
    {"ModernBertForSequenceClassification", as_classifier(kModernBertFamily)},
    {"ModernBertModel", kModernBertFamily},
    {"NomicBertForMaskedLM", kNomicBertFamily},
    {"NomicBertForSequenceClassification", as_classifier(kNomicBertFamily)},
    {"NomicBertModel", kNomicBertFamily},
    {"RobertaForMaskedLM", kRobertaFamily},
    {"RobertaForSequenceClassification", as_classifier(kRobertaFamily)},
    {"RobertaModel", kRobertaFamily},
    {"XLMRobertaForMaskedLM", kRobertaFamily},
    {"XLMRobertaForSequenceClassification", as_classifier(kRobertaFamily)},
    {"XLMRobertaModel", kRobertaFamily},
    {"DeepseekV2ForSequenceClassification", as_classifier(kDeepseekV2Family)},
    {"DeepseekV2Model", as_states(kDeepseekV2Family)},
    {"DeepseekV3ForSequenceClassification", as_classifier(kDeepseekV3Family)},
    {"DeepseekV3Model", as_states(kDeepseekV3Family)},
    {"GPT2ForSequenceClassification", as_classifier(kGpt2Family)},
    {"GPT2Model", as_states(kGpt2Family)},
    {"Gemma2ForSequenceClassification", as_classifier(kGemma2Family)},
    {"Gemma2Model", as_states(kGemma2Family)},
    {"Gemma3TextForSequenceClassification", as_classifier(kGemma3Family)},
    {"Gemma3TextModel", as_states(kGemma3Family)},
    {"GlmForSequenceClassification", as_classifier(kGlmFamily)},
    {"GlmModel", as_states(kGlmFamily)},
    {"Glm4ForSequenceClassification", as_classifier(kGlm4Family)},
    {"Glm4Model", as_states(kGlm4Family)},
    {"GptOssForSequenceClassification", as_classifier(kGptOssFamily)},
    {"GptOssModel", as_states(kGptOssFamily)},
    {"GraniteModel", as_states(kGraniteFamily)},
    {"LlamaForSequenceClassification", as_classifier(kLlamaFamily)},
    {"LlamaModel", as_states(kLlamaFamily)},
    {"MistralForSequenceClassification", as_classifier(kMistralFamily)},
    {"MistralModel", as_states(kMistralFamily)},
    {"MixtralForSequenceClassification", as_classifier(kMixtralFamily)},
    {"MixtralModel", as_states(kMixtralFamily)},
    {"OPTModel", as_states(kOptFamily)},
    {"Olmo2ForSequenceClassification", as_classifier(kOlmo2Family)},
    {"Olmo2Model", as_states(kOlmo2Family)},
    {"Phi3ForSequenceClassification", as_classifier(kPhi3Family)},
    {"Phi3Model", as_states(kPhi3Family)},
    {"Qwen2ForSequenceClassification", as_classifier(kQwen2Family)},
    {"Qwen2Model", as_states(kQwen2Family)},
    {"Qwen2MoeForSequenceClassification", as_classifier(kQwen2MoeFamily)},
    {"Qwen2MoeModel", as_states(kQwen2MoeFamily)},
    {"Qwen3ForSequenceClassification", as_classifier(kQwen3Family)},
    {"Qwen3Model", as_states(kQwen3Family)},
    {"Qwen3MoeForSequenceClassification", as_classifier(kQwen3MoeFamily)},
    {"Qwen3MoeModel", as_states(kQwen3MoeFamily)},
};

Result<Family> family_named(std::string_view wanted) {
  for (const Entry& entry : kFamilies) {
    if (wanted == entry.architecture) return entry.family;
  }
  return unimplemented("the architecture {} is not supported yet; supported: {}", checkpoint::in_quotes(wanted),
                       fmt::join(supported_architectures(), ", "));
}

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kFamilies) names.emplace_back(entry.architecture);
  return names;
}

Result<Family> find_family(const boost::json::object& config) {
  const boost::json::value* architectures = config.if_contains("architectures");
  const boost::json::array* list = architectures != nullptr ? architectures->if_array() : nullptr;
  if (list == nullptr || list->empty() || !list->front().is_string()) {
    return invalid_argument("config: \"architectures\" must be a list with the name of one architecture");
  }
  return family_named(std::string_view(list->front().as_string()));
}

Result<Family> find_family(const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::GgufDescription* gguf = checkpoint.gguf();
  return gguf == nullptr ? find_family(checkpoint.config()) : family_named(gguf->model_class);
}

namespace {

const checkpoint::CheckpointTensor* first_of(const checkpoint::Checkpoint& checkpoint,
                                             std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const checkpoint::CheckpointTensor* found = checkpoint.find(name)) return found;
  }
  return nullptr;
}

// Whether the checkpoint has a head of other numbers than the embeddings': the reference does not tie them then,
// whatever the configuration says. In a head that was trained all rows are others, so that some are enough to look at.
bool has_head_of_its_own(const checkpoint::Checkpoint& checkpoint) {
  constexpr int64_t kMostRows = 256;
  const auto* head = first_of(checkpoint, {"lm_head.weight", "language_model.lm_head.weight", "embed_out.weight"});
  const auto* table = first_of(checkpoint, {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                            "language_model.model.embed_tokens.weight", "transformer.wte.weight",
                                            "wte.weight", "model.decoder.embed_tokens.weight",
                                            "gpt_neox.embed_in.weight", "transformer.word_embeddings.weight"});
  if (head == nullptr || table == nullptr) return false;
  const TensorView& a = head->view;
  const TensorView& b = table->view;
  const bool is_float = a.dtype == DType::kF32 || a.dtype == DType::kF16 || a.dtype == DType::kBF16;
  if (!is_float || a.dtype != b.dtype || a.shape != b.shape || a.shape.rank() != 2) return false;
  const int64_t num_rows = std::min(a.shape[0], kMostRows);
  const size_t bytes = static_cast<size_t>(a.shape[1]) * (a.dtype == DType::kF32 ? 4 : 2);
  for (int64_t i = 0; i < num_rows; ++i) {
    const size_t at = static_cast<size_t>(i * a.shape[0] / num_rows) * bytes;
    if (std::memcmp(static_cast<const uint8_t*>(a.data) + at, static_cast<const uint8_t*>(b.data) + at, bytes) != 0)
      return true;
  }
  return false;
}

}  // namespace

Result<ModelConfig> read_model_config(const Family& family, const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.gguf() == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(ModelConfig out, family.read_config(checkpoint.config(), checkpoint.generation_config()));
    if (out.tie_word_embeddings && has_head_of_its_own(checkpoint)) {
      log_warning(
          "config: the head is said to be the embeddings (tie_word_embeddings), but the checkpoint has one of other "
          "numbers: that one is used");
      out.tie_word_embeddings = false;
    }
    return out;
  }
  if (family.read_gguf != nullptr) return family.read_gguf(checkpoint);
  return unimplemented("the architecture {} is not read from GGUF files yet; give the model's safetensors",
                       checkpoint::in_quotes(checkpoint.gguf()->model_class));
}

}  // namespace quire::models
