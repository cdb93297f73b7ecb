// What an engine gives, as Python's objects.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "channel.h"
#include "text/tokenizer.h"

namespace quire::python {

// Ill-formed UTF-8 becomes U+FFFD.
nanobind::str to_text(const std::string& utf8);

// A list, or with `arrays` numpy's.
nanobind::object to_numbers(const std::vector<float>& numbers, bool arrays);

// (number, index, last, text, token_ids, logprobs, prompt_logprobs, finish_reason, stop_reason, cumulative_logprob,
// num_cached_tokens, error, receipt). Of log-probabilities a list for each token of (id, logprob, rank, text), the
// chosen one first; with `arrays` numpy's, which own what the engine made: token_ids [n] int32, and of
// log-probabilities (ids, logprobs, ranks), each [n, 1 + alternatives], filled up with id -1. None where none were
// asked for.
nanobind::tuple to_tuple(Update update, const text::Tokenizer* tokenizer, bool arrays);

}  // namespace quire::python
