#include "server/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "server/api_error.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();

template <typename T>
struct Field {
  const char* name;
  T SamplingParams::*member;
};

constexpr Field<float> kFloats[] = {
    {"temperature", &SamplingParams::temperature},
    {"top_p", &SamplingParams::top_p},
    {"min_p", &SamplingParams::min_p},
    {"presence_penalty", &SamplingParams::presence_penalty},
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
    {"length_penalty", &SamplingParams::length_penalty},
    {"typical_p", &SamplingParams::typical_p},
    {"top_n_sigma", &SamplingParams::top_n_sigma},
    {"dynatemp_range", &SamplingParams::dynatemp_range},
    {"dynatemp_exponent", &SamplingParams::dynatemp_exponent},
    {"xtc_probability", &SamplingParams::xtc_probability},
    {"xtc_threshold", &SamplingParams::xtc_threshold},
    {"mirostat_tau", &SamplingParams::mirostat_tau},
    {"mirostat_eta", &SamplingParams::mirostat_eta},
    {"dry_multiplier", &SamplingParams::dry_multiplier},
    {"dry_base", &SamplingParams::dry_base},
};

constexpr Field<int32_t> kIntegers[] = {
    {"top_k", &SamplingParams::top_k},
    {"min_tokens", &SamplingParams::min_tokens},
    {"mirostat", &SamplingParams::mirostat},
    {"dry_allowed_length", &SamplingParams::dry_allowed_length},
    {"dry_penalty_last_n", &SamplingParams::dry_penalty_last_n},
};

constexpr Field<std::optional<int32_t>> kOptionalIntegers[] = {
    {"prompt_logprobs", &SamplingParams::prompt_logprobs},
    {"truncate_prompt_tokens", &SamplingParams::truncate_prompt_tokens},
};

constexpr Field<bool> kBools[] = {
    {"ignore_eos", &SamplingParams::ignore_eos},
    {"skip_special_tokens", &SamplingParams::skip_special_tokens},
    {"spaces_between_special_tokens", &SamplingParams::spaces_between_special_tokens},
    {"include_stop_str_in_output", &SamplingParams::include_stop_str_in_output},
    {"detokenize", &SamplingParams::detokenize},
    {"use_beam_search", &SamplingParams::use_beam_search},
    {"deterministic", &SamplingParams::deterministic},
};

void read_words(JsonFields& fields, const char* name, const json::value& value, bool may_be_one, int64_t most,
                size_t most_bytes, std::vector<std::string>& words) {
  const char* shape = may_be_one ? "a string or a list of strings" : "a list of strings";
  words.clear();
  if (value.is_string() && may_be_one) {
    words.emplace_back(std::string_view(value.get_string()));
  } else if (const auto* list = value.if_array()) {
    if (static_cast<int64_t>(list->size()) > most) {
      return fields.fail(name, fmt::format("{} has {} strings; at most {} are taken.", name, list->size(), most));
    }
    for (const json::value& item : *list) {
      if (!item.is_string()) {
        return fields.fail(name, fmt::format("{} must be {}; it holds {}.", name, shape, describe(item)));
      }
      words.emplace_back(std::string_view(item.get_string()));
    }
  } else {
    return fields.fail(name, fmt::format("{} must be {}, got {}.", name, shape, describe(value)));
  }
  size_t bytes = 0;
  for (const std::string& word : words) bytes += word.size();
  if (bytes > most_bytes) {
    fields.fail(name, fmt::format("{} has {} bytes of text; at most {} are taken.", name, bytes, most_bytes));
  }
}

void read_all_words(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params) {
  struct WordsField {
    const char* name;
    std::vector<std::string> SamplingParams::*member;
    bool may_be_one;
    int64_t most;
  };
  const WordsField kWords[] = {
      {"stop", &SamplingParams::stop, true, limits.max_stop},
      {"bad_words", &SamplingParams::bad_words, false, limits.max_bad_words},
      {"dry_sequence_breakers", &SamplingParams::dry_sequence_breakers, false, limits.max_dry_sequence_breakers},
  };
  for (const WordsField& field : kWords) {
    const json::value* value = fields.any(field.name);
    if (value == nullptr || value->is_null()) continue;
    read_words(fields, field.name, *value, field.may_be_one, field.most, limits.max_words_bytes, params.*field.member);
  }
}

bool few_enough(JsonFields& fields, const char* name, size_t count, const SchemaLimits& limits) {
  if (static_cast<int64_t>(count) <= limits.max_token_ids) return true;
  fields.fail(name, fmt::format("{} has {} entries; at most {} are taken.", name, count, limits.max_token_ids));
  return false;
}

void read_logit_bias(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params) {
  const json::object* bias = fields.object("logit_bias");
  if (bias == nullptr || !few_enough(fields, "logit_bias", bias->size(), limits)) return;
  for (const auto& [key, value] : *bias) {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return fields.fail("logit_bias",
                         fmt::format("logit_bias has the key {}; keys are token ids.", in_quotes(key, 40)));
    }
    const auto amount = as_float(value);
    if (!amount) {
      return fields.fail("logit_bias",
                         fmt::format("logit_bias of token {} must be a finite number, got {}.", id, describe(value)));
    }
    params.logit_bias.emplace_back(id, std::clamp(*amount, -100.0f, 100.0f));
  }
}

TokenSet token_ids(JsonFields& fields, const char* name, const json::array& list) {
  std::vector<TokenId> ids;
  read_token_ids(fields, name, list, ids);
  return ids;
}

void read_all_token_ids(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params) {
  if (const json::array* ids = fields.array("stop_token_ids")) {
    if (few_enough(fields, "stop_token_ids", ids->size(), limits)) {
      params.stop_token_ids = token_ids(fields, "stop_token_ids", *ids);
    }
  }
  if (const json::array* ids = fields.array("allowed_token_ids")) {
    if (few_enough(fields, "allowed_token_ids", ids->size(), limits)) {
      params.allowed_token_ids = token_ids(fields, "allowed_token_ids", *ids);
    }
  }
  read_logit_bias(fields, limits, params);
}

void read_counts(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params) {
  params.n = static_cast<int32_t>(fields.integer("n", 1, limits.max_n).value_or(1));
  for (const auto& [name, member] : {Field<std::optional<int32_t>>{"best_of", &SamplingParams::best_of},
                                     {"beam_width", &SamplingParams::beam_width}}) {
    const auto count = fields.integer(name, 1, limits.max_n);
    if (!count) continue;
    params.*member = static_cast<int32_t>(*count);
    if (*count < params.n)
      fields.fail(name, fmt::format("{} must be at least n ({}), got {}.", name, params.n, *count));
  }
}

void read_early_stopping(JsonFields& fields, SamplingParams& params) {
  const json::value* value = fields.any("early_stopping");
  if (value == nullptr || value->is_null()) return;
  if (value->is_bool()) {
    params.early_stopping = value->get_bool() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  } else if (value->is_string() && value->get_string() == "never") {
    params.early_stopping = EarlyStopping::kNever;
  } else {
    fields.fail("early_stopping",
                fmt::format("early_stopping must be true, false or \"never\", got {}.", describe(*value)));
  }
}

void read_repetition_detection(JsonFields& fields, SamplingParams& params) {
  constexpr const char* kName = "repetition_detection";
  const json::object* object = fields.object(kName);
  if (object == nullptr) return;
  JsonFields inner(*object, "repetition_detection.");
  RepetitionDetection& detection = params.repetition_detection.emplace();
  const auto count = [&](const char* name) {
    return static_cast<int32_t>(inner.integer(name, 0, kInt32Max).value_or(0));
  };
  detection.max_pattern_size = count("max_pattern_size");
  detection.min_pattern_size = count("min_pattern_size");
  detection.min_count = count("min_count");
  if (!inner.status().ok()) fields.fail(kName, inner.status().message());
}

void check_truncation(JsonFields& fields, const SchemaLimits& limits, const SamplingParams& params) {
  constexpr const char* kName = "truncate_prompt_tokens";
  const int32_t keep = params.truncate_prompt_tokens.value_or(-1);
  if (keep < -1 || keep == 0) {
    fields.fail(kName, fmt::format("{} must be -1 (what the context holds) or at least 1, got {}.", kName, keep));
  }
  if (limits.max_model_len > 0 && keep > limits.max_model_len) {
    fields.fail(kName,
                fmt::format("{}={} cannot be greater than max_model_len={}.", kName, keep, limits.max_model_len));
  }
}

}  // namespace

void read_token_ids(JsonFields& fields, std::string_view name, const json::array& list, std::vector<TokenId>& ids) {
  ids.reserve(list.size());
  for (const json::value& item : list) {
    const auto id = as_integer(item);
    if (!id || *id < 0 || *id > kInt32Max) {
      return fields.fail(name, fmt::format("{} must hold token ids (integers from 0 to {}); it holds {}.", name,
                                           kInt32Max, describe(item)));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
}

void read_sampling(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params) {
  // A beam search draws nothing, and what shapes a draw contradicts it.
  if (!fields.boolean("use_beam_search").value_or(false)) apply_defaults(limits.defaults, params);
  for (const auto& [name, member] : kFloats) params.*member = fields.number(name).value_or(params.*member);
  for (const auto& [name, member] : kBools) params.*member = fields.boolean(name).value_or(params.*member);
  for (const auto& [name, member] : kIntegers) {
    params.*member = static_cast<int32_t>(fields.integer(name, kInt32Min, kInt32Max).value_or(params.*member));
  }
  for (const auto& [name, member] : kOptionalIntegers) {
    if (const auto value = fields.integer(name, kInt32Min, kInt32Max)) params.*member = static_cast<int32_t>(*value);
  }
  if (const auto seed =
          fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    if (*seed != -1) params.seed = static_cast<uint64_t>(*seed);  // vLLM's and llama.cpp's word for none
  }
  read_counts(fields, limits, params);
  read_early_stopping(fields, params);
  read_repetition_detection(fields, params);
  read_all_words(fields, limits, params);
  read_all_token_ids(fields, limits, params);
  check_truncation(fields, limits, params);
}

}  // namespace quire::server
