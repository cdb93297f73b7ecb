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

// ranks: the files say that the model's answers are scores.
Result<ModelTask> task_of(const EngineConfig& config, bool made_for_pooling, bool ranks, FamilyRole role) {
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
      return role == FamilyRole::kClassifies || ranks ? ModelTask::kClassify : ModelTask::kEmbed;
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

bool has_module(const checkpoint::SentenceFiles& files, std::string_view wanted) {
  return std::ranges::any_of(files.modules, [&](const auto& one) { return checkpoint::module_kind(one) == wanted; });
}

Status read_sentence_modules(const checkpoint::SentenceFiles& files, ModelConfig& model) {
  QUIRE_RETURN_IF_ERROR(check_modules(files.modules));
  model.pooling.normalize = has_module(files, "Normalize");
  if (has_module(files, "Pooling")) {
    auto types = pooling_types_of(files.pooling);
    if (!types.ok()) return types.status().with_prefix("modules.json: ");
    model.pooling.types = *std::move(types);
    const models::ConfigReader reader(files.pooling);
    QUIRE_ASSIGN_OR_RETURN(const bool with_prompt, reader.boolean_or("include_prompt", true));
    model.pooling.leaves_prompt_out = !with_prompt;
  }
  return {};
}

// How long texts are unless more is asked for. Newer releases leave it to the tokenizer, whose number may be beyond
// anything.
Status read_sentence_context(const checkpoint::SentenceFiles& files, ModelConfig& model) {
  const models::ConfigReader reader(files.transformer);
  const models::ConfigReader tokenizer(files.tokenizer);
  QUIRE_ASSIGN_OR_RETURN(const bool lowers, reader.boolean_or("do_lower_case", false));
  QUIRE_ASSIGN_OR_RETURN(const bool tokenizer_lowers, tokenizer.boolean_or("do_lower_case", false));
  if (lowers && !tokenizer_lowers) {
    return unimplemented(
        "sentence_bert_config.json: do_lower_case is true where the tokenizer leaves cases alone, which "
        "is not built yet; supported: false");
  }
  int64_t length = 0;
  if (reader.has("max_seq_length")) {
    QUIRE_ASSIGN_OR_RETURN(length, reader.integer("max_seq_length", 1, models::kMostContext));
  } else if (tokenizer.has("model_max_length")) {
    QUIRE_ASSIGN_OR_RETURN(const double most, tokenizer.number_or("model_max_length", 0));
    if (most >= 1 && most < static_cast<double>(model.max_position)) length = static_cast<int64_t>(most);
  }
  if (length > 0) model.default_context = std::min(length, model.max_position);
  return {};
}

// llama.cpp's numbers: LLAMA_POOLING_TYPE_*.
constexpr int64_t kGgufRank = 4;  // scores by a classifying head
Status read_gguf_pooling(const models::GgufReader& reader, ModelConfig& model) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t type, reader.integer_or("pooling_type", -1, -1, 4));
  if (type == 1) model.pooling.types = {PoolingType::kMean};
  if (type == 2) model.pooling.types = {PoolingType::kCls};
  if (type == 3) model.pooling.types = {PoolingType::kLast};
  return {};
}

int64_t gguf_pooling_of(const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.gguf() == nullptr) return 0;
  const auto type = models::GgufReader(checkpoint).integer_or("pooling_type", 0, 0, kGgufRank);
  return type.ok() ? *type : 0;
}

// An encoder's head has as many numbers as its last matrix rows.
Result<int64_t> gguf_labels_of(const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::CheckpointTensor* labels = checkpoint.find("classifier.weight");
  if (labels == nullptr || checkpoint.find("pooler.dense.weight") == nullptr || labels->view.shape.rank() != 2) {
    return unimplemented(
        "the GGUF file is for scores (pooling_type {}), but has no head of two matrices, cls and cls.output; give the "
        "model's safetensors",
        kGgufRank);
  }
  return labels->view.shape[0];
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

Status read_padding(const json::object& config, ModelConfig& model) {
  const models::ConfigReader reader(config);
  if (!reader.has("pad_token_id")) return {};
  // Some say -1 where there is none.
  QUIRE_ASSIGN_OR_RETURN(const int64_t padding, reader.integer("pad_token_id", -1, 1 << 24));
  if (padding >= 0) model.pooling.padding = static_cast<TokenId>(padding);
  return {};
}

// What sentence-transformers' cross-encoders write beside the labels; else what is usual.
Status read_activation(const json::object& config, const checkpoint::SentenceFiles& sentence, PoolingConfig& pooling) {
  const models::ConfigReader reader(config);
  pooling.activation = pooling.num_labels == 1 ? ScoreActivation::kSigmoid : ScoreActivation::kSoftmax;
  QUIRE_ASSIGN_OR_RETURN(const std::string problem, reader.text_or("problem_type", ""));
  if (problem == "regression") pooling.activation = ScoreActivation::kNone;
  if (problem == "multi_label_classification") pooling.activation = ScoreActivation::kSigmoid;
  QUIRE_ASSIGN_OR_RETURN(std::string function, reader.text_or("sbert_ce_default_activation_function", ""));
  if (const json::value* inner = config.if_contains("sentence_transformers"); inner != nullptr && inner->is_object()) {
    QUIRE_ASSIGN_OR_RETURN(function, models::ConfigReader(inner->get_object()).text_or("activation_fn", function));
  }
  // Newer releases have it beside the model's prompts.
  QUIRE_ASSIGN_OR_RETURN(function, models::ConfigReader(sentence.model).text_or("activation_fn", function));
  if (function.empty()) return {};
  const std::string_view last = std::string_view(function).substr(function.rfind('.') + 1);
  if (last == "Identity") {
    pooling.activation = ScoreActivation::kNone;
  } else if (last == "Sigmoid") {
    pooling.activation = ScoreActivation::kSigmoid;
  } else if (last == "Softmax") {
    pooling.activation = ScoreActivation::kSoftmax;
  } else {
    return unimplemented("config: the activation of scores {} is not built yet; built: Identity, Sigmoid, Softmax",
                         in_quotes(function));
  }
  return {};
}

// sentence-transformers' LogitScore: by how much one token is likelier than another.
Status read_judgement(const json::object& score, ModelConfig& model) {
  const models::ConfigReader reader(score);
  for (const char* key : {"true_token_id", "false_token_id"}) {
    if (reader.has(key)) continue;
    return unimplemented("modules.json: a LogitScore module without {} is not built yet", key);
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t yes, reader.integer("true_token_id", 0, model.vocab_size - 1));
  QUIRE_ASSIGN_OR_RETURN(const int64_t no, reader.integer("false_token_id", 0, model.vocab_size - 1));
  model.pooling.judges_by = JudgingTokens{.no = static_cast<TokenId>(no), .yes = static_cast<TokenId>(yes)};
  return {};
}

}  // namespace

bool tells_segments(const checkpoint::Checkpoint& checkpoint) {
  if (checkpoint.gguf() != nullptr) return true;
  const json::object& config = checkpoint.tokenizer_config();
  if (const json::value* names = config.if_contains("model_input_names"); names != nullptr && names->is_array()) {
    return std::ranges::any_of(names->get_array(), [](const json::value& name) { return name == "token_type_ids"; });
  }
  const json::value* named = config.if_contains("tokenizer_class");
  if (named == nullptr || !named->is_string()) return true;
  const std::string_view name = named->get_string();
  return name.starts_with("Bert") || name.starts_with("Electra") || name.starts_with("Albert");
}

Status choose_task(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, FamilyRole role,
                   ModelConfig& model) {
  const checkpoint::SentenceFiles& sentence = checkpoint.sentence_files();
  const int64_t gguf_pooling = gguf_pooling_of(checkpoint);
  const bool ranks = gguf_pooling == kGgufRank || has_module(sentence, "LogitScore");
  if (ranks && role == FamilyRole::kStates) role = FamilyRole::kClassifies;
  const bool made_for_pooling = role != FamilyRole::kGenerates || sentence.present() || gguf_pooling > 0;
  QUIRE_ASSIGN_OR_RETURN(model.task, task_of(config, made_for_pooling, ranks, role));
  if (model.task == ModelTask::kGenerate) {
    if (!model.attends_both_ways) return {};
    return invalid_argument(
        "the model's tokens attend to what follows them (use_bidirectional_attention), so that it generates nothing; "
        "--runner pooling gives vectors");
  }
  if (config.enable_lora || config.enable_prompt_adapter) {
    return unimplemented(
        "enable_lora, enable_prompt_adapter: adapters of models that embed or classify are not built yet; merge them "
        "into the weights");
  }
  if (config.speculative_config.method != SpeculativeMethod::kNone) {
    return invalid_argument(
        "speculative_config: a model that embeds or classifies has no tokens to guess; leave it out");
  }
  PoolingConfig& pooling = model.pooling;
  pooling.types = {model.attends_both_ways ? PoolingType::kCls : PoolingType::kLast};
  if (checkpoint.gguf() != nullptr) QUIRE_RETURN_IF_ERROR(read_gguf_pooling(models::GgufReader(checkpoint), model));
  if (model.task == ModelTask::kClassify) {
    if (role == FamilyRole::kClassifies) QUIRE_RETURN_IF_ERROR(read_labels(checkpoint.config(), pooling));
    if (role == FamilyRole::kClassifies && !model.attends_both_ways) {
      QUIRE_RETURN_IF_ERROR(read_padding(checkpoint.config(), model));
    }
    if (role == FamilyRole::kClassifies && gguf_pooling == kGgufRank) {
      QUIRE_ASSIGN_OR_RETURN(pooling.num_labels, gguf_labels_of(checkpoint));
      pooling.labels.clear();
      for (int64_t i = 0; i < pooling.num_labels; ++i) pooling.labels.push_back(fmt::format("LABEL_{}", i));
    }
    QUIRE_RETURN_IF_ERROR(read_activation(checkpoint.config(), sentence, pooling));
    if (has_module(sentence, "LogitScore")) QUIRE_RETURN_IF_ERROR(read_judgement(sentence.score, model));
    QUIRE_ASSIGN_OR_RETURN(const std::string kind,  // ModernBERT's
                           models::ConfigReader(checkpoint.config()).text_or("classifier_pooling", ""));
    if (kind == "mean") pooling.types = {PoolingType::kMean};
    if (role == FamilyRole::kGenerates) pooling.activation = ScoreActivation::kSigmoid;  // of a margin
  } else {
    if (sentence.present()) QUIRE_RETURN_IF_ERROR(read_sentence_modules(sentence, model));
    QUIRE_RETURN_IF_ERROR(read_dimensions(checkpoint.config(), pooling));
  }
  QUIRE_RETURN_IF_ERROR(read_sentence_context(sentence, model));
  // Decoders that were trained on without their mask.
  QUIRE_ASSIGN_OR_RETURN(const bool causal, models::ConfigReader(checkpoint.config()).boolean_or("is_causal", true));
  if (!causal) model.attends_both_ways = true;
  if (config.pooling_type) pooling.types = {*config.pooling_type};
  pooling.normalize = config.normalize.value_or(pooling.normalize);
  if (config.matryoshka) pooling.cuts_anywhere = *config.matryoshka;
  return {};
}

}  // namespace quire::runner
