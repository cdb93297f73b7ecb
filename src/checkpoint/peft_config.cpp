#include "checkpoint/peft_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "checkpoint/json_file.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr int64_t kMostRank = 4096;
constexpr int64_t kMostVirtualTokens = 1 << 20;
constexpr size_t kMostNames = 4096;
constexpr int64_t kMostTokenId = (int64_t{1} << 31) - 1;

// What changes an adapter's answers, and what it is called.
struct Refused {
  std::string_view key;
  std::string_view name;
};
constexpr auto kRefused = std::to_array<Refused>({
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"lora_bias", "biases of the factors (lora_bias)"},
    {"alora_invocation_tokens", "activated LoRA (alora_invocation_tokens)"},
    {"arrow_config", "Arrow routing among adapters (arrow_config)"},
    {"kasa_config", "KaSA (kasa_config)"},
    {"monteclora_config", "MonteCLoRA (monteclora_config)"},
    {"layer_replication", "layer_replication"},
    {"ensure_weight_tying", "tied adapters of embedding and head (ensure_weight_tying)"},
    {"megatron_config", "Megatron's layers (megatron_config)"},
    {"prefix_projection", "prefix tuning with a projection (prefix_projection)"},
});

// What has no bearing on the answers of a trained adapter.
constexpr auto kWithoutBearing = std::to_array<std::string_view>({
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
    "runtime_config",
    "velora_config",
    "eva_config",
    "loftq_config",
    "corda_config",
    "lora_ga_config",
    "init_weights",
    "encoder_hidden_size",
    "num_attention_heads",
    "num_layers",
    "num_transformer_submodules",
    "token_dim",
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "prompt_tuning_init_state_dict_path",
    "tokenizer_kwargs",
    "tokenizer_name_or_path",
});
constexpr auto kUsed = std::to_array<std::string_view>({
    "alpha_pattern",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "modules_to_save",
    "num_virtual_tokens",
    "r",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
});

bool says_something(const json::value& value) {
  if (value.is_null()) return false;
  if (const bool* flag = value.if_bool()) return *flag;
  if (const json::array* list = value.if_array()) return !list->empty();
  if (const json::object* object = value.if_object()) return !object->empty();
  if (const json::string* text = value.if_string()) return !text->empty();
  return true;
}

const json::value* given(const json::object& config, std::string_view key) {
  const json::value* value = config.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Status wrong(std::string_view key, const json::value& value, std::string_view expected) {
  return invalid_argument("{} is {}, expected {}", key, described(value), expected);
}

Result<int64_t> read_integer(const json::object& config, std::string_view key, int64_t least, int64_t most) {
  const json::value* value = given(config, key);
  if (value == nullptr) return invalid_argument("{} is missing, expected an integer from {} to {}", key, least, most);
  if (!value->is_int64() || value->get_int64() < least || value->get_int64() > most) {
    return wrong(key, *value, fmt::format("an integer from {} to {}", least, most));
  }
  return value->get_int64();
}

Result<double> positive_number(std::string_view key, const json::value& value) {
  const double number = value.is_number() ? value.to_number<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) return wrong(key, value, "a number over 0");
  return number;
}

Result<bool> read_flag(const json::object& config, std::string_view key) {
  const json::value* value = given(config, key);
  if (value == nullptr) return false;
  if (!value->is_bool()) return wrong(key, *value, "true or false");
  return value->get_bool();
}

// A list of strings, or one string.
Result<std::vector<std::string>> read_names(const json::object& config, std::string_view key) {
  const json::value* value = given(config, key);
  std::vector<std::string> names;
  if (value == nullptr) return names;
  if (value->is_string()) {
    names.emplace_back(value->get_string());
    return names;
  }
  const json::array* list = value->if_array();
  if (list == nullptr || list->size() > kMostNames) {
    return wrong(key, *value, fmt::format("a list of at most {} names", kMostNames));
  }
  for (const json::value& entry : *list) {
    if (!entry.is_string() || entry.get_string().empty()) return wrong(key, entry, "a list of names");
    names.emplace_back(entry.get_string());
  }
  return names;
}

bool is_plain(std::string_view key) {
  return std::ranges::all_of(key,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-'; });
}

// The number behind "<list>." in "model.layers.3.mlp": the last component of digits that has two before it, or the one
// behind the last component of this name.
std::optional<int64_t> layer_number(std::string_view module, std::string_view list) {
  std::optional<int64_t> found;
  std::string_view before;
  for (size_t begin = 0, index = 0; begin <= module.size(); ++index) {
    const size_t dot = module.find('.', begin);
    if (dot == std::string_view::npos) break;  // a number is not the last
    const std::string_view component = module.substr(begin, dot - begin);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(component.data(), component.data() + component.size(), number);
    const bool is_number = error == std::errc() && end == component.data() + component.size() && number >= 0;
    if (is_number && index >= 2 && (list.empty() || before == list)) found = number;
    before = component;
    begin = dot + 1;
  }
  return found;
}

Status refuse_what_is_missing(const json::object& config) {
  for (const auto& [key, value] : config) {
    if (!says_something(value)) continue;
    const auto refused = std::ranges::find(kRefused, std::string_view(key), &Refused::key);
    if (refused != kRefused.end()) {
      return unimplemented("the adapter uses {}, which is not built: train it without, or merge it into the weights",
                           refused->name);
    }
    const std::string_view name = key;
    if (std::ranges::find(kUsed, name) == kUsed.end() &&
        std::ranges::find(kWithoutBearing, name) == kWithoutBearing.end()) {
      return unimplemented("{} is {}, which is not known here: it may change the adapter's answers", in_quotes(key),
                           described(value));
    }
  }
  return {};
}

// Ways to begin that take something out of the base's own weights, which only PEFT puts back.
Status check_beginning(const json::object& config) {
  const json::value* value = given(config, "init_lora_weights");
  if (value == nullptr || !value->is_string()) return {};
  const std::string_view how = value->get_string();
  for (const std::string_view changes_base : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (!how.starts_with(changes_base)) continue;
    return unimplemented(
        "init_lora_weights is {}, which changes the base's weights: save the adapter as an ordinary one "
        "(path_initial_model_for_weight_conversion)",
        in_quotes(how));
  }
  return {};
}

Status read_layers(const json::object& config, PeftConfig& out) {
  const json::value* layers = given(config, "layers_to_transform");
  if (layers == nullptr) return {};
  const auto add = [&](const json::value& value) -> Status {
    if (!value.is_int64() || value.get_int64() < 0) return wrong("layers_to_transform", value, "numbers of layers");
    out.layers.push_back(value.get_int64());
    return {};
  };
  if (const json::array* list = layers->if_array()) {
    for (const json::value& value : *list) QUIRE_RETURN_IF_ERROR(add(value));
  } else {
    QUIRE_RETURN_IF_ERROR(add(*layers));
  }
  QUIRE_ASSIGN_OR_RETURN(out.layer_lists, read_names(config, "layers_pattern"));
  for (const std::string& list : out.layer_lists) {
    if (!is_plain(list) || list.find('.') != std::string::npos) {
      return unimplemented("layers_pattern is {}: expected the plain name of a list of layers", in_quotes(list));
    }
  }
  return {};
}

Status read_parameters(const json::object& config, PeftConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(out.parameters, read_names(config, "target_parameters"));
  for (const std::string& name : out.parameters) {
    const bool known = std::ranges::any_of(std::to_array<std::string_view>({"weight", "gate_up_proj", "down_proj"}),
                                           [&](std::string_view last) { return ends_with_module(name, last); });
    if (known) continue;
    return unimplemented(
        "target_parameters has {}, which is not built; supported: stacks of experts (gate_up_proj, down_proj) and "
        "modules' weights",
        in_quotes(name));
  }
  return {};
}

Status read_ids(const json::value& value, std::vector<int32_t>& out) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty()) return wrong("trainable_token_indices", value, "a list of tokens");
  std::set<int32_t> seen;
  for (const json::value& entry : *list) {
    const bool is_id = entry.is_int64() && entry.get_int64() >= 0 && entry.get_int64() <= kMostTokenId;
    if (!is_id) return wrong("trainable_token_indices", entry, "tokens, each an integer from 0");
    out.push_back(static_cast<int32_t>(entry.get_int64()));
    if (!seen.insert(out.back()).second) return invalid_argument("trainable_token_indices has {} twice", out.back());
  }
  return {};
}

// A list, of the embedding, or lists by module.
Status read_trained_tokens(const json::object& config, PeftConfig& out) {
  const json::value* value = given(config, "trainable_token_indices");
  if (value == nullptr || !says_something(*value)) return {};
  const json::object* by_module = value->if_object();
  if (by_module == nullptr) return read_ids(*value, out.trained_tokens[""]);
  if (by_module->size() > kMostNames) return wrong("trainable_token_indices", *value, "lists of some modules");
  for (const auto& [module, ids] : *by_module) {
    if (module.empty()) return invalid_argument("trainable_token_indices: a module has no name");
    QUIRE_RETURN_IF_ERROR(read_ids(ids, out.trained_tokens[std::string(module)]));
  }
  return {};
}

Status read_low_rank(const json::object& config, PeftConfig& out) {
  QUIRE_RETURN_IF_ERROR(check_beginning(config));
  if (const json::value* bias = given(config, "bias"); bias != nullptr && *bias != "none") {
    return unimplemented("bias is {}: trained biases are not built, expected \"none\"", described(*bias));
  }
  QUIRE_ASSIGN_OR_RETURN(out.rank, read_integer(config, "r", 1, kMostRank));
  const json::value* alpha = given(config, "lora_alpha");
  if (alpha == nullptr) return invalid_argument("lora_alpha is missing, expected a number over 0");
  QUIRE_ASSIGN_OR_RETURN(out.alpha, positive_number("lora_alpha", *alpha));
  QUIRE_ASSIGN_OR_RETURN(out.rank_stabilised, read_flag(config, "use_rslora"));
  QUIRE_ASSIGN_OR_RETURN(out.decomposed, read_flag(config, "use_dora"));
  QUIRE_ASSIGN_OR_RETURN(out.ranks, NumbersByModule::read(config, "rank_pattern"));
  QUIRE_ASSIGN_OR_RETURN(out.alphas, NumbersByModule::read(config, "alpha_pattern"));
  QUIRE_ASSIGN_OR_RETURN(out.targets, ModuleSelection::read(config, "target_modules"));
  QUIRE_ASSIGN_OR_RETURN(out.excluded, ModuleSelection::read(config, "exclude_modules"));
  QUIRE_RETURN_IF_ERROR(read_layers(config, out));
  QUIRE_ASSIGN_OR_RETURN(out.saved_modules, read_names(config, "modules_to_save"));
  QUIRE_RETURN_IF_ERROR(read_parameters(config, out));
  QUIRE_RETURN_IF_ERROR(read_trained_tokens(config, out));
  if (out.targets.empty() && out.saved_modules.empty() && out.parameters.empty() && out.trained_tokens.empty()) {
    return invalid_argument("target_modules is empty: the adapter adds to nothing");
  }
  return {};
}

}  // namespace

Result<ModuleSelection> ModuleSelection::read(const json::object& config, std::string_view key) {
  ModuleSelection selection;
  const json::value* value = given(config, key);
  if (value == nullptr) return selection;
  if (value->is_string()) {
    const std::string text(value->get_string());
    if (text == "all-linear") {
      selection.all_linear_ = true;
      return selection;
    }
    auto pattern = ModulePattern::parse_whole(text);
    if (!pattern.ok()) return pattern.status().with_prefix(fmt::format("{}: ", key));
    selection.pattern_ = std::move(*pattern);
    return selection;
  }
  QUIRE_ASSIGN_OR_RETURN(selection.names_, read_names(config, key));
  // PEFT takes the word in a list of one as the word alone.
  if (selection.names_ == std::vector<std::string>{"all-linear"}) {
    selection.names_.clear();
    selection.all_linear_ = true;
  }
  return selection;
}

Result<bool> ModuleSelection::selects(std::string_view module, bool is_linear) const {
  if (all_linear_) return is_linear;
  if (pattern_) return pattern_->matches(module);
  return std::ranges::any_of(names_, [&](const std::string& name) { return ends_with_module(module, name); });
}

Result<NumbersByModule> NumbersByModule::read(const json::object& config, std::string_view key) {
  NumbersByModule out;
  const json::value* value = given(config, key);
  if (value == nullptr) return out;
  const json::object* object = value->if_object();
  if (object == nullptr || object->size() > kMostNames) return wrong(key, *value, "an object of names and numbers");
  for (const auto& [name, number] : *object) {
    Entry entry{.key = std::string(name), .pattern = {}, .number = 0};
    QUIRE_ASSIGN_OR_RETURN(entry.number, positive_number(fmt::format("{}[{}]", key, in_quotes(name)), number));
    if (!is_plain(entry.key)) {
      auto pattern = ModulePattern::parse_whole("(.*\\.)?(" + entry.key + ")");
      if (!pattern.ok()) return pattern.status().with_prefix(fmt::format("{}: ", key));
      entry.pattern = std::move(*pattern);
    }
    out.entries_.push_back(std::move(entry));
  }
  return out;
}

Result<std::optional<double>> NumbersByModule::of(std::string_view module) const {
  for (const Entry& entry : entries_) {
    bool matches = !entry.pattern && ends_with_module(module, entry.key);
    if (entry.pattern) {
      QUIRE_ASSIGN_OR_RETURN(matches, entry.pattern->matches(module));
    }
    if (matches) return std::optional<double>(entry.number);
  }
  return std::optional<double>();
}

bool PeftConfig::adapts_parameter(std::string_view name) const {
  return std::ranges::any_of(parameters, [&](const std::string& end) { return ends_with_module(name, end); });
}

Result<bool> PeftConfig::adapts(std::string_view module, bool is_linear) const {
  if (adapts_parameter(std::string(module) + ".weight")) return true;
  QUIRE_ASSIGN_OR_RETURN(const bool excluded_too, excluded.selects(module, is_linear));
  if (excluded_too) return false;
  QUIRE_ASSIGN_OR_RETURN(const bool selected, targets.selects(module, is_linear));
  // A regular expression says the layers itself.
  if (!selected || layers.empty() || !targets.is_list() || targets.names_whole(module)) return selected;
  std::optional<int64_t> number;
  if (layer_lists.empty()) number = layer_number(module, "");
  for (size_t i = 0; i < layer_lists.size() && !number; ++i) number = layer_number(module, layer_lists[i]);
  return number && std::ranges::find(layers, *number) != layers.end();
}

Result<int64_t> PeftConfig::rank_of(std::string_view module) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> own, ranks.of(module));
  if (!own) return rank;
  if (*own != std::floor(*own) || *own > static_cast<double>(kMostRank)) {
    return invalid_argument("rank_pattern has {} for {}, expected an integer from 1 to {}", *own, in_quotes(module),
                            kMostRank);
  }
  return static_cast<int64_t>(*own);
}

Result<double> PeftConfig::scale_of(std::string_view module) const {
  QUIRE_ASSIGN_OR_RETURN(const int64_t own_rank, rank_of(module));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> own_alpha, alphas.of(module));
  const auto divisor = static_cast<double>(own_rank);
  return own_alpha.value_or(alpha) / (rank_stabilised ? std::sqrt(divisor) : divisor);
}

const std::vector<int32_t>* PeftConfig::tokens_of(std::string_view module) const {
  for (const auto& [end, ids] : trained_tokens) {
    if (end.empty() ? !module.ends_with("lm_head") : ends_with_module(module, end)) return &ids;
  }
  return nullptr;
}

bool PeftConfig::saves(std::string_view module) const {
  // PEFT takes any ending here, not whole components: "norm" is "input_layernorm" too.
  return std::ranges::any_of(saved_modules, [&](const std::string& name) { return module.ends_with(name); });
}

Result<PeftConfig> read_peft_config(const json::object& config) {
  PeftConfig out;
  const json::value* type = given(config, "peft_type");
  if (type == nullptr)
    return invalid_argument("peft_type is missing, expected \"LORA\", \"PROMPT_TUNING\" or \"PREFIX_TUNING\"");
  if (!type->is_string()) return wrong("peft_type", *type, "a string");
  if (const json::value* base = given(config, "base_model_name_or_path"); base != nullptr && base->is_string()) {
    out.base_model = base->get_string();
  }
  const std::string_view word = type->get_string();
  if (word != "LORA" && word != "PROMPT_TUNING" && word != "PREFIX_TUNING") {
    return unimplemented("peft_type is {}, which is not built; supported: LORA, PROMPT_TUNING, PREFIX_TUNING",
                         in_quotes(word));
  }
  QUIRE_RETURN_IF_ERROR(refuse_what_is_missing(config));
  if (word == "LORA") {
    QUIRE_RETURN_IF_ERROR(read_low_rank(config, out));
    return out;
  }
  out.kind = word == "PROMPT_TUNING" ? AdapterKind::kPromptTuning : AdapterKind::kPrefixTuning;
  QUIRE_ASSIGN_OR_RETURN(out.num_virtual_tokens, read_integer(config, "num_virtual_tokens", 1, kMostVirtualTokens));
  if (given(config, "modules_to_save") != nullptr && says_something(*given(config, "modules_to_save"))) {
    return unimplemented("modules_to_save beside soft prompts is not built");
  }
  return out;
}

}  // namespace quire::checkpoint
