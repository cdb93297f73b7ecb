#include "bench/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::bench {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  std::vector<std::string> events;
  EventSplitter splitter;
  for (const std::string& piece : pieces) {
    splitter.feed(piece, [&](std::string_view data) { events.emplace_back(data); });
  }
  return events;
}

TEST(EventSplitter, EventsAreTheSameHoweverTheBytesAreCut) {
  const std::string stream =
      ": hello\n\ndata: {\"a\":1}\n\ndata:two\r\n\r\nevent: x\ndata: 3\ndata: 4\n\ndata: not yet";
  const std::vector<std::string> expected = {"{\"a\":1}", "two", "3\n4"};
  EXPECT_EQ(events_of({stream}), expected);
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    EXPECT_EQ(events_of({stream.substr(0, cut), stream.substr(cut)}), expected) << cut;
  }
}

std::string completion(const std::string& text, const char* finish = "null") {
  return "data: {\"choices\":[{\"text\":\"" + text + "\",\"finish_reason\":" + finish + "}]}\n\n";
}
std::string chat(const std::string& delta, const char* finish = "null") {
  return "data: {\"choices\":[{\"delta\":" + delta + ",\"finish_reason\":" + finish + "}]}\n\n";
}
constexpr const char* kUsage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}\n\n";
constexpr const char* kDone = "data: [DONE]\n\n";

RequestOutcome read(bool is_chat, const std::vector<std::pair<double, std::string>>& pieces, bool broken = false) {
  AnswerReader reader(is_chat);
  for (const auto& [time, bytes] : pieces) reader.feed(bytes, time);
  RequestOutcome outcome;
  reader.finish(broken, outcome);
  return outcome;
}

TEST(AnswerReader, TimesTheFirstTokenAndThoseAfterIt) {
  const RequestOutcome outcome = read(false, {{0.5, completion("a")},
                                              {0.7, completion("b")},
                                              {1.0, completion("c", "\"length\"")},
                                              {1.5, kUsage},
                                              {1.6, kDone}});
  EXPECT_TRUE(outcome.success);
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_EQ(outcome.output_tokens, 7);
  EXPECT_THAT(outcome.ttft, DoubleNear(0.5, 1e-9));
  EXPECT_THAT(outcome.itls, ElementsAre(DoubleNear(0.2, 1e-9), DoubleNear(0.3, 1e-9)));
  EXPECT_THAT(outcome.latency, DoubleNear(1.0, 1e-9));
}

TEST(AnswerReader, AChatsRoleIsNoTokenAndAnEmptyEndNeither) {
  const RequestOutcome outcome = read(true, {{0.1, chat("{\"role\":\"assistant\",\"content\":\"\"}")},
                                             {0.5, chat("{\"content\":\"a\"}")},
                                             {0.6, chat("{\"reasoning_content\":\"b\"}")},
                                             {0.9, chat("{}", "\"stop\"")},
                                             {0.9, kDone}});
  EXPECT_TRUE(outcome.success);
  EXPECT_THAT(outcome.ttft, DoubleNear(0.5, 1e-9));
  EXPECT_THAT(outcome.latency, DoubleNear(0.6, 1e-9));
  EXPECT_EQ(outcome.text, "ab");
}

TEST(AnswerReader, AnAnswerWithoutTextHasAToken) {
  EXPECT_TRUE(read(false, {{0.2, completion("", "\"stop\"")}, {0.2, kDone}}).success);
  EXPECT_TRUE(read(true, {{0.1, chat("{\"role\":\"assistant\"}")}, {0.2, chat("{}", "\"stop\"")}}).success);
}

TEST(AnswerReader, HalfACharacterOfACompletionIsAToken) {
  const RequestOutcome outcome = read(false, {{0.1, completion("")}, {0.2, completion("e", "\"stop\"")}, {0.2, kDone}});
  EXPECT_THAT(outcome.ttft, DoubleNear(0.1, 1e-9));
}

TEST(AnswerReader, AnAnswerThatBreaksOffIsCut) {
  const RequestOutcome outcome = read(false, {{0.1, completion("a")}}, /*broken=*/true);
  EXPECT_FALSE(outcome.success);
  EXPECT_EQ(outcome.failure, FailureKind::kCut);
  EXPECT_EQ(read(false, {{0.1, completion("a")}}, /*broken=*/false).failure, FailureKind::kCut);
  EXPECT_EQ(read(false, {}, /*broken=*/true).failure, FailureKind::kCut);
}

TEST(AnswerReader, GarbageIsMalformed) {
  for (const char* body : {"", "hello", "data: {\"choices\":\n\n", "data: 5\n\n", "data: []\n\n", "data: [DONE]\n\n",
                           "{\"choices\":[{\"text\":\"not streamed\"}]}"}) {
    const RequestOutcome outcome = read(false, {{0.1, body}});
    EXPECT_FALSE(outcome.success) << body;
    EXPECT_EQ(outcome.failure, FailureKind::kMalformed) << body;
  }
  for (const char* odd : {"data: {\"choices\":5}\n\n", "data: {\"choices\":[5]}\n\n", "data: {\"usage\":5}\n\n",
                          "data: {\"choices\":[{\"text\":5,\"finish_reason\":6}]}\n\n"}) {
    EXPECT_FALSE(read(true, {{0.1, odd}, {0.2, kDone}}).success) << odd;
  }
}

TEST(AnswerReader, AnErrorWithinTheAnswerIsItsFailure) {
  const RequestOutcome outcome =
      read(false, {{0.1, completion("a")}, {0.2, "data: {\"error\":{\"message\":\"engine died\"}}\n\n"}, {0.3, kDone}});
  EXPECT_EQ(outcome.failure, FailureKind::kStatus);
  EXPECT_THAT(outcome.error, HasSubstr("engine died"));
}

}  // namespace
}  // namespace quire::bench
