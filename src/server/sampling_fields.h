// The fields of a request that say how its tokens are chosen: vLLM's names, and those of llama.cpp's server for the
// samplers that vLLM does not have. A field and where it goes is a row of a table in the .cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/kv_transfer_params.h"
#include "server/sampling_defaults.h"
#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire::server {

struct SchemaLimits {
  SamplingDefaults defaults;
  int64_t max_prompts = 1024;
  int64_t max_n = 128;
  int64_t max_stop = 1024;  // OpenAI takes 4; vLLM any number. Their bytes bound what a token costs
  int64_t max_bad_words = 128;
  int64_t max_dry_sequence_breakers = 16;
  size_t max_words_bytes = 16 << 10;  // of stop, of bad_words, of dry_sequence_breakers: each list's texts together
  int64_t max_token_ids = 1 << 20;    // of logit_bias, stop_token_ids, allowed_token_ids: entries of each
  int64_t max_detokenized = 1 << 20;  // token ids: two bytes of a body may become a long word each
  int64_t max_model_len = 0;          // 0: unknown
  KvTransferRole kv_transfer;         // what kv_transfer_params may ask for
  int64_t max_transfer_blocks = 0;    // of a text
  bool trust_request_chat_template = false;
  bool return_token_ids = false;            // for requests that do not say
  bool return_tokens_as_token_ids = false;  // the same
};

// Everything of SamplingParams but max_tokens and logprobs, which chats and completions spell differently. What fails
// stays in `fields`; ranges are types/'s to check, as far as a value fits its type.
void read_sampling(JsonFields& fields, const SchemaLimits& limits, SamplingParams& params);

// Non-negative integers of 31 bits.
void read_token_ids(JsonFields& fields, std::string_view name, const boost::json::array& list,
                    std::vector<TokenId>& ids);

}  // namespace quire::server
