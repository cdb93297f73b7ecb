#include "bench/dataset.h"

#include <algorithm>
#include <cmath>

#include "bench/sharegpt.h"

namespace quire::bench {
namespace {

// A text that occurs among others without changing how they are split: a space and a word.
bool is_word(const std::string& spelling) {
  return spelling.size() > 1 && spelling[0] == ' ' &&
         std::all_of(spelling.begin() + 1, spelling.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

bool is_printable(const std::string& spelling) {
  return !spelling.empty() && std::all_of(spelling.begin(), spelling.end(), [](char c) { return c > ' ' && c <= '~'; });
}

int64_t length_near(int64_t length, double ratio, std::mt19937_64& random) {
  if (ratio == 0) return length;
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio)));
  return std::max<int64_t>(1, std::uniform_int_distribution<int64_t>(low, high)(random));
}

std::vector<TokenId> joined(const std::vector<TokenId>& prefix, const std::vector<TokenId>& rest) {
  std::vector<TokenId> ids = prefix;
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::vector<Sample> random_samples(const DatasetOptions& options, const PromptMaker& maker, std::mt19937_64& random) {
  const std::vector<TokenId> prefix = maker.random_tokens(options.random_prefix_len, random);
  std::vector<Sample> samples;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const int64_t input_len = length_near(options.random_input_len, options.random_range_ratio, random);
    const int64_t output_len = length_near(options.random_output_len, options.random_range_ratio, random);
    samples.push_back(maker.sample(joined(prefix, maker.random_tokens(input_len, random)), output_len, random));
  }
  return samples;
}

// Every prefix with as many suffixes, in random order; the last ones go to the first prefixes where the numbers do not
// divide.
std::vector<Sample> prefix_repetition_samples(const DatasetOptions& options, const PromptMaker& maker,
                                              std::mt19937_64& random) {
  std::vector<std::vector<TokenId>> prefixes;
  for (int64_t i = 0; i < options.prefix_repetition_num_prefixes; ++i) {
    prefixes.push_back(maker.random_tokens(options.prefix_repetition_prefix_len, random));
  }
  std::vector<Sample> samples;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const std::vector<TokenId>& prefix = prefixes[static_cast<size_t>(i) % prefixes.size()];
    samples.push_back(maker.sample(joined(prefix, maker.random_tokens(options.prefix_repetition_suffix_len, random)),
                                   options.prefix_repetition_output_len, random));
  }
  std::shuffle(samples.begin(), samples.end(), random);
  return samples;
}

Status at_least(int64_t value, int64_t least, std::string_view flag) {
  if (value >= least) return {};
  return invalid_argument("{} is {}; it must be at least {}", flag, value, least);
}

}  // namespace

Status validate(const DatasetOptions& options) {
  QUIRE_RETURN_IF_ERROR(at_least(options.num_prompts, 1, "--num-prompts"));
  if (options.name == "random") {
    QUIRE_RETURN_IF_ERROR(at_least(options.random_input_len, 1, "--random-input-len"));
    QUIRE_RETURN_IF_ERROR(at_least(options.random_output_len, 1, "--random-output-len"));
    QUIRE_RETURN_IF_ERROR(at_least(options.random_prefix_len, 0, "--random-prefix-len"));
    if (!(options.random_range_ratio >= 0 && options.random_range_ratio < 1)) {
      return invalid_argument("--random-range-ratio is {}; it must lie in [0, 1)", options.random_range_ratio);
    }
    return {};
  }
  if (options.name == "prefix_repetition") {
    QUIRE_RETURN_IF_ERROR(at_least(options.prefix_repetition_prefix_len, 0, "--prefix-repetition-prefix-len"));
    QUIRE_RETURN_IF_ERROR(at_least(options.prefix_repetition_suffix_len, 1, "--prefix-repetition-suffix-len"));
    QUIRE_RETURN_IF_ERROR(at_least(options.prefix_repetition_num_prefixes, 1, "--prefix-repetition-num-prefixes"));
    return at_least(options.prefix_repetition_output_len, 1, "--prefix-repetition-output-len");
  }
  if (options.name == "sharegpt") {
    if (options.path.empty()) return invalid_argument("--dataset-name sharegpt needs --dataset-path, its JSON file");
    return at_least(options.sharegpt_output_len.value_or(1), 1, "--sharegpt-output-len");
  }
  return invalid_argument("--dataset-name is \"{}\"; there are random, sharegpt and prefix_repetition", options.name);
}

PromptMaker PromptMaker::of_ids(int64_t vocab_size, const text::Tokenizer* tokenizer) {
  QUIRE_CHECK(vocab_size > 0);
  PromptMaker maker;
  maker.tokenizer_ = tokenizer;
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (tokenizer == nullptr || (!tokenizer->is_special(id) && tokenizer->id_to_token(id))) maker.tokens_.push_back(id);
  }
  if (maker.tokens_.empty()) maker.tokens_.push_back(0);
  return maker;
}

Result<PromptMaker> PromptMaker::of_text(const text::Tokenizer& tokenizer) {
  constexpr size_t kEnough = 256;
  constexpr size_t kFewest = 16;
  PromptMaker maker;
  maker.tokenizer_ = &tokenizer;
  maker.as_text_ = true;
  std::vector<TokenId> others;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string spelling = tokenizer.token_bytes(id);
    const bool word = is_word(spelling);
    if (!word && !is_printable(spelling)) continue;
    if (tokenizer.encode(spelling, /*add_special_tokens=*/false) != std::vector<TokenId>{id}) continue;
    (word ? maker.tokens_ : others).push_back(id);
  }
  if (maker.tokens_.size() < kEnough) maker.tokens_.insert(maker.tokens_.end(), others.begin(), others.end());
  if (maker.tokens_.size() < kFewest) {
    return unimplemented(
        "random prompts need a tokenizer with at least {} tokens that stand for themselves; this has {}", kFewest,
        maker.tokens_.size());
  }
  return maker;
}

std::vector<TokenId> PromptMaker::random_tokens(int64_t count, std::mt19937_64& random) const {
  std::uniform_int_distribution<size_t> any(0, tokens_.size() - 1);
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) id = tokens_[any(random)];
  return ids;
}

Sample PromptMaker::sample(std::vector<TokenId> ids, int64_t output_len, std::mt19937_64& random) const {
  Sample sample{.prompt_ids = std::move(ids), .output_len = output_len};
  if (!as_text_) return sample;
  // Tokens that stand for themselves alone may merge beside others: encode, and make up what is missing or too much.
  constexpr int kMostAttempts = 16;
  const size_t wanted = sample.prompt_ids.size();
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    sample.prompt = tokenizer_->decode(sample.prompt_ids, /*skip_special_tokens=*/false);
    sample.prompt_ids = tokenizer_->encode(sample.prompt, /*add_special_tokens=*/false);
    if (sample.prompt_ids.size() == wanted) break;
    if (attempt + 1 == kMostAttempts) break;
    if (sample.prompt_ids.size() > wanted) {
      sample.prompt_ids.resize(wanted);
    } else {
      const auto missing = static_cast<int64_t>(wanted - sample.prompt_ids.size());
      const std::vector<TokenId> more = random_tokens(missing, random);
      sample.prompt_ids.insert(sample.prompt_ids.end(), more.begin(), more.end());
    }
  }
  return sample;
}

Result<std::vector<Sample>> make_samples(const DatasetOptions& options, const PromptMaker& maker, uint64_t seed) {
  QUIRE_RETURN_IF_ERROR(validate(options));
  std::mt19937_64 random(seed);
  if (options.name == "random") return random_samples(options, maker, random);
  if (options.name == "prefix_repetition") return prefix_repetition_samples(options, maker, random);
  if (maker.tokenizer() == nullptr) {
    return invalid_argument("--dataset-name sharegpt holds texts, and there is no tokenizer; use random");
  }
  return sharegpt_samples(options, *maker.tokenizer(), random);
}

}  // namespace quire::bench
