// Suffix drafts beside those of ArcticInference, whose figures scripts/make_suffix_data.py has written down: as many
// tokens a step of the same texts, for about as many guesses.
#include <fstream>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "runner/draft/proposers.h"

namespace quire {
namespace {

struct Counts {
  double steps = 0;
  double tokens = 0;
  double drafted = 0;
  double accepted = 0;
};

// The same way through the answers as the script's: a guess, as much of it as is right, and one token more.
Counts follow(const boost::json::array& requests) {
  SpeculativeConfig config;
  config.method = SpeculativeMethod::kSuffix;
  const auto proposer = runner::make_suffix_proposer(config);
  Counts counts;
  SequenceId id = 0;
  for (const boost::json::value& request : requests) {
    auto tokens = boost::json::value_to<std::vector<TokenId>>(request.at("prompt"));
    const auto answer = boost::json::value_to<std::vector<TokenId>>(request.at("answer"));
    const auto num_prompt_tokens = static_cast<int32_t>(tokens.size());
    ++id;
    size_t done = 0;
    while (done < answer.size()) {
      DraftProposal proposal;
      const size_t left = answer.size() - done - 1;
      const auto most = static_cast<int32_t>(std::min<size_t>(static_cast<size_t>(most_draft_tokens(config)), left));
      if (most > 0) {
        proposer->propose({.id = id, .tokens = tokens, .num_prompt_tokens = num_prompt_tokens}, most, proposal);
      }
      size_t right = 0;
      while (right < proposal.tokens.size() && proposal.tokens[right] == answer[done + right]) ++right;
      for (size_t i = 0; i <= right; ++i) tokens.push_back(answer[done++]);
      counts.steps += 1;
      counts.tokens += static_cast<double>(right) + 1;
      counts.drafted += static_cast<double>(proposal.tokens.size());
      counts.accepted += static_cast<double>(right);
    }
    proposer->ended({.id = id, .tokens = tokens, .num_prompt_tokens = num_prompt_tokens});
  }
  return counts;
}

TEST(SuffixDrafts, AreAsGoodAsArcticInferences) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/suffix_drafts.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const boost::json::value tasks = boost::json::parse(text);
  for (const auto& [name, task] : tasks.as_object()) {
    SCOPED_TRACE(std::string(name));
    const boost::json::value& reference = task.at("reference");
    const auto of = [&](const char* key) { return reference.at(key).to_number<double>(); };
    const Counts ours = follow(task.at("requests").as_array());
    EXPECT_EQ(ours.tokens, of("tokens"));
    const double rate = ours.tokens / ours.steps;
    const double their_rate = of("tokens") / of("steps");
    const double right = ours.accepted / std::max(ours.drafted, 1.0);
    const double their_right = of("accepted") / std::max(of("drafted"), 1.0);
    std::printf("%s: %.2f tokens a step, %.0f %% of %.0f guesses right; the reference's %.2f, %.0f %% of %.0f\n",
                std::string(name).c_str(), rate, 100 * right, ours.drafted, their_rate, 100 * their_right,
                of("drafted"));
    EXPECT_GE(rate, 0.95 * their_rate);
    EXPECT_GE(right, 0.8 * their_right);
  }
}

}  // namespace
}  // namespace quire
