// Fields of chats that the other APIs whose requests become chats (/v1/responses, /v1/messages) have in common with
// them.
#pragma once

#include "server/refused_fields.h"

namespace quire::server {

// They mean there what they mean in a chat: how tokens are chosen, what the answer must be, how it is computed.
inline constexpr const char* kFieldsOfChats[] = {"model",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "min_p",
                                                 "typical_p",
                                                 "top_n_sigma",
                                                 "dynatemp_range",
                                                 "dynatemp_exponent",
                                                 "xtc_probability",
                                                 "xtc_threshold",
                                                 "mirostat",
                                                 "mirostat_tau",
                                                 "mirostat_eta",
                                                 "dry_multiplier",
                                                 "dry_base",
                                                 "dry_allowed_length",
                                                 "dry_penalty_last_n",
                                                 "dry_sequence_breakers",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "repetition_penalty",
                                                 "repetition_detection",
                                                 "logit_bias",
                                                 "bad_words",
                                                 "allowed_token_ids",
                                                 "stop_token_ids",
                                                 "include_stop_str_in_output",
                                                 "skip_special_tokens",
                                                 "ignore_eos",
                                                 "min_tokens",
                                                 "seed",
                                                 "deterministic",
                                                 "structured_outputs",
                                                 "guided_json",
                                                 "guided_regex",
                                                 "guided_choice",
                                                 "guided_grammar",
                                                 "structural_tag",
                                                 "thinking_token_budget",
                                                 "prediction",
                                                 "speculation",
                                                 "cache_salt",
                                                 "priority",
                                                 "timeout",
                                                 "user",
                                                 "chat_template_kwargs",
                                                 "include_reasoning",
                                                 "stream"};

// They have no meaning there.
inline constexpr RefusedField kRefusedOutsideChats[] = {
    {"use_beam_search", is_falsy, "an answer is sampled here; /v1/chat/completions searches"},
    {"beam_width", is_falsy, "an answer is sampled here; /v1/chat/completions searches"},
    {"best_of", is_one, "an answer is one here"},
    {"n", is_one, "an answer is one here"},
    {"echo", is_falsy, "it belongs to /v1/chat/completions"},
    {"suffix", is_falsy, "it belongs to completions"},
    {"prompt_logprobs", is_null, "it belongs to /v1/completions and /v1/chat/completions"},
    {"truncate_prompt_tokens", is_null, "it belongs to /v1/completions and /v1/chat/completions"},
};

}  // namespace quire::server
