#include <algorithm>
#include <charconv>

#include "c_api/json_record.h"
#include "c_api/read_json.h"

namespace quire::c_api {
namespace json = boost::json;
namespace {

Status read_logit_bias(const json::value& value, SamplingParams& params) {
  const json::object* biases = value.if_object();
  if (biases == nullptr) return invalid_argument("expected an object of token ids, found {}", describe(value));
  params.logit_bias.clear();
  for (const auto& [key, amount] : *biases) {
    const std::string_view text = key;
    TokenId id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size()) {
      return invalid_argument("expected token ids for keys, found \"{}\"", text.substr(0, 40));
    }
    float bias = 0;
    QUIRE_RETURN_IF_ERROR(read_value(amount, bias));
    params.logit_bias.emplace_back(id, std::clamp(bias, -100.0f, 100.0f));
  }
  return {};
}

Status read_early_stopping(const json::value& value, SamplingParams& params) {
  if (value.is_bool()) {
    params.early_stopping = value.get_bool() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  } else if (value.is_string() && value.get_string() == "never") {
    params.early_stopping = EarlyStopping::kNever;
  } else {
    return invalid_argument("expected true, false or \"never\", found {}", describe(value));
  }
  return {};
}

Status read_repetition_detection(const json::value& value, SamplingParams& params) {
  static constexpr Field<RepetitionDetection> kFields[] = {
      {"max_pattern_size", read_member<&RepetitionDetection::max_pattern_size>},
      {"min_pattern_size", read_member<&RepetitionDetection::min_pattern_size>},
      {"min_count", read_member<&RepetitionDetection::min_count>},
  };
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_argument("expected an object, found {}", describe(value));
  return read_record(*object, kFields, "member", params.repetition_detection.emplace());
}

// Of what a grammar is made: a text as it is, anything else as JSON.
std::string text_of(const json::value& value) {
  return value.is_string() ? std::string(std::string_view(value.get_string())) : json::serialize(value);
}

template <StructuredOutput::Kind kKind>
Status read_constraint(const json::value& value, StructuredOutput& output) {
  output.kind = kKind;
  output.text = text_of(value);
  return {};
}

Status read_choice(const json::value& value, StructuredOutput& output) {
  output.kind = StructuredOutput::Kind::kChoice;
  return read_value(value, output.choices);
}

Status read_json_object(const json::value& value, StructuredOutput& output) {
  bool wanted = false;
  QUIRE_RETURN_IF_ERROR(read_value(value, wanted));
  if (!wanted) return invalid_argument("expected true; leave it out otherwise");
  output.kind = StructuredOutput::Kind::kJsonObject;
  return {};
}

Status read_any_whitespace(const json::value& value, StructuredOutput& output) {
  bool disabled = false;
  QUIRE_RETURN_IF_ERROR(read_value(value, disabled));
  output.any_whitespace = !disabled;
  return {};
}

Status read_structured_outputs(const json::value& value, SamplingParams& params) {
  using Kind = StructuredOutput::Kind;
  static constexpr Field<StructuredOutput> kFields[] = {
      {"json", read_constraint<Kind::kJsonSchema>},
      {"regex", read_constraint<Kind::kRegex>},
      {"choice", read_choice},
      {"grammar", read_constraint<Kind::kGrammar>},
      {"json_object", read_json_object},
      {"structural_tag", read_constraint<Kind::kStructuralTag>},
      {"disable_any_whitespace", read_any_whitespace},
  };
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_argument("expected an object, found {}", describe(value));
  const auto num_constraints = std::ranges::count_if(*object, [](const auto& member) {
    return !member.value().is_null() && member.key() != "disable_any_whitespace";
  });
  if (num_constraints != 1) {
    return invalid_argument(
        "expected one of json, regex, choice, grammar, json_object and structural_tag, found {} of them",
        num_constraints);
  }
  return read_record(*object, kFields, "structured output parameter", params.structured_output.emplace());
}

constexpr Field<SamplingParams> kSamplingFields[] = {
    {"n", read_member<&SamplingParams::n>},
    {"best_of", read_member<&SamplingParams::best_of>},
    {"temperature", read_member<&SamplingParams::temperature>},
    {"top_p", read_member<&SamplingParams::top_p>},
    {"top_k", read_member<&SamplingParams::top_k>},
    {"min_p", read_member<&SamplingParams::min_p>},
    {"presence_penalty", read_member<&SamplingParams::presence_penalty>},
    {"frequency_penalty", read_member<&SamplingParams::frequency_penalty>},
    {"repetition_penalty", read_member<&SamplingParams::repetition_penalty>},
    {"seed", read_member<&SamplingParams::seed>},
    {"typical_p", read_member<&SamplingParams::typical_p>},
    {"top_n_sigma", read_member<&SamplingParams::top_n_sigma>},
    {"dynatemp_range", read_member<&SamplingParams::dynatemp_range>},
    {"dynatemp_exponent", read_member<&SamplingParams::dynatemp_exponent>},
    {"xtc_probability", read_member<&SamplingParams::xtc_probability>},
    {"xtc_threshold", read_member<&SamplingParams::xtc_threshold>},
    {"mirostat", read_member<&SamplingParams::mirostat>},
    {"mirostat_tau", read_member<&SamplingParams::mirostat_tau>},
    {"mirostat_eta", read_member<&SamplingParams::mirostat_eta>},
    {"dry_multiplier", read_member<&SamplingParams::dry_multiplier>},
    {"dry_base", read_member<&SamplingParams::dry_base>},
    {"dry_allowed_length", read_member<&SamplingParams::dry_allowed_length>},
    {"dry_penalty_last_n", read_member<&SamplingParams::dry_penalty_last_n>},
    {"dry_sequence_breakers", read_member<&SamplingParams::dry_sequence_breakers>},
    {"logit_bias", read_logit_bias},
    {"allowed_token_ids", read_member<&SamplingParams::allowed_token_ids>},
    {"bad_words", read_member<&SamplingParams::bad_words>},
    {"structured_outputs", read_structured_outputs},
    {"max_tokens", read_member<&SamplingParams::max_tokens>},
    {"min_tokens", read_member<&SamplingParams::min_tokens>},
    {"ignore_eos", read_member<&SamplingParams::ignore_eos>},
    {"stop", read_member<&SamplingParams::stop>},
    {"stop_token_ids", read_member<&SamplingParams::stop_token_ids>},
    {"include_stop_str_in_output", read_member<&SamplingParams::include_stop_str_in_output>},
    {"repetition_detection", read_repetition_detection},
    {"use_beam_search", read_member<&SamplingParams::use_beam_search>},
    {"beam_width", read_member<&SamplingParams::beam_width>},
    {"length_penalty", read_member<&SamplingParams::length_penalty>},
    {"early_stopping", read_early_stopping},
    {"logprobs", read_member<&SamplingParams::logprobs>},
    {"prompt_logprobs", read_member<&SamplingParams::prompt_logprobs>},
    {"skip_special_tokens", read_member<&SamplingParams::skip_special_tokens>},
    {"spaces_between_special_tokens", read_member<&SamplingParams::spaces_between_special_tokens>},
    {"detokenize", read_member<&SamplingParams::detokenize>},
    {"deterministic", read_member<&SamplingParams::deterministic>},
    {"truncate_prompt_tokens", read_member<&SamplingParams::truncate_prompt_tokens>},
};

}  // namespace

Status read_sampling(std::string_view text, SamplingParams& params) {
  QUIRE_ASSIGN_OR_RETURN(const json::object object, parse_object(text, "the sampling parameters"));
  // The one whose null says something.
  const json::value* bound = object.if_contains("max_tokens");
  if (bound != nullptr && bound->is_null()) params.max_tokens.reset();
  return read_record(object, kSamplingFields, "sampling parameter", params);
}

}  // namespace quire::c_api
