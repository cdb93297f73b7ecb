#include "runner/plan_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/runner/random_plans.h"

namespace quire::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepPlan decoded(const StepPlan& plan) {
  auto read = decode_plan(encode(plan));
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? std::move(*read) : StepPlan();
}

TEST(PlanCodec, APlanIsReadAsItWasWritten) {
  StepPlan plan;
  plan.step = 7;
  plan.moves = {{.id = 1, .source = 2, .token = 3}};
  plan.retired = {4, 5};
  SamplingParams params{.best_of = 3, .temperature = 0.25f, .seed = uint64_t{1} << 63};
  params.bad_words = {"no", ""};
  params.allowed_token_ids = TokenSet({9, 2});
  params.structured_output = StructuredOutput{.kind = StructuredOutput::Kind::kRegex, .text = "[ab]+"};
  plan.added.push_back({.id = 6, .prompt = {7, 8}, .output = {9}, .seed = 10, .eos_ids = {2}, .constraint = 11});
  plan.added.back().params = std::make_shared<const SamplingParams>(params);
  plan.added.back().output_kind = OutputKind::kScore;
  plan.added.back().second_text = 1;
  plan.added.back().pooled_from = 3;
  plan.added.back().media = {{.first = 1, .count = 2, .media = 3}};
  plan.swap_out = {{.block = 12, .slot = 13}};
  plan.swap_in = {{.block = 14, .slot = 15}};
  plan.loads = {{.block = 23, .slot = 24}};
  plan.copies = {{.source = 16, .destination = 17}};
  plan.stores = {{.block = 25, .slot = 26}};
  plan.sampled = {{.id = 28, .token = 29}, {.id = 28, .token = 30}};
  tell_whole_table(plan, 6, 1, std::vector<BlockId>{kNoBlock, 18});
  plan.scheduled = {{.id = 6, .num_computed_tokens = 19, .num_new_tokens = 20, .samples = true, .num_candidates = 21}};
  plan.scheduled.back().num_draft_tokens = 1;
  plan.draft_tokens = {22};
  plan.draft_choices = {2};
  plan.draft_probabilities = {{22, 0.75f}, {27, 0.25f}};
  plan.num_tokens = 20;

  const StepPlan read = decoded(plan);
  EXPECT_EQ(read.step, 7u);
  EXPECT_EQ(read.sampled.at(1).id, 28u);
  EXPECT_EQ(read.sampled.at(1).token, 30);
  EXPECT_EQ(read.moves.at(0).source, 2u);
  EXPECT_EQ(read.moves.at(0).token, 3);
  EXPECT_THAT(read.retired, ElementsAre(4, 5));
  const NewSequence& added = read.added.at(0);
  EXPECT_EQ(added.id, 6u);
  EXPECT_THAT(added.prompt, ElementsAre(7, 8));
  EXPECT_THAT(added.output, ElementsAre(9));
  EXPECT_EQ(added.seed, 10u);
  EXPECT_THAT(added.eos_ids, ElementsAre(2));
  EXPECT_EQ(added.constraint, 11u);
  EXPECT_EQ(added.output_kind, OutputKind::kScore);
  EXPECT_EQ(added.second_text, 1);
  EXPECT_EQ(added.pooled_from, 3);
  EXPECT_EQ(added.media.at(0).media, 3u);
  EXPECT_EQ(added.params->best_of, 3);
  EXPECT_EQ(added.params->temperature, 0.25f);
  EXPECT_EQ(added.params->seed, uint64_t{1} << 63);
  EXPECT_THAT(added.params->bad_words, ElementsAre("no", ""));
  EXPECT_EQ(*added.params->allowed_token_ids, TokenSet({2, 9}));
  EXPECT_EQ(added.params->structured_output, params.structured_output);
  EXPECT_EQ(read.swap_out.at(0).slot, 13);
  EXPECT_EQ(read.swap_in.at(0).block, 14);
  EXPECT_EQ(read.loads.at(0).slot, 24);
  EXPECT_EQ(read.copies.at(0).destination, 17);
  EXPECT_EQ(read.stores.at(0).block, 25);
  EXPECT_EQ(read.table_changes, plan.table_changes);
  EXPECT_THAT(read.table_blocks, ElementsAre(kNoBlock, 18));
  EXPECT_EQ(read.scheduled.at(0).num_candidates, 21);
  EXPECT_TRUE(read.scheduled.at(0).samples);
  EXPECT_EQ(read.scheduled.at(0).num_draft_tokens, 1);
  EXPECT_THAT(read.draft_tokens, ElementsAre(22));
  EXPECT_THAT(read.draft_choices, ElementsAre(2));
  EXPECT_THAT(read.draft_probabilities, ElementsAre(DraftProbability{22, 0.75f}, DraftProbability{27, 0.25f}));
  EXPECT_EQ(read.num_tokens, 20);
}

TEST(PlanCodec, WhatIsNotSetIsNotSetWhereItIsRead) {
  StepPlan plan;
  SamplingParams params{.max_tokens = std::nullopt};
  params.dry_sequence_breakers.clear();
  plan.added.push_back({.prompt = {1}, .params = std::make_shared<const SamplingParams>(params)});
  const StepPlan read = decoded(plan);
  EXPECT_FALSE(read.added.at(0).params->max_tokens.has_value());
  EXPECT_TRUE(read.added.at(0).params->dry_sequence_breakers.empty());
}

TEST(PlanCodec, ParametersThatAnswersShareAreWrittenOnceAndSharedWhereTheyAreRead) {
  std::vector<TokenId> many(10'000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<TokenId>(i);
  const auto shared = std::make_shared<const SamplingParams>(SamplingParams{.stop_token_ids = many});
  StepPlan plan;
  for (SequenceId id = 0; id < 3; ++id) plan.added.push_back({.id = id, .prompt = {1}, .params = shared});
  plan.added.push_back({.id = 3, .prompt = {1}, .params = std::make_shared<const SamplingParams>()});
  EXPECT_LT(encode(plan).size(), 42'000u);
  const StepPlan read = decoded(plan);
  EXPECT_EQ(read.added[0].params, read.added[2].params);
  EXPECT_NE(read.added[0].params, read.added[3].params);
  EXPECT_EQ(read.added[0].params->stop_token_ids.size(), many.size());
}

TEST(PlanCodec, ParametersAreToldOnceAndForgottenWhenNobodyHasThemAnyMore) {
  PlanWriter writer;
  PlanReader reader;
  const auto read = [&](const std::shared_ptr<const SamplingParams>& params, size_t most_bytes) {
    StepPlan plan;
    plan.added.push_back({.id = 1, .prompt = {1}, .params = params});
    const std::string message = writer.write(plan);
    EXPECT_LT(message.size(), most_bytes);
    auto there = reader.read(message);
    EXPECT_TRUE(there.ok()) << there.status().message();
    return there.ok() ? there->added.at(0).params : nullptr;
  };
  std::vector<TokenId> many(10'000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<TokenId>(i);
  const auto kept = std::make_shared<const SamplingParams>(SamplingParams{.stop_token_ids = many});
  const auto first = read(kept, 41'000);
  for (int i = 0; i < 1000; ++i) {
    const auto passing = read(std::make_shared<const SamplingParams>(SamplingParams{.top_k = i}), 1000);
    ASSERT_EQ(passing->top_k, i);
    ASSERT_EQ(read(kept, 1000), first) << "a later answer of the request";
  }
  EXPECT_LE(writer.num_known(), 64u);
  EXPECT_LE(reader.num_known(), 64u);
}

TEST(PlanCodec, ParametersThatNobodyToldAreRefused) {
  PlanWriter writer;
  StepPlan plan;
  plan.added.push_back({.id = 1, .prompt = {1}, .params = std::make_shared<const SamplingParams>()});
  writer.write(plan);
  EXPECT_THAT(decode_plan(writer.write(plan)).status().message(), HasSubstr("names parameters that nobody told"));
}

TEST(PlanCodec, WhateverIsWrittenIsReadAndWrittenAgainTheSame) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomPlans random(seed);
  for (int i = 0; i < 2000; ++i) {
    const std::string plan = encode(random.plan());
    const auto read_plan = decode_plan(plan);
    ASSERT_TRUE(read_plan.ok()) << read_plan.status().message();
    ASSERT_EQ(encode(*read_plan), plan);
    const std::string step = encode(random.step());
    const auto read_step = decode_step(step);
    ASSERT_TRUE(read_step.ok()) << read_step.status().message();
    ASSERT_EQ(encode(*read_step), step);
    const std::string orders = encode(random.orders());
    const auto read_orders = decode_orders(orders);
    ASSERT_TRUE(read_orders.ok()) << read_orders.status().message();
    ASSERT_EQ(encode(*read_orders), orders);
    const std::string reports = encode(random.reports());
    const auto read_reports = decode_reports(reports);
    ASSERT_TRUE(read_reports.ok()) << read_reports.status().message();
    ASSERT_EQ(encode(*read_reports), reports);
  }
}

TEST(PlanCodec, AFailedWorkersErrorComesBackWithItsKind) {
  const auto step = decode_step(encode(Result<ExecutedStep>(resource_exhausted("no memory"))));
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(step->status().message(), "no memory");
}

TEST(PlanCodec, AnotherVersionIsRefusedByBothNumbers) {
  std::string message = encode(StepPlan());
  message[4] = static_cast<char>(kPlanCodecVersion + 1);
  const Status status = decode_plan(message).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("version " + std::to_string(kPlanCodecVersion + 1) + " "));
  EXPECT_THAT(status.message(), HasSubstr("version " + std::to_string(kPlanCodecVersion) + ":"));
}

TEST(PlanCodec, AnotherKindOfMessageAndWhatIsNoneAreRefused) {
  EXPECT_THAT(decode_step(encode(StepPlan())).status().message(), HasSubstr("kind 1 came where kind 2 was expected"));
  EXPECT_THAT(decode_plan("POST /v1/completions").status().message(), HasSubstr("does not begin as a message does"));
}

TEST(PlanCodec, AMessageThatIsCutOffOrGoesOnIsRefusedWhereverThatIs) {
  RandomPlans random(20261125);
  for (int i = 0; i < 20; ++i) {
    const std::string plan = encode(random.plan());
    for (size_t size = 0; size < plan.size(); ++size) {
      ASSERT_FALSE(decode_plan(std::string_view(plan).substr(0, size)).ok()) << size << " of " << plan.size();
    }
    EXPECT_THAT(decode_plan(plan + "x").status().message(), HasSubstr("goes on behind its end"));
    const std::string step = encode(random.step());
    for (size_t size = 0; size < step.size(); ++size) {
      ASSERT_FALSE(decode_step(std::string_view(step).substr(0, size)).ok()) << size << " of " << step.size();
    }
    const std::string orders = encode(random.orders());
    for (size_t size = 0; size < orders.size(); ++size) {
      ASSERT_FALSE(decode_orders(std::string_view(orders).substr(0, size)).ok()) << size << " of " << orders.size();
    }
  }
}

TEST(PlanCodec, AListThatClaimsToBeLongIsRefusedBeforeItTakesMemory) {
  StepPlan plan;
  plan.retired = {1};
  std::string message = encode(plan);
  // Behind the header: nothing forgotten, told or added, a step, no tokens, no moves; then how many are retired.
  const size_t at = 8 + 3 * 4 + 8 + 2 * 4;
  ASSERT_EQ(message.substr(at, 4), std::string("\1\0\0\0", 4));
  message.replace(at, 4, "\xff\xff\xff\x7f");
  EXPECT_THAT(decode_plan(message).status().message(), HasSubstr("has a list that is longer than itself"));
}

// Written as a message has it: how many, then each token.
std::string listed(const std::vector<TokenId>& tokens) {
  std::string bytes;
  const auto append = [&](uint32_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  append(static_cast<uint32_t>(tokens.size()));
  for (const TokenId token : tokens) append(static_cast<uint32_t>(token));
  return bytes;
}

// As a bit of the words the largest id would take 256 MiB.
TEST(PlanCodec, ABreakerOfOneTokenAmongTheLongerOnesIsRefusedBeforeItTakesMemory) {
  SamplingParams params;
  params.dry_breakers = std::make_shared<const DryBreakers>(std::vector<std::vector<TokenId>>{{701, 702, 703}});
  StepPlan plan;
  plan.added.emplace_back().params = std::make_shared<const SamplingParams>(params);
  const std::string message = encode(plan);
  ASSERT_TRUE(decode_plan(message).ok());
  const std::string before = listed({701, 702, 703});
  const size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos);
  for (const auto& tokens : {std::vector<TokenId>{}, {INT32_MAX}, std::vector<TokenId>(21, 5)}) {
    std::string changed = message;
    changed.replace(at, before.size(), listed(tokens));
    EXPECT_THAT(decode_plan(changed).status().message(), HasSubstr("a breaker of too few or too many tokens"));
  }
}

TEST(PlanCodec, ChangesOfTablesThatDoNotFitTheirBlocksAreRefused) {
  StepPlan plan;
  tell_whole_table(plan, 1, 0, std::vector<BlockId>{3, 4});
  plan.table_blocks.pop_back();
  EXPECT_THAT(decode_plan(encode(plan)).status().message(), HasSubstr("changes 2 entries of block tables and names 1"));
  plan.table_blocks.push_back(4);
  plan.table_changes.front().first = 1;
  EXPECT_THAT(decode_plan(encode(plan)).status().message(), HasSubstr("entries 1 to 3 of a block table of 2"));
}

TEST(PlanCodec, DraftTokensThatAreNotAsManyAsTheRunsSayAreRefused) {
  StepPlan plan;
  plan.scheduled = {{.id = 1, .num_draft_tokens = 2}, {.id = 2, .num_draft_tokens = 1}};
  plan.draft_tokens = {3, 4};
  EXPECT_THAT(decode_plan(encode(plan)).status().message(), HasSubstr("has 2 draft tokens for runs of 3"));
  plan.scheduled.back().num_draft_tokens = -1;
  EXPECT_FALSE(decode_plan(encode(plan)).ok());
}

TEST(PlanCodec, ProbabilitiesThatAreOfNoDraftTokenAreRefused) {
  StepPlan plan;
  plan.scheduled = {{.id = 1, .num_draft_tokens = 1}};
  plan.draft_tokens = {3};
  plan.draft_choices = {2};
  plan.draft_probabilities = {{3, 1.0f}};
  EXPECT_THAT(decode_plan(encode(plan)).status().message(), HasSubstr("has 1 probabilities"));
  plan.draft_choices = {-1};
  EXPECT_THAT(decode_plan(encode(plan)).status().message(), HasSubstr("drawn from -1 others"));
  plan.draft_choices = {1, 0};
  EXPECT_FALSE(decode_plan(encode(plan)).ok());
  plan.draft_choices = {1};
  EXPECT_TRUE(decode_plan(encode(plan)).ok());
}

TEST(PlanCodec, ManyDamagedMessagesAreErrorsOrPlansAndNothingElse) {
  RandomPlans random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string plan = encode(random.plan());
    std::string step = encode(random.step());
    for (uint32_t n = 1 + random.below(4); n > 0; --n) {
      plan[random.below(static_cast<uint32_t>(plan.size()))] = static_cast<char>(random.below(256));
      step[random.below(static_cast<uint32_t>(step.size()))] = static_cast<char>(random.below(256));
    }
    for (const Status& status : {decode_plan(plan).status(), decode_step(step).status()}) {
      ASSERT_EQ(status.ok(), status.message().empty());
    }
  }
}

#ifndef _GLIBCXX_DEBUG
// Whoever adds a field finds this (unless it fits into a gap), and writes it in plan_codec.cpp too.
TEST(PlanCodec, NoFieldIsNewSinceItWasWritten) {
  EXPECT_EQ(sizeof(SamplingParams), 456u);
  EXPECT_EQ(sizeof(NewSequence), 160u);
  EXPECT_EQ(sizeof(ScheduledSequence), 32u);
  EXPECT_EQ(sizeof(StepPlan), 376u);
  EXPECT_EQ(sizeof(OffloadOrders), 104u);
  EXPECT_EQ(sizeof(OffloadReports), 120u);
  EXPECT_EQ(sizeof(OffloadWrite), 96u);
  EXPECT_EQ(sizeof(SequenceResult), 136u);
  EXPECT_EQ(sizeof(StepTimings), 80u);
}
#endif

// ---- what the fuzz target begins with ----

std::filesystem::path seeds() {
  return std::filesystem::path(QUIRE_TEST_DATA) / "../fuzz/corpus/plan_codec";
}

std::string seed_input(char which, const std::string& message) {
  return which + message;
}

// Writes them anew, when the version is raised: --gtest_also_run_disabled_tests --gtest_filter=*WritesTheSeeds*
TEST(PlanCodec, DISABLED_WritesTheSeedsOfItsFuzzTarget) {
  std::filesystem::create_directories(seeds());
  const auto write = [](const std::string& name, const std::string& content) {
    std::ofstream(seeds() / name, std::ios::binary) << content;
  };
  RandomPlans random(1);
  for (int i = 0; i < 4; ++i) {
    write("plan" + std::to_string(i), seed_input(0, encode(random.plan())));
    write("step" + std::to_string(i), seed_input(1, encode(random.step())));
  }
  write("orders", seed_input(4, encode(random.orders())));
  write("reports", seed_input(5, encode(random.reports())));
  write("empty_plan", seed_input(0, encode(StepPlan())));
  write("question",
        seed_input(2, encode(MaskQuestion{.constraint = 1, .answer = 2, .tokens = {3, 4}, .num_words = 5})));
  write("answer", seed_input(3, encode(MaskAnswer{.found = true, .num_accepted = 2, .restricts = true, .mask = {6}})));
}

TEST(PlanCodec, TheSeedsOfItsFuzzTargetAreMessagesOfThisVersion) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(seeds())) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string content(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(content.empty()) << entry.path();
    const std::string_view message = std::string_view(content).substr(1);
    const Status status = content[0] == 0   ? decode_plan(message).status()
                          : content[0] == 1 ? decode_step(message).status()
                          : content[0] == 2 ? decode_question(message).status()
                          : content[0] == 3 ? decode_answer(message).status()
                          : content[0] == 4 ? decode_orders(message).status()
                                            : decode_reports(message).status();
    EXPECT_TRUE(status.ok()) << entry.path() << ": " << status.message();
    ++count;
  }
  EXPECT_GE(count, 10);
}

}  // namespace
}  // namespace quire::runner
