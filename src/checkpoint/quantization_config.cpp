#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>
#include <tuple>

#include <fmt/format.h>

#include "checkpoint/config_fields.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quark_config.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr std::pair<std::string_view, QuantMethod> kMethods[] = {
    {"fp8", QuantMethod::kFp8},           {"fbgemm_fp8", QuantMethod::kFbgemmFp8},
    {"modelopt", QuantMethod::kModelopt}, {"compressed-tensors", QuantMethod::kCompressedTensors},
    {"awq", QuantMethod::kAwq},           {"gptq", QuantMethod::kGptq},
    {"marlin", QuantMethod::kGptq},       {"bitsandbytes", QuantMethod::kBitsandbytes},
    {"torchao", QuantMethod::kTorchao},   {"hqq", QuantMethod::kHqq},
    {"mxfp4", QuantMethod::kMxfp4},       {"quark", QuantMethod::kQuark},
};

Result<std::vector<ModulePattern>> patterns(const ConfigFields& fields, std::string_view key) {
  std::vector<ModulePattern> all;
  const json::value* value = fields.find(key);
  if (value == nullptr) return all;
  if (!value->is_array()) return fields.unfit(key, "a list of names");
  for (const json::value& entry : value->get_array()) {
    if (!entry.is_string()) return fields.unfit(key, "a list of names");
    auto pattern = ModulePattern::parse(entry.get_string());
    if (!pattern.ok()) return pattern.status().with_prefix(fmt::format("{}.{}: ", fields.path(), key));
    all.push_back(*std::move(pattern));
  }
  return all;
}

Status check_group_size(const ConfigFields& fields, std::string_view key, int64_t size) {
  if (size == -1 || (size > 0 && size <= int64_t{1} << 20)) return {};
  return fields.unfit(key, "-1 or a number of columns");
}

Status read_codes(const ConfigFields& fields, std::string_view bits, std::span<const int64_t> supported,
                  std::string_view supported_text, QuantizationConfig& out) {
  const auto found = fields.whole(bits);
  if (!found || std::ranges::find(supported, *found) == supported.end()) return fields.refuse(bits, supported_text);
  out.bits = static_cast<int>(*found);
  const auto group = fields.whole(fields.find("group_size") == nullptr ? "q_group_size" : "group_size");
  if (!group) return fields.unfit("group_size", "-1 or a number of columns");
  out.group_size = *group;
  return check_group_size(fields, "group_size", out.group_size);
}

Status read_awq(const ConfigFields& fields, QuantizationConfig& out) {
  constexpr int64_t kBits[] = {4};
  QUIRE_RETURN_IF_ERROR(read_codes(fields, fields.find("bits") == nullptr ? "w_bit" : "bits", kBits, "4", out));
  if (!fields.flag("zero_point", true)) return fields.refuse("zero_point", "true");
  std::string version(fields.text("version", "gemm"));
  std::ranges::transform(version, version.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  if (version != "gemm" && version != "gemv") return fields.refuse("version", "\"gemm\", \"gemv\"");
  out.is_gemv = version == "gemv";
  return {};
}

// What GPTQModel writes as "dynamic": {"+:expression": {"bits": 8}, "-:expression": {}}.
Status read_overrides(const ConfigFields& fields, QuantizationConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const json::object* dynamic, fields.object("dynamic"));
  if (dynamic == nullptr) return {};
  for (const auto& [key, value] : *dynamic) {
    std::string_view text = key;
    const bool skipped = text.starts_with("-:");
    if (skipped || text.starts_with("+:")) text.remove_prefix(2);
    auto pattern = ModulePattern::parse(text, /*expression=*/true);
    if (!pattern.ok()) return pattern.status().with_prefix(fields.path() + ".dynamic: ");
    GptqOverride one{.pattern = *std::move(pattern), .skipped = skipped};
    if (!value.is_object()) return fields.unfit("dynamic", "an object of objects");
    const ConfigFields own(value.get_object(), fmt::format("{}.dynamic[{}]", fields.path(), in_quotes(key)));
    one.bits = static_cast<int>(own.whole("bits").value_or(0));
    one.group_size = own.whole("group_size").value_or(0);
    out.overrides.push_back(std::move(one));
  }
  return {};
}

Status read_gptq(const ConfigFields& fields, QuantizationConfig& out) {
  constexpr int64_t kBits[] = {2, 3, 4, 8};
  QUIRE_RETURN_IF_ERROR(read_codes(fields, "bits", kBits, "2, 3, 4, 8", out));
  const std::string_view key = fields.find("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  const bool is_marlin = fields.text("quant_method") == "marlin" || fields.flag("is_marlin_format", false);
  const std::string_view format = fields.text(key, is_marlin ? "marlin" : "gptq");
  if (format != "gptq" && format != "gptq_v2" && format != "marlin")
    return fields.refuse(key, "\"gptq\", \"gptq_v2\", \"marlin\"");
  out.is_marlin = is_marlin || format == "marlin";
  if (out.is_marlin && out.bits != 4) return fields.refuse("bits", "4 of Marlin's tiles");
  out.zeros_are_whole = format == "gptq_v2";
  return read_overrides(fields, out);
}

// AutoRound's own name for what is packed as GPTQ's files or AWQ's are.
Status read_auto_round(const ConfigFields& fields, QuantizationConfig& out) {
  const std::string_view packing = fields.text("packing_format", fields.text("backend", "auto_round:auto_gptq"));
  const bool is_awq = packing.find("awq") != std::string_view::npos;
  if (!is_awq && packing.find("gptq") == std::string_view::npos)
    return fields.refuse("packing_format", "\"auto_round:auto_gptq\", \"auto_round:auto_awq\"");
  out.method = is_awq ? QuantMethod::kAwq : QuantMethod::kGptq;
  QUIRE_RETURN_IF_ERROR(is_awq ? read_awq(fields, out) : read_gptq(fields, out));
  QUIRE_ASSIGN_OR_RETURN(const json::object* others, fields.object("extra_config"));
  if (others == nullptr) return {};
  // A key with a character that names do not have is an expression; names come first, so that they win.
  std::vector<GptqOverride> expressions;
  for (const auto& [key, value] : *others) {
    if (!value.is_object()) return fields.unfit("extra_config", "an object of objects");
    const ConfigFields own(value.get_object(), fmt::format("{}.extra_config[{}]", fields.path(), in_quotes(key)));
    const int64_t bits = own.whole("bits").value_or(out.bits);
    const int64_t group = own.whole("group_size").value_or(out.group_size);
    if (bits >= 16 || (bits == out.bits && group == out.group_size)) continue;  // a plain tensor, or as all are
    if (is_awq) return own.refuse("bits", "16, or as for all modules");
    const bool is_expression = std::string_view(key).find_first_of("*+?^$()[]{}|\\") != std::string_view::npos;
    QUIRE_ASSIGN_OR_RETURN(ModulePattern pattern,
                           is_expression ? ModulePattern::parse_anywhere(key) : ModulePattern::parse(key));
    (is_expression ? expressions : out.overrides)
        .push_back({.pattern = std::move(pattern),
                    .bits = static_cast<int>(std::clamp<int64_t>(bits, 0, 64)),
                    .group_size = group});
  }
  std::ranges::move(expressions, std::back_inserter(out.overrides));
  return {};
}

Status read_bitsandbytes(const ConfigFields& fields, QuantizationConfig& out) {
  out.four_bits = fields.flag("load_in_4bit", fields.flag("_load_in_4bit", false));
  const bool eight_bits = fields.flag("load_in_8bit", fields.flag("_load_in_8bit", false));
  if (out.four_bits == eight_bits) return fields.refuse("load_in_4bit", "it or load_in_8bit true");
  const json::value* threshold = fields.find("llm_int8_threshold");
  if (threshold != nullptr && !threshold->is_number()) return fields.unfit("llm_int8_threshold", "a number");
  out.outlier_threshold = threshold == nullptr ? 6.0f : static_cast<float>(threshold->to_number<double>());
  const std::string_view storage = fields.text("bnb_4bit_quant_storage", "uint8");
  if (out.four_bits && storage != "uint8") return fields.refuse("bnb_4bit_quant_storage", "\"uint8\"");
  return {};
}

// {"quant_type": {"default": {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": {"_data": "int4"}}}}}: of
// whole numbers with weights alone rounded. How columns are grouped is told by the scales.
Status read_torchao(const ConfigFields& fields, QuantizationConfig& out) {
  constexpr std::string_view kSupported = "\"Int8WeightOnlyConfig\", \"IntxWeightOnlyConfig\"";
  QUIRE_ASSIGN_OR_RETURN(const json::object* types, fields.object("quant_type"));
  if (types == nullptr) return fields.unfit("quant_type", "an object");
  const ConfigFields of_types(*types, fields.path() + ".quant_type");
  if (types->size() != 1) return fields.refuse("quant_type", "\"default\" alone, the same for all modules");
  QUIRE_ASSIGN_OR_RETURN(const json::object* type, of_types.object("default"));
  if (type == nullptr) return of_types.unfit("default", "an object");
  const ConfigFields of_type(*type, of_types.path() + ".default");
  const std::string_view name = of_type.text("_type");
  out.bits = 8;
  if (name == "Int8WeightOnlyConfig") return {};
  if (name != "IntxWeightOnlyConfig") return of_type.refuse("_type", kSupported);
  QUIRE_ASSIGN_OR_RETURN(const json::object* data, of_type.object("_data"));
  if (data == nullptr) return of_type.unfit("_data", "an object");
  const ConfigFields of_data(*data, of_type.path() + "._data");
  QUIRE_ASSIGN_OR_RETURN(const json::object* dtype, of_data.object("weight_dtype"));
  if (dtype == nullptr) return {};  // int8
  const ConfigFields of_dtype(*dtype, of_data.path() + ".weight_dtype");
  const std::string_view bits = of_dtype.text("_data");
  if (bits.size() != 4 || !bits.starts_with("int") || bits[3] < '1' || bits[3] > '8')
    return of_dtype.refuse("_data", "\"int1\" to \"int8\"");
  out.bits = bits[3] - '0';
  return {};
}

// [128, 128], or "128x128" as older files have it; nullopt for anything else.
std::optional<std::pair<int64_t, int64_t>> read_block(const json::value* value) {
  int64_t rows = 0, columns = 0;
  if (value != nullptr && value->is_array() && value->get_array().size() == 2) {
    const json::array& sizes = value->get_array();
    if (sizes[0].is_int64() && sizes[1].is_int64())
      std::tie(rows, columns) = std::pair(sizes[0].get_int64(), sizes[1].get_int64());
  } else if (value != nullptr && value->is_string()) {
    const std::string_view text = value->get_string();
    const size_t middle = text.find('x');
    if (middle == std::string_view::npos) return std::nullopt;
    std::from_chars(text.data(), text.data() + middle, rows);
    std::from_chars(text.data() + middle + 1, text.data() + text.size(), columns);
  }
  if (rows <= 0 || columns <= 0) return std::nullopt;
  return std::pair(rows, columns);
}

Result<RoundingScheme> read_scheme(const ConfigFields& fields) {
  constexpr std::pair<std::string_view, RoundingScheme::Per> kStrategies[] = {
      {"tensor", RoundingScheme::Per::kTensor}, {"channel", RoundingScheme::Per::kChannel},
      {"token", RoundingScheme::Per::kToken},   {"group", RoundingScheme::Per::kGroup},
      {"block", RoundingScheme::Per::kBlock},   {"tensor_group", RoundingScheme::Per::kGroup}};
  RoundingScheme scheme;
  scheme.bits = static_cast<int>(fields.whole("num_bits").value_or(8));
  const std::string_view type = fields.text("type", "int");
  if (type != "int" && type != "float") return fields.refuse("type", "\"int\", \"float\"");
  scheme.is_float = type == "float";
  scheme.symmetric = fields.flag("symmetric", true);
  const json::value* dynamic = fields.find("dynamic");
  const bool is_local = fields.text("dynamic") == "local";  // beside a shared number
  if (dynamic != nullptr && !dynamic->is_bool() && !is_local) return fields.refuse("dynamic", "true, false, \"local\"");
  scheme.dynamic = is_local || (dynamic != nullptr && dynamic->get_bool());
  scheme.has_shared = fields.text("strategy") == "tensor_group";
  scheme.has_exponents = fields.text("scale_dtype").ends_with("uint8");
  scheme.group_size = fields.whole("group_size").value_or(0);
  const std::string_view otherwise = scheme.group_size > 0     ? "group"
                                     : scheme.group_size == -1 ? "channel"
                                     : scheme.dynamic          ? "token"
                                                               : "tensor";
  const auto* strategy = std::ranges::find(kStrategies, fields.text("strategy", otherwise),
                                           &std::pair<std::string_view, RoundingScheme::Per>::first);
  if (strategy == std::end(kStrategies)) {
    return fields.refuse("strategy", "\"tensor\", \"channel\", \"token\", \"group\", \"block\", \"tensor_group\"");
  }
  scheme.per = strategy->second;
  scheme.block = read_block(fields.find("block_structure"));
  if (scheme.per == RoundingScheme::Per::kGroup && scheme.group_size <= 0)
    return fields.unfit("group_size", "a number of columns");
  return scheme;
}

Status check_inputs(const ConfigFields& fields, const RoundingScheme& inputs) {
  using Per = RoundingScheme::Per;
  if (inputs.is_float && inputs.bits == 4 && inputs.has_shared && inputs.group_size == 16 && inputs.dynamic) return {};
  if (inputs.bits != 8) return fields.refuse("num_bits", "8, or 4 bits of type float in tensor_groups of 16");
  if (inputs.is_float && !inputs.symmetric) return fields.refuse("symmetric", "true");
  if (inputs.dynamic && inputs.per != Per::kToken && inputs.per != Per::kGroup)
    return fields.refuse("strategy", "\"token\" or \"group\" where scales are made as rows come");
  if (!inputs.dynamic && inputs.per != Per::kTensor)
    return fields.refuse("strategy", "\"tensor\" where scales are stored");
  return {};
}

// Formats of stored weights and what they may hold.
Status check_weights(const ConfigFields& fields, std::string_view format, const RoundingScheme& weights) {
  if (weights.dynamic) return fields.refuse("dynamic", "false");
  if (format == "pack-quantized") {
    if (weights.is_float) return fields.refuse("type", "\"int\" of pack-quantized");
    if (weights.bits != 4 && weights.bits != 8) return fields.refuse("num_bits", "4, 8 of pack-quantized");
    return {};
  }
  if (format == "int-quantized" || (format == "naive-quantized" && !weights.is_float)) {
    if (weights.is_float || weights.bits < 2 || weights.bits > 8)
      return fields.refuse("num_bits", "2 to 8 bits of type int, a byte each");
    return {};
  }
  const bool is_mx8 = format == "mxfp8-quantized";
  if (is_mx8 || format == "float-quantized" || format == "naive-quantized") {
    if (!weights.is_float || weights.bits != 8) return fields.refuse("num_bits", "8 bits of type float");
    if (is_mx8 && weights.group_size != 32) return fields.refuse("group_size", "32");
    return {};
  }
  const bool is_nv = format == "nvfp4-pack-quantized";
  if (is_nv || format == "mxfp4-pack-quantized") {
    if (!weights.is_float || weights.bits != 4) return fields.refuse("num_bits", "4 bits of type float");
    if (weights.group_size != (is_nv ? 16 : 32)) return fields.refuse("group_size", is_nv ? "16" : "32");
    return {};
  }
  return unimplemented(
      "{}: format {}; supported: \"pack-quantized\", \"int-quantized\", \"float-quantized\", \"naive-quantized\", "
      "\"mxfp8-quantized\", \"nvfp4-pack-quantized\", \"mxfp4-pack-quantized\"",
      fields.path(), in_quotes(format));
}

Result<ModuleGroup> read_group(const ConfigFields& fields, std::string_view default_format) {
  ModuleGroup group;
  QUIRE_ASSIGN_OR_RETURN(const json::object* weights, fields.object("weights"));
  if (weights == nullptr) return fields.unfit("weights", "an object");
  const ConfigFields of_weights(*weights, fields.path() + ".weights");
  QUIRE_ASSIGN_OR_RETURN(group.weights, read_scheme(of_weights));
  group.format = fields.text("format", default_format);
  QUIRE_RETURN_IF_ERROR(check_weights(of_weights, group.format, group.weights));
  QUIRE_ASSIGN_OR_RETURN(const json::object* inputs, fields.object("input_activations"));
  if (inputs != nullptr) {
    const ConfigFields of_inputs(*inputs, fields.path() + ".input_activations");
    QUIRE_ASSIGN_OR_RETURN(group.inputs, read_scheme(of_inputs));
    QUIRE_RETURN_IF_ERROR(check_inputs(of_inputs, *group.inputs));
  }
  if (fields.find("output_activations") != nullptr) return fields.refuse("output_activations", "null");
  QUIRE_ASSIGN_OR_RETURN(group.targets, patterns(fields, "targets"));
  // Classes; Conv1D is what GPT-2's matrices are.
  group.all_linear = std::erase_if(group.targets, [](const ModulePattern& p) {
                       return p.text() == "Linear" || p.text() == "Conv1D";
                     }) > 0;
  return group;
}

Status read_compressed_tensors(const ConfigFields& fields, QuantizationConfig& out) {
  const std::string_view status = fields.text("quantization_status", "compressed");
  if (status != "compressed" && status != "frozen")
    return fields.refuse("quantization_status", "\"compressed\", \"frozen\"");
  QUIRE_ASSIGN_OR_RETURN(const json::object* sparsity, fields.object("sparsity_config"));
  if (sparsity != nullptr && !sparsity->empty()) {
    const ConfigFields of_sparsity(*sparsity, fields.path() + ".sparsity_config");
    if (of_sparsity.text("format") != "dense") return of_sparsity.refuse("format", "\"dense\": no sparse weights");
  }
  QUIRE_ASSIGN_OR_RETURN(const json::object* transforms, fields.object("transform_config"));
  if (transforms != nullptr && !transforms->empty()) return fields.refuse("transform_config", "none");
  QUIRE_ASSIGN_OR_RETURN(const json::object* groups, fields.object("config_groups"));
  if (groups == nullptr) return fields.unfit("config_groups", "an object");
  for (const auto& [key, value] : *groups) {
    const std::string path = fmt::format("{}.config_groups.{}", fields.path(), std::string_view(key));
    if (!value.is_object()) return data_loss("{} is {}; expected an object", path, described(value));
    QUIRE_ASSIGN_OR_RETURN(ModuleGroup group,
                           read_group(ConfigFields(value.get_object(), path), fields.text("format", "dense")));
    out.groups.push_back(std::move(group));
  }
  if (std::ranges::count_if(out.groups, &ModuleGroup::all_linear) > 1)
    return fields.refuse("config_groups", "one group with a class, Linear or Conv1D, among its targets");
  QUIRE_ASSIGN_OR_RETURN(out.ignored, patterns(fields, "ignore"));
  return {};
}

Result<bool> any_matches(const std::vector<ModulePattern>& patterns, std::string_view module) {
  for (const ModulePattern& pattern : patterns) {
    QUIRE_ASSIGN_OR_RETURN(const bool matches, pattern.matches(module));
    if (matches) return true;
  }
  return false;
}

}  // namespace

std::string_view name(QuantMethod method) {
  for (const auto& [text, value] : kMethods) {
    if (value == method) return text;
  }
  return "?";
}

std::string describe(const QuantizationConfig& config) {
  std::set<std::string> widths;
  for (const ModuleGroup& group : config.groups) {
    const int inputs = group.inputs ? group.inputs->bits : 16;
    const bool is_float = group.weights.is_float;
    widths.insert(fmt::format("W{}A{}{}", group.weights.bits, inputs, is_float ? " of floats" : ""));
  }
  if (config.bits > 0) widths.insert(fmt::format("{} bits", config.bits));
  if (config.method == QuantMethod::kBitsandbytes) widths.insert(config.four_bits ? "4 bits" : "8 bits");
  std::string text(name(config.method));
  for (const std::string& width : widths) text += (&width == &*widths.begin() ? ", " : " and ") + width;
  return text;
}

Result<std::optional<QuantizationConfig>> QuantizationConfig::parse(const json::object& config) {
  // Larger models may have it with their text model.
  const json::value* text_config = config.if_contains("text_config");
  const bool is_nested = !config.contains("quantization_config") && !config.contains("compression_config") &&
                         text_config != nullptr && text_config->is_object();
  if (is_nested) return parse(text_config->get_object());
  const ConfigFields all(config, "config.json");
  // Some files of compressed-tensors call it so.
  const std::string_view key = all.find("quantization_config") == nullptr && all.find("compression_config") != nullptr
                                   ? "compression_config"
                                   : "quantization_config";
  QUIRE_ASSIGN_OR_RETURN(const json::object* object, all.object(key));
  if (object == nullptr) return std::optional<QuantizationConfig>();
  const ConfigFields fields(*object, std::string(key));
  const std::string_view text = fields.text("quant_method");
  QuantizationConfig out;
  if (text == "auto-round" || text == "intel/auto-round") {
    QUIRE_RETURN_IF_ERROR(read_auto_round(fields, out));
    return std::optional(std::move(out));
  }
  const auto* method = std::ranges::find(kMethods, text, &std::pair<std::string_view, QuantMethod>::first);
  if (method == std::end(kMethods)) {
    return unimplemented(
        "{} with quant_method {} is not supported yet; supported: awq, gptq, compressed-tensors, bitsandbytes, "
        "torchao, hqq, fp8, fbgemm_fp8, modelopt, mxfp4, quark, a checkpoint in F32, F16 or BF16, or a GGUF file",
        key, text.empty() ? "(not named)" : in_quotes(text));
  }
  out.method = method->second;
  switch (out.method) {
    case QuantMethod::kFp8:
      break;
    case QuantMethod::kModelopt:
      if (const std::string_view algorithm = fields.text("quant_algo");
          algorithm != "FP8" && algorithm != "MXFP8" && algorithm != "NVFP4")
        return fields.refuse("quant_algo", "\"FP8\", \"MXFP8\", \"NVFP4\"");
      break;
    case QuantMethod::kFbgemmFp8:
      break;
    case QuantMethod::kCompressedTensors:
      QUIRE_RETURN_IF_ERROR(read_compressed_tensors(fields, out));
      break;
    case QuantMethod::kAwq:
      QUIRE_RETURN_IF_ERROR(read_awq(fields, out));
      break;
    case QuantMethod::kGptq:
      QUIRE_RETURN_IF_ERROR(read_gptq(fields, out));
      break;
    case QuantMethod::kBitsandbytes:
      QUIRE_RETURN_IF_ERROR(read_bitsandbytes(fields, out));
      break;
    case QuantMethod::kTorchao:
      QUIRE_RETURN_IF_ERROR(read_torchao(fields, out));
      break;
    case QuantMethod::kQuark:
      QUIRE_RETURN_IF_ERROR(read_quark(fields, out));
      break;
    case QuantMethod::kHqq:    // each weight has its own numbers beside it
    case QuantMethod::kMxfp4:  // stacks are known by their names
      break;
  }
  return std::optional(std::move(out));
}

Result<const ModuleGroup*> QuantizationConfig::group_of(std::string_view module) const {
  QUIRE_ASSIGN_OR_RETURN(const bool is_ignored, any_matches(ignored, module));
  if (is_ignored) {
    return data_loss("{} is stored in codes, but quantization_config.{} has it", module,
                     method == QuantMethod::kQuark ? "exclude" : "ignore");
  }
  for (const ModuleGroup& group : groups) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_named, any_matches(group.targets, module));
    if (is_named) return &group;
  }
  for (const ModuleGroup& group : groups) {
    if (group.all_linear) return &group;
  }
  if (method == QuantMethod::kQuark)
    return data_loss("{} is stored in codes, but quantization_config says of none of its weights how", module);
  return data_loss("{} is stored in codes, but no group of quantization_config.config_groups has it among its targets",
                   module);
}

}  // namespace quire::checkpoint
