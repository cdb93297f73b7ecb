#include "runner/model_task.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/json_file.h"
#include "checkpoint/text_quote.h"
#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::runner {
namespace {

namespace json = boost::json;
using checkpoint::in_quotes;
using models::FamilyRole;

constexpr int64_t kMostLabels = 1 << 16;

Result<ModelTask> task_of(const EngineConfig& config, bool made_for_pooling, FamilyRole role) {
  const bool pools = config.runner == Runner::kPooling ||
                     (config.runner == Runner::kAuto &&
                      (made_for_pooling || config.convert == Convert::kEmbed || config.convert == Convert::kClassify));
  if (!pools && role == FamilyRole::kGenerates) {
    if (config.pooling_type || config.normalize || config.matryoshka) {
      return invalid_argument("pooler_config is given, but the model generates: with --runner pooling it embeds");
    }
    return ModelTask::kGenerate;
  }
  if (!pools) {
    return invalid_argument("runner \"generate\": the model has no head that generates; leave it out, or take pooling");
  }
  switch (config.convert) {
    case Convert::kNone:
      if (role == FamilyRole::kGenerates && !made_for_pooling) {
        return invalid_argument(
            "convert \"none\": the model generates, and without being converted it pools nothing; leave it out, or "
            "take "
            "embed or classify");
      }
      [[fallthrough]];
    case Convert::kAuto:
      return role == FamilyRole::kClassifies ? ModelTask::kClassify : ModelTask::kEmbed;
    case Convert::kEmbed:
      if (role == FamilyRole::kClassifies) {
        return invalid_argument("convert \"embed\": the model has a classifying head, and gives scores alone");
      }
      return ModelTask::kEmbed;
    case Convert::kClassify:
      if (role == FamilyRole::kStates) {
        return invalid_argument("convert \"classify\": the model has no head that could classify; leave it out");
      }
      return ModelTask::kClassify;
  }
  return internal_error("a conversion without a task");
}

// Older files have a flag for each kind, joined in this order; newer ones a word, or words in their own order.
Result<std::vector<PoolingType>> pooling_types_of(const json::object& pooling) {
  struct Kind {
    std::string_view flag;
    std::string_view word;
    PoolingType type;
  };
  static constexpr Kind kKinds[] = {
      {"pooling_mode_cls_token", "cls", PoolingType::kCls},
      {"pooling_mode_max_tokens", "max", PoolingType::kMax},
      {"pooling_mode_mean_tokens", "mean", PoolingType::kMean},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingType::kMeanSqrtLength},
      {"pooling_mode_weightedmean_tokens", "weightedmean", PoolingType::kWeightedMean},
      {"pooling_mode_lasttoken", "lasttoken", PoolingType::kLast}};
  const models::ConfigReader reader(pooling);
  std::vector<PoolingType> types;
  for (const Kind& kind : kKinds) {
    QUIRE_ASSIGN_OR_RETURN(const bool flagged, reader.boolean_or(kind.flag, false));
    if (flagged) types.push_back(kind.type);
  }
  const json::value* mode = pooling.if_contains("pooling_mode");
  json::array words;
  if (mode != nullptr) words = mode->is_array() ? mode->get_array() : json::array{*mode};
  for (const json::value& word : words) {
    const auto* const kind = !word.is_string()
                                 ? std::end(kKinds)
                                 : std::ranges::find(kKinds, std::string_view(word.get_string()), &Kind::word);
    if (kind == std::end(kKinds)) {
      return unimplemented(
          "the pooling module's kind {} is not built yet; built: cls, max, mean, mean_sqrt_len_tokens, weightedmean, "
          "lasttoken",
          checkpoint::described(word));
    }
    types.push_back(kind->type);
  }
  if (types.empty()) types.push_back(PoolingType::kMean);  // what the module itself takes then
  return types;
}

// That modules follow each other in the one way that is built.
Status check_modules(const json::array& modules) {
  std::string_view before;
  for (const json::value& module : modules) {
    const std::string_view kind = checkpoint::module_kind(module);
    if (kind == "Dropout") continue;  // does nothing once a model is trained
    if (kind != "Transformer" && kind != "Pooling" && kind != "Dense" && kind != "Normalize") {
      return unimplemented("modules.json: a module {} is not built yet; built: Transformer, Pooling, Dense, Normalize",
                           in_quotes(kind));
    }
    const bool follows = kind == "Dense" ? before == "Pooling" || before == "Dense"
                                         : kind == "Normalize" || before.empty() || before == "Transformer";
    if (!follows) {
      return unimplemented(
          "modules.json: a module {} behind {} is not built yet; built: Transformer, Pooling, Dense, "
          "Normalize, in this order",
          in_quotes(kind), in_quotes(before));
    }
    before = kind;
  }
  return {};
}

Status read_sentence_modules(const checkpoint::SentenceFiles& files, ModelConfig& model) {
  QUIRE_RETURN_IF_ERROR(check_modules(files.modules));
  const auto has = [&](std::string_view wanted) {
    return std::ranges::any_of(files.modules, [&](const auto& one) { return checkpoint::module_kind(one) == wanted; });
  };
  model.pooling.normalize = has("Normalize");
  if (has("Pooling")) {
    auto types = pooling_types_of(files.pooling);
    if (!types.ok()) return types.status().with_prefix("modules.json: ");
    model.pooling.types = *std::move(types);
    const models::ConfigReader reader(files.pooling);
    QUIRE_ASSIGN_OR_RETURN(const bool with_prompt, reader.boolean_or("include_prompt", true));
    if (!with_prompt) {
      return unimplemented(
          "modules.json: a pooling module that leaves the prompt out (include_prompt false) is not "
          "built yet");
    }
  }
  const models::ConfigReader reader(files.transformer);
  if (reader.has("max_seq_length")) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t length, reader.integer("max_seq_length", 1, models::kMostContext));
    model.default_context = std::min(length, model.max_position);
  }
  return {};
}

// llama.cpp's numbers: LLAMA_POOLING_TYPE_*.
Status read_gguf_pooling(const models::GgufReader& reader, ModelConfig& model) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t type, reader.integer_or("pooling_type", -1, -1, 4));
  if (type == 1) model.pooling.types = {PoolingType::kMean};
  if (type == 2) model.pooling.types = {PoolingType::kCls};
  if (type == 3) model.pooling.types = {PoolingType::kLast};
  if (type == 4)
    return unimplemented(
        "metadata \"{}\": a classifying head in a GGUF file is not built yet; give the "
        "model's safetensors",
        reader.full("pooling_type"));
  return {};
}

bool gguf_pools(const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.gguf() == nullptr) return false;
  const auto type = models::GgufReader(checkpoint).integer_or("pooling_type", 0, 0, 4);
  return type.ok() && *type > 0;
}

Status read_dimensions(const json::object& config, PoolingConfig& pooling) {
  const models::ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(pooling.cuts_anywhere, reader.boolean_or("is_matryoshka", false));
  if (!reader.has("matryoshka_dimensions")) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> dimensions, reader.numbers("matryoshka_dimensions"));
  for (const double length : dimensions) pooling.dimensions.push_back(static_cast<int64_t>(length));
  return {};
}

// "id2label": names by number. Without it there are two, as the reference has it.
Status read_labels(const json::object& config, PoolingConfig& pooling) {
  const models::ConfigReader reader(config);
  pooling.num_labels = 2;
  if (reader.has("num_labels")) {
    QUIRE_ASSIGN_OR_RETURN(pooling.num_labels, reader.integer("num_labels", 1, kMostLabels));
  }
  const json::value* named = config.if_contains("id2label");
  const json::object* names = named == nullptr ? nullptr : named->if_object();
  if (names != nullptr && !names->empty()) {
    if (names->size() > kMostLabels) {
      return invalid_argument("config: id2label has {} names, expected at most {}", names->size(), kMostLabels);
    }
    pooling.num_labels = static_cast<int64_t>(names->size());
  }
  for (int64_t i = 0; i < pooling.num_labels; ++i) pooling.labels.push_back(fmt::format("LABEL_{}", i));
  if (names == nullptr) return {};
  for (const auto& [key, name] : *names) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= pooling.num_labels ||
        !name.is_string()) {
      return invalid_argument("config: id2label has an entry {}, expected names by the numbers 0 to {}",
                              in_quotes(std::string_view(key)), pooling.num_labels - 1);
    }
    pooling.labels[static_cast<size_t>(id)] = name.get_string();
  }
  return {};
}

// What sentence-transformers' cross-encoders write beside the labels; else what is usual.
Status read_activation(const json::object& config, PoolingConfig& pooling) {
  const models::ConfigReader reader(config);
  pooling.activation = pooling.num_labels == 1 ? ScoreActivation::kSigmoid : ScoreActivation::kSoftmax;
  QUIRE_ASSIGN_OR_RETURN(const std::string problem, reader.text_or("problem_type", ""));
  if (problem == "regression") pooling.activation = ScoreActivation::kNone;
  if (problem == "multi_label_classification") pooling.activation = ScoreActivation::kSigmoid;
  QUIRE_ASSIGN_OR_RETURN(std::string function, reader.text_or("sbert_ce_default_activation_function", ""));
  if (const json::value* inner = config.if_contains("sentence_transformers"); inner != nullptr && inner->is_object()) {
    QUIRE_ASSIGN_OR_RETURN(function, models::ConfigReader(inner->get_object()).text_or("activation_fn", function));
  }
  if (function.empty()) return {};
  const std::string_view last = std::string_view(function).substr(function.rfind('.') + 1);
  if (last == "Identity") {
    pooling.activation = ScoreActivation::kNone;
  } else if (last == "Sigmoid") {
    pooling.activation = ScoreActivation::kSigmoid;
  } else {
    return unimplemented("config: the activation of scores {} is not built yet; built: Identity, Sigmoid",
                         in_quotes(function));
  }
  return {};
}

}  // namespace

Status choose_task(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, FamilyRole role,
                   ModelConfig& model) {
  const checkpoint::SentenceFiles& sentence = checkpoint.sentence_files();
  const bool made_for_pooling = role != FamilyRole::kGenerates || sentence.present() || gguf_pools(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(model.task, task_of(config, made_for_pooling, role));
  if (model.task == ModelTask::kGenerate) return {};
  PoolingConfig& pooling = model.pooling;
  pooling.types = {model.attends_both_ways ? PoolingType::kCls : PoolingType::kLast};
  if (checkpoint.gguf() != nullptr) QUIRE_RETURN_IF_ERROR(read_gguf_pooling(models::GgufReader(checkpoint), model));
  if (model.task == ModelTask::kClassify) {
    if (role == FamilyRole::kClassifies) QUIRE_RETURN_IF_ERROR(read_labels(checkpoint.config(), pooling));
    QUIRE_RETURN_IF_ERROR(read_activation(checkpoint.config(), pooling));
    QUIRE_ASSIGN_OR_RETURN(const std::string kind,  // ModernBERT's
                           models::ConfigReader(checkpoint.config()).text_or("classifier_pooling", ""));
    if (kind == "mean") pooling.types = {PoolingType::kMean};
    if (role == FamilyRole::kGenerates) pooling.activation = ScoreActivation::kSigmoid;  // of a margin
  } else {
    if (sentence.present()) QUIRE_RETURN_IF_ERROR(read_sentence_modules(sentence, model));
    QUIRE_RETURN_IF_ERROR(read_dimensions(checkpoint.config(), pooling));
  }
  // Decoders that were trained on without their mask.
  QUIRE_ASSIGN_OR_RETURN(const bool causal, models::ConfigReader(checkpoint.config()).boolean_or("is_causal", true));
  if (!causal) model.attends_both_ways = true;
  if (config.pooling_type) pooling.types = {*config.pooling_type};
  pooling.normalize = config.normalize.value_or(pooling.normalize);
  if (config.matryoshka) pooling.cuts_anywhere = *config.matryoshka;
  return {};
}

}  // namespace quire::runner
