#include "tests/sampling/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace quire::sampling::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool ends_with(const std::vector<TokenId>& tokens, const std::vector<TokenId>& end) {
  return tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

template <typename Keep>
Tokens only(const Tokens& tokens, Keep keep) {
  Tokens kept;
  for (const Token& token : tokens) {
    if (keep(token)) kept.push_back(token);
  }
  return kept;
}

void sort(Tokens& tokens) {
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); });
}

}  // namespace

std::map<TokenId, double> dry_penalties(const SamplingParams& params, const Breakers& breakers,
                                        const std::vector<TokenId>& history) {
  if (params.dry_multiplier == 0.0f || params.dry_penalty_last_n == 0) return {};
  std::vector<TokenId> window = history;
  const auto last_n = static_cast<size_t>(params.dry_penalty_last_n);
  if (params.dry_penalty_last_n > 0 && window.size() > last_n)
    window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(last_n));
  const auto allowed = static_cast<size_t>(params.dry_allowed_length);
  if (window.size() <= allowed) return {};

  // How many tokens stand behind the breaker that begins last.
  size_t behind = window.size();
  bool broken = false;
  for (size_t begin = window.size(); begin-- > 0 && !broken;) {
    for (const std::vector<TokenId>& breaker : breakers) {
      if (begin + breaker.size() > window.size()) continue;
      if (!std::equal(breaker.begin(), breaker.end(), window.begin() + static_cast<std::ptrdiff_t>(begin))) continue;
      behind = std::min(behind, window.size() - begin - breaker.size());
      broken = true;
    }
  }
  if (broken && behind < allowed) return {};

  std::map<TokenId, size_t> longest;
  for (size_t place = 1; place < window.size(); ++place) {  // of a token that followed something
    size_t length = 0;
    while (length < place && length < behind && window[place - 1 - length] == window[window.size() - 1 - length])
      ++length;
    if (length < allowed) continue;
    const auto [entry, is_new] = longest.try_emplace(window[place], length);
    if (!is_new) entry->second = std::max(entry->second, length);
  }
  std::map<TokenId, double> penalties;
  for (const auto& [token, length] : longest) {
    const std::vector<TokenId> alone = {token};
    if (std::find(breakers.begin(), breakers.end(), alone) != breakers.end()) continue;
    penalties[token] = params.dry_multiplier * std::pow(params.dry_base, static_cast<double>(length - allowed));
  }
  return penalties;
}

std::vector<double> processed(const SamplingParams& params, const std::vector<TokenId>& prompt,
                              const std::vector<TokenId>& output, const std::vector<TokenId>& stop_ids,
                              std::vector<double> logits, const Breakers& breakers, bool with_dry) {
  const std::vector<TokenId> history = joined(prompt, output);
  const auto is_token = [&](TokenId id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  if (params.allowed_token_ids) {
    const std::set<TokenId> allowed(params.allowed_token_ids->begin(), params.allowed_token_ids->end());
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!allowed.contains(static_cast<TokenId>(i))) logits[i] = -kInf;
    }
  }
  for (const std::vector<TokenId>& word : params.bad_words_ids) {
    const std::vector<TokenId> before(word.begin(), word.end() - 1);
    if (ends_with(history, before)) logits[static_cast<size_t>(word.back())] = -kInf;
  }
  if (static_cast<int32_t>(output.size()) < params.min_tokens) {
    for (TokenId id : stop_ids) logits[static_cast<size_t>(id)] = -kInf;
  }
  for (const auto& [id, bias] : params.logit_bias) {
    logits[static_cast<size_t>(id)] += std::clamp(static_cast<double>(bias), -100.0, 100.0);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const auto count = static_cast<double>(std::count(output.begin(), output.end(), id));
    if (std::find(history.begin(), history.end(), id) != history.end()) {
      logits[i] = logits[i] > 0 ? logits[i] / params.repetition_penalty : logits[i] * params.repetition_penalty;
    }
    logits[i] -= params.frequency_penalty * count + (count > 0 ? params.presence_penalty : 0.0);
  }
  if (with_dry) {
    for (const auto& [id, penalty] : dry_penalties(params, breakers, history)) {
      if (is_token(id)) logits[static_cast<size_t>(id)] -= penalty;
    }
  }
  return logits;
}

Tokens sorted(const std::vector<double>& logits) {
  Tokens tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInf) tokens.push_back({static_cast<TokenId>(i), logits[i]});
  }
  sort(tokens);
  return tokens;
}

Tokens softmax(Tokens logits) {
  const double maximum = logits.front().value;
  for (Token& token : logits) token.value = std::exp(token.value - maximum);
  return normalised(std::move(logits));
}

Tokens normalised(Tokens probabilities) {
  double total = 0.0;
  for (const Token& token : probabilities) total += token.value;
  for (Token& token : probabilities) token.value /= total;
  return probabilities;
}

double entropy(const Tokens& probabilities) {
  double sum = 0.0;
  for (const Token& token : probabilities) {
    if (token.value > 0.0) sum -= token.value * std::log(token.value);
  }
  return sum;
}

Tokens top_n_sigma(Tokens logits, double n) {
  const auto count = static_cast<double>(logits.size());
  double mean = 0.0;
  for (const Token& token : logits) mean += token.value / count;
  double variance = 0.0;
  for (const Token& token : logits) variance += (token.value - mean) * (token.value - mean) / count;
  const double least = logits.front().value - n * std::sqrt(variance);
  return only(logits, [&](const Token& token) { return token.value >= least; });
}

double dynamic_temperature(const Tokens& logits, double temperature, double range, double exponent) {
  if (logits.size() < 2) return temperature;
  const double share = entropy(softmax(logits)) / std::log(static_cast<double>(logits.size()));
  const double lowest = std::max(0.0, temperature - range);
  return lowest + (temperature + range - lowest) * std::pow(share, exponent);
}

Tokens min_p(Tokens probabilities, double share) {
  const double least = probabilities.front().value * share;
  return normalised(only(probabilities, [&](const Token& token) { return token.value >= least; }));
}

Tokens top_k(Tokens probabilities, size_t k) {
  if (k == 0 || k >= probabilities.size()) return probabilities;
  const double least = probabilities[k - 1].value;
  return normalised(only(probabilities, [&](const Token& token) { return token.value >= least; }));
}

Tokens typical(Tokens probabilities, double p) {
  const double mean = entropy(probabilities);
  std::stable_sort(probabilities.begin(), probabilities.end(), [&](const Token& a, const Token& b) {
    return std::abs(-std::log(a.value) - mean) < std::abs(-std::log(b.value) - mean);
  });
  double sum = 0.0;
  Tokens kept;
  for (const Token& token : probabilities) {
    if (!kept.empty() && sum >= p) break;
    kept.push_back(token);
    sum += token.value;
  }
  sort(kept);
  return normalised(kept);
}

Tokens top_p(Tokens probabilities, double p) {
  double sum = 0.0;
  Tokens kept;
  for (const Token& token : probabilities) {
    if (!kept.empty() && sum >= p) break;
    kept.push_back(token);
    sum += token.value;
  }
  return normalised(kept);
}

Tokens exclude_top_choices(Tokens probabilities, double threshold) {
  const auto above = std::count_if(probabilities.begin(), probabilities.end(),
                                   [&](const Token& token) { return token.value >= threshold; });
  if (above > 1) probabilities.erase(probabilities.begin(), probabilities.begin() + (above - 1));
  return normalised(probabilities);
}

Tokens distribution(const SamplingParams& params, const std::vector<double>& logits, bool xtc) {
  Tokens tokens = sorted(logits);
  if (params.greedy()) return {tokens.front()};
  if (params.top_n_sigma > 0) tokens = top_n_sigma(tokens, params.top_n_sigma);
  double temperature = params.temperature;
  if (params.dynatemp_range > 0) {
    temperature = dynamic_temperature(tokens, temperature, params.dynatemp_range, params.dynatemp_exponent);
  }
  if (temperature < 1e-5) return {{tokens.front().id, 1.0}};
  for (Token& token : tokens) token.value /= temperature;
  tokens = min_p(softmax(tokens), params.min_p);
  if (params.top_k > 0) tokens = top_k(tokens, static_cast<size_t>(params.top_k));
  if (params.typical_p < 1) tokens = typical(tokens, params.typical_p);
  if (params.top_p < 1) tokens = top_p(tokens, params.top_p);
  if (xtc) tokens = exclude_top_choices(tokens, params.xtc_threshold);
  return tokens;
}

Tokens mirostat(const SamplingParams& params, const std::vector<double>& logits, double mu) {
  Tokens tokens = sorted(logits);
  for (Token& token : tokens) token.value /= params.temperature;
  tokens = softmax(tokens);
  if (params.mirostat == 2) {
    const Token first = tokens.front();
    tokens = only(tokens, [&](const Token& token) { return -std::log2(token.value) <= mu; });
    if (tokens.empty()) tokens = {first};
    return normalised(tokens);
  }
  double above = 0.0;
  double below = 0.0;
  for (size_t i = 0; i + 1 < std::min<size_t>(tokens.size(), 100); ++i) {
    const double t = std::log((static_cast<double>(i) + 2.0) / (static_cast<double>(i) + 1.0));
    above += t * std::log(tokens[i].value / tokens[i + 1].value);
    below += t * t;
  }
  const double s = above / below;
  const double n = static_cast<double>(logits.size());
  const double k = std::pow((s - 1) * std::pow(2.0, mu) / (1 - std::pow(n, 1 - s)), 1 / s);
  const auto count = static_cast<size_t>(std::clamp(k, 1.0, n));
  if (tokens.size() > count) tokens.resize(count);
  return normalised(tokens);
}

double mirostat_next_mu(const SamplingParams& params, const Tokens& kept, TokenId drawn, double mu) {
  for (const Token& token : kept) {
    if (token.id == drawn) return mu - params.mirostat_eta * (-std::log2(token.value) - params.mirostat_tau);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::optional<TokenId> draw(Tokens probabilities, bool by_id, double u) {
  constexpr double kUnsure = 1e-5;
  if (by_id) {
    std::sort(probabilities.begin(), probabilities.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  }
  double sum = 0.0;
  for (const Token& token : probabilities) {
    sum += token.value;
    if (std::abs(sum - u) < kUnsure && &token != &probabilities.back()) return std::nullopt;
    if (sum > u) return token.id;
  }
  return probabilities.back().id;
}

std::vector<float> random_logits(std::mt19937& random, size_t vocab_size, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<double> widened(const std::vector<float>& logits) {
  return {logits.begin(), logits.end()};
}

}  // namespace quire::sampling::oracle
