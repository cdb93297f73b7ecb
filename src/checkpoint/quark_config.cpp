#include "checkpoint/quark_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;
using Per = RoundingScheme::Per;

// A name, an expression behind "re:", or one with "*" for any letters, which is to be all of a name.
Result<ModulePattern> pattern_of(std::string_view text) {
  if (text.find('*') == std::string_view::npos || text.starts_with("re:")) return ModulePattern::parse(text);
  std::string expression;
  for (const char letter : text) {
    if (letter == '*') {
      expression += ".*";
    } else if (letter == '?') {
      expression += '.';
    } else {
      if (std::string_view("\\^$.|+()[]{}").find(letter) != std::string_view::npos) expression += '\\';
      expression += letter;
    }
  }
  return ModulePattern::parse_whole(expression);
}

// How one kind of a module's tensors is rounded.
Result<RoundingScheme> read_spec(const ConfigFields& fields, std::string& dtype) {
  dtype = fields.text("dtype");
  RoundingScheme scheme;
  scheme.is_float = dtype.starts_with("fp");
  scheme.bits = dtype == "fp4" || dtype == "int4" || dtype == "uint4" ? 4 : 8;
  scheme.symmetric = fields.flag("symmetric", true);
  scheme.dynamic = fields.flag("is_dynamic", false);
  scheme.group_size = fields.whole("group_size").value_or(0);
  const std::string_view kind = fields.text("qscheme");
  if (kind == "per_tensor") {
    scheme.per = Per::kTensor;
  } else if (kind == "per_channel") {
    scheme.per = Per::kChannel;
  } else if (kind == "per_group") {
    scheme.per = Per::kGroup;
    if (scheme.group_size <= 0) return fields.unfit("group_size", "a number of columns");
  } else {
    return fields.refuse("qscheme", "\"per_tensor\", \"per_channel\", \"per_group\"");
  }
  return scheme;
}

Status check_exponents(const ConfigFields& fields, const RoundingScheme& scheme) {
  if (scheme.per != Per::kGroup) return fields.refuse("qscheme", "\"per_group\" of fp4");
  if (scheme.group_size != 32) return fields.refuse("group_size", "32 of fp4");
  if (fields.text("scale_format") != "e8m0") return fields.refuse("scale_format", "\"e8m0\" of fp4");
  return {};
}

Status read_weights(const ConfigFields& fields, ModuleGroup& group) {
  std::string dtype;
  QUIRE_ASSIGN_OR_RETURN(group.weights, read_spec(fields, dtype));
  const RoundingScheme& weights = group.weights;
  if (weights.dynamic) return fields.refuse("is_dynamic", "false of weights");
  if (dtype == "fp4") {
    group.format = "mxfp4-pack-quantized";
    return check_exponents(fields, weights);
  }
  if (dtype == "int4" || dtype == "uint4") {
    group.format = dtype;
    return weights.per == Per::kGroup ? Status() : fields.refuse("qscheme", "\"per_group\" of 4 bits");
  }
  if (dtype != "fp8_e4m3" && dtype != "int8")
    return fields.refuse("dtype", "\"fp8_e4m3\", \"int8\", \"int4\", \"uint4\", \"fp4\"");
  if (weights.per == Per::kGroup) return fields.refuse("qscheme", "\"per_tensor\", \"per_channel\" of 8 bits");
  // Of a matrix [outputs, inputs].
  if (weights.per == Per::kChannel && fields.whole("ch_axis").value_or(0) != 0)
    return fields.refuse("ch_axis", "0: a scale for each output");
  if (!weights.symmetric) return fields.refuse("symmetric", "true of weights of 8 bits");
  group.format = weights.is_float ? "float-quantized" : "int-quantized";
  return {};
}

Status read_inputs(const ConfigFields& fields, ModuleGroup& group) {
  std::string dtype;
  QUIRE_ASSIGN_OR_RETURN(RoundingScheme inputs, read_spec(fields, dtype));
  if (group.format == "int4" || group.format == "uint4") return fields.refuse("dtype", "null beside weights of 4 bits");
  if (dtype == "fp4") {
    QUIRE_RETURN_IF_ERROR(check_exponents(fields, inputs));
    if (!inputs.dynamic) return fields.refuse("is_dynamic", "true of fp4");
    if (fields.text("scale_calculation_mode", "even") != "even")
      return fields.refuse("scale_calculation_mode", "\"even\"");
    group.inputs = inputs;
    return {};
  }
  if (dtype != "fp8_e4m3" && dtype != "int8") return fields.refuse("dtype", "\"fp8_e4m3\", \"int8\", \"fp4\"");
  if (inputs.is_float && !inputs.symmetric) return fields.refuse("symmetric", "true of fp8_e4m3");
  if (inputs.dynamic && !inputs.is_float)
    return fields.refuse("is_dynamic", "false of int8, or fp8_e4m3, whose rows may have scales of their own");
  if (inputs.dynamic && inputs.per != Per::kChannel)
    return fields.refuse("qscheme", "\"per_channel\" where each row has a scale of its own");
  if (!inputs.dynamic && inputs.per != Per::kTensor)
    return fields.refuse("qscheme", "\"per_tensor\" where scales are stored");
  if (inputs.dynamic) inputs.per = Per::kToken;
  group.inputs = inputs;
  return {};
}

// Of one of several tensors' specifications; two, one of the other's scales, come as a list.
Result<const json::object*> spec_of(const ConfigFields& fields, std::string_view key) {
  const json::value* value = fields.find(key);
  if (value != nullptr && value->is_array()) return fields.refuse(key, "one specification: no scales that are rounded");
  return fields.object(key);
}

// False: its modules stay as they are. `is_cached`: what keys and values would be rounded to in a cache of 8 bits,
// which is for the user to choose, may stand there.
Result<bool> read_modules(const ConfigFields& fields, bool is_cached, ModuleGroup& group) {
  QUIRE_ASSIGN_OR_RETURN(const json::object* weights, spec_of(fields, "weight"));
  if (fields.find("bias") != nullptr) return fields.refuse("bias", "null");
  if (fields.find("output_tensors") != nullptr && !is_cached)
    return fields.refuse("output_tensors", "null but of keys and values");
  QUIRE_ASSIGN_OR_RETURN(const json::object* inputs, spec_of(fields, "input_tensors"));
  if (weights == nullptr) {
    if (inputs == nullptr) return false;
    return fields.refuse("weight", "a specification where inputs are rounded");
  }
  QUIRE_RETURN_IF_ERROR(read_weights(ConfigFields(*weights, fields.path() + ".weight"), group));
  if (inputs != nullptr)
    QUIRE_RETURN_IF_ERROR(read_inputs(ConfigFields(*inputs, fields.path() + ".input_tensors"), group));
  return true;
}

Status read_exclude(const ConfigFields& fields, QuantizationConfig& out) {
  const json::value* value = fields.find("exclude");
  if (value == nullptr) return {};
  if (!value->is_array()) return fields.unfit("exclude", "a list of names");
  for (const json::value& entry : value->get_array()) {
    if (!entry.is_string()) return fields.unfit("exclude", "a list of names");
    auto pattern = pattern_of(entry.get_string());
    if (!pattern.ok()) return pattern.status().with_prefix(fields.path() + ".exclude: ");
    out.ignored.push_back(*std::move(pattern));
  }
  return {};
}

Status read_export(const ConfigFields& fields, bool& has_cache, bool& is_reordered) {
  QUIRE_ASSIGN_OR_RETURN(const json::object* written, fields.object("export"));
  if (written == nullptr) return {};
  const ConfigFields of_export(*written, fields.path() + ".export");
  if (of_export.text("weight_format", "real_quantized") != "real_quantized")
    return of_export.refuse("weight_format", "\"real_quantized\"");
  is_reordered = of_export.text("pack_method", "reorder") == "reorder";
  const json::value* cached = of_export.find("kv_cache_group");
  has_cache = cached != nullptr && cached->is_array() && !cached->get_array().empty();
  return {};
}

// What was done to the weights is in them; rotations that the inputs are to have, too, are not computed.
Status check_algorithms(const ConfigFields& fields) {
  const json::value* all = fields.find("algo_config");
  if (all == nullptr || !all->is_array()) return {};
  for (const json::value& entry : all->get_array()) {
    if (!entry.is_object()) return fields.unfit("algo_config", "a list of objects");
    const ConfigFields one(entry.get_object(), fields.path() + ".algo_config");
    for (const char* key : {"r3", "r4"}) {
      if (one.flag(key, false)) return one.refuse(key, "false: no rotated inputs");
    }
    QUIRE_ASSIGN_OR_RETURN(const json::object* online, one.object("online_config"));
    if (online == nullptr) continue;
    const ConfigFields of_online(*online, one.path() + ".online_config");
    const json::value* layers = of_online.find("online_rotation_layers");
    if (layers != nullptr && (!layers->is_array() || !layers->get_array().empty()))
      return of_online.refuse("online_rotation_layers", "none: no rotated inputs");
  }
  return {};
}

}  // namespace

Status read_quark(const ConfigFields& fields, QuantizationConfig& out) {
  bool has_cache = false;
  bool is_reordered = true;
  QUIRE_RETURN_IF_ERROR(read_export(fields, has_cache, is_reordered));
  if (fields.find("softmax_quant_spec") != nullptr) return fields.refuse("softmax_quant_spec", "null");
  QUIRE_RETURN_IF_ERROR(check_algorithms(fields));
  QUIRE_ASSIGN_OR_RETURN(const json::object* types, fields.object("layer_type_quant_config"));
  if (types != nullptr && !types->empty())
    return fields.refuse("layer_type_quant_config", "none: modules are told apart by name");
  QUIRE_ASSIGN_OR_RETURN(const json::object* named, fields.object("layer_quant_config"));
  for (const auto& [key, value] : named == nullptr ? json::object() : *named) {
    const std::string path = fmt::format("{}.layer_quant_config[{}]", fields.path(), in_quotes(key));
    if (!value.is_object()) return data_loss("{} is {}; expected an object", path, described(value));
    ModuleGroup group;
    QUIRE_ASSIGN_OR_RETURN(const bool is_coded, read_modules(ConfigFields(value.get_object(), path), has_cache, group));
    if (!is_coded) continue;
    auto pattern = pattern_of(key);
    if (!pattern.ok()) return pattern.status().with_prefix(path + ": ");
    group.targets.push_back(*std::move(pattern));
    out.groups.push_back(std::move(group));
  }
  QUIRE_ASSIGN_OR_RETURN(const json::object* all, fields.object("global_quant_config"));
  if (all == nullptr) return fields.unfit("global_quant_config", "an object");
  ModuleGroup group{.all_linear = true};
  QUIRE_ASSIGN_OR_RETURN(const bool is_coded,
                         read_modules(ConfigFields(*all, fields.path() + ".global_quant_config"), false, group));
  if (is_coded) out.groups.push_back(std::move(group));
  const bool has_words = std::ranges::any_of(
      out.groups, [](const ModuleGroup& one) { return one.format == "int4" || one.format == "uint4"; });
  if (has_words && !is_reordered)
    return unimplemented("{}.export.pack_method is another than \"reorder\" of 4 bits", fields.path());
  return read_exclude(fields, out);
}

}  // namespace quire::checkpoint
