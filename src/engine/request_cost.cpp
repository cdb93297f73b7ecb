#include "engine/request_cost.h"

#include <algorithm>

#include "types/step_plan.h"

namespace quire::engine {
namespace {

// Of an answer, or a beam: what the scheduler, the runner and the stream keep of it, as measured by tests/engine/
// request_pairs_test.cpp, rounded up.
constexpr int64_t kAnswerBytes = 6 << 10;
// Of a prompt's token and answer: the scheduler's list, the runner's, the one that goes from one to the other, and the
// blocks' hashes.
constexpr int64_t kPromptTokenBytes = 16;
// Of a step of a beam search and a beam: a node, and the candidates that it was chosen from.
constexpr int64_t kBeamNodeBytes = 32;
// Of an answer whose constraint is given: where it is in the grammar.
constexpr int64_t kConstraintBytes = 32 << 10;
// A token that penalties touch, in a list that grows to twice its size.
constexpr int64_t kCountBytes = 24;
constexpr int64_t kBits = 8;

bool penalises(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

// What choosing a token takes, in passes over a row of logits that look for the largest: about 0.2 ns a token. Rounded
// from what bench_sampling measures (docs/sampling.md).
int64_t passes(const SamplingParams& params) {
  int64_t count = 1;
  if (params.allowed_token_ids || params.structured_output) count += 2;
  if (penalises(params) || !params.bad_words.empty()) ++count;
  if (params.logprobs) count += 3;
  if (params.use_beam_search) return count + 12;
  if (params.greedy()) return count;
  if (params.mirostat > 0) return count + (params.mirostat == 1 ? 47 : 11);
  count += params.top_k > 0 ? 4 : 9;  // an exponential for each token that is left
  if (params.dynatemp_range > 0) count += 17;
  if (params.top_n_sigma > 0) count += 6;
  if (params.min_p > 0) ++count;
  if (params.top_p < 1) ++count;
  if (params.typical_p < 1) count += 15;
  if (params.xtc_probability > 0) count += 5;
  return count;
}

}  // namespace

RequestCost cost_of(const SamplingParams& params, int64_t num_prompt_tokens, const CostFacts& facts) {
  const int64_t answer = most_answer_tokens(params, num_prompt_tokens, facts.max_model_len);
  const int64_t sequences = params.num_sequences();
  const int64_t seen = std::min(num_prompt_tokens + answer, facts.vocab_size);

  RequestCost cost;
  cost.tokens = num_prompt_tokens + sequences * answer;
  cost.rows = sequences;
  if (params.prompt_logprobs) cost.rows += std::min(num_prompt_tokens, facts.max_num_batched_tokens);
  cost.logprobs = most_logprob_bytes(params, num_prompt_tokens, facts.vocab_size, facts.max_model_len);

  int64_t each = kAnswerBytes + kPromptTokenBytes * num_prompt_tokens;
  if (penalises(params)) each += kCountBytes * seen;
  if (params.structured_output) each += kConstraintBytes + facts.vocab_size / kBits;
  if (params.use_beam_search) each += kBeamNodeBytes * answer + 2 * sequences * int64_t{sizeof(TokenLogprob)};
  // The lists as they came, and what the sampler makes of them; both once a request.
  cost.heap_bytes = sequences * each + 2 * heap_bytes(params) + cost.logprobs.sum();

  int64_t row = passes(params) * facts.vocab_size + static_cast<int64_t>(params.logit_bias.size());
  if (penalises(params)) row += seen;
  if (params.dry_multiplier > 0) row += num_prompt_tokens + answer;
  if (params.min_tokens > 0) row += static_cast<int64_t>(params.stop_token_ids.size());
  cost.step_work = sequences * row + (cost.rows - sequences) * 10 * facts.vocab_size;
  return cost;
}

}  // namespace quire::engine
