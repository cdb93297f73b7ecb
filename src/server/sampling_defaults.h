// How tokens are drawn where nobody says: what a model's makers advise, and what suits conversations with people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "types/sampling_params.h"

namespace quire::server {

// What the model's makers advise (generation_config.json).
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<int32_t> max_new_tokens;  // of every answer, at most
};

// Of Hugging Face's names, those above; others are not about sampling or not ours. `what` is named in errors.
// Errors: invalid_argument naming the field.
Result<SamplingDefaults> read_sampling_defaults(const boost::json::object& config, std::string_view what);
// The same of text, with what --override-generation-config says over it; each may be empty.
// Errors: invalid_argument.
Result<SamplingDefaults> read_sampling_defaults(std::string_view config, std::string_view overriding);

// Puts what is advised in the place of what `params` has; max_new_tokens is left to the caller.
void apply_defaults(const SamplingDefaults& defaults, SamplingParams& params);

// "temperature=0.6 top_p=0.95"; empty: none.
std::string to_string(const SamplingDefaults& defaults);

struct ChatSampling {
  SamplingDefaults values;
  const char* source = "";  // of the values, for people: "generation_config.json"
};

// What `quire chat` and the page draw with unless their user says otherwise: `advised` where it says how to draw; else
// what the card of the model says, where its chat template shows which one it is; else a temperature of 0.7 with a
// min_p of 0.05. At 1, the API's default, a small model often leaves the facts.
ChatSampling chat_sampling(const SamplingDefaults& advised, std::string_view chat_template);

// The values by their names in requests, without max_new_tokens: {"temperature": 0.2, "top_p": 0.9}.
boost::json::object to_json(const SamplingDefaults& defaults);

}  // namespace quire::server
