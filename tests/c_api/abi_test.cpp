// The C ABI as a C program uses it, over a tiny checkpoint of the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "quire/quire.h"
#include "tests/runner/tiny_model.h"

namespace quire::c_api {
namespace {

using runner::read_golden;
using runner::tiny_path;
using testing::HasSubstr;

// What a C program does with an error.
struct Failure {
  quire_code code = QUIRE_OK;
  std::string message, param;
  Failure() = default;
  explicit Failure(quire_error* error)
      : code(quire_error_code(error)), message(quire_error_message(error)), param(quire_error_param(error)) {
    quire_error_free(error);
  }
};

class AbiTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model = tiny_path("llama");
    const quire_engine_options options = {
        .struct_size = sizeof options,
        .model = model.c_str(),
        .config_json =
            R"({"skip_tokenizer_init": true, "kv_cache_memory_bytes": 4194304, "threads": 1, "max_num_seqs": 4})"};
    quire_error* error = nullptr;
    ASSERT_EQ(quire_engine_create(&options, &engine_, &error), QUIRE_OK) << Failure(error).message;
    golden_ = read_golden("llama").front();
    prompt_.assign(golden_.prompt.begin(), golden_.prompt.end());
  }
  void TearDown() override {
    for (quire_request* request : others_) quire_request_destroy(request);
    quire_engine_destroy(engine_);
  }
  // So many others before what is submitted next that it is not soon over.
  void busy();

  quire_request_options asked(const char* sampling) const {
    quire_request_options options = {};
    options.struct_size = sizeof options;
    options.prompt_tokens = prompt_.data();
    options.num_prompt_tokens = prompt_.size();
    options.sampling_json = sampling;
    return options;
  }
  quire_request* submit(const quire_request_options& options) {
    quire_request* request = nullptr;
    quire_error* error = nullptr;
    EXPECT_EQ(quire_submit(engine_, &options, &request, &error), QUIRE_OK) << Failure(error).message;
    return request;
  }
  Failure refusal(const quire_request_options& options) {
    quire_request* request = nullptr;
    quire_error* error = nullptr;
    EXPECT_NE(quire_submit(engine_, &options, &request, &error), QUIRE_OK);
    EXPECT_EQ(request, nullptr);
    return Failure(error);
  }

  quire_engine* engine_ = nullptr;
  std::vector<quire_request*> others_;
  runner::GoldenCase golden_;
  std::vector<int32_t> prompt_;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::string finish;
};

Answer read_all(quire_request* request) {
  Answer answer;
  quire_update update = {};
  update.struct_size = sizeof update;
  while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) {
    answer.tokens.insert(answer.tokens.end(), update.tokens, update.tokens + update.num_tokens);
    for (size_t i = 0; i < update.num_tokens && update.logprobs != nullptr; ++i) {
      EXPECT_EQ(update.logprob_tokens[i * update.logprobs_per_token], update.tokens[i]);
      answer.logprobs.push_back(update.logprobs[i * update.logprobs_per_token]);
    }
    if (update.finish_reason != nullptr) answer.finish = update.finish_reason;
  }
  return answer;
}

constexpr const char* kEight = R"({"temperature": 0, "max_tokens": 8, "ignore_eos": true, "logprobs": 2})";
constexpr const char* kLong = R"({"temperature": 0, "max_tokens": 100000, "ignore_eos": true})";

void AbiTest::busy() {
  for (int i = 0; i < 80; ++i) others_.push_back(submit(asked(kLong)));
}

TEST_F(AbiTest, AnAnswerIsWhatTheReferenceGives) {
  quire_request* request = submit(asked(kEight));
  const Answer answer = read_all(request);
  quire_request_destroy(request);
  ASSERT_EQ(answer.tokens.size(), 8U);
  EXPECT_EQ(answer.finish, "length");
  EXPECT_EQ(answer.logprobs.size(), 8U);
  for (size_t i = 0; i < answer.tokens.size() && golden_.greedy_margin[i] > 0.01; ++i) {
    EXPECT_EQ(answer.tokens[i], golden_.greedy[i]) << i;
  }
}

TEST_F(AbiTest, LogProbabilitiesOfThePromptAndAReceiptComeWithTheAnswer) {
  const char* sampling =
      R"({"temperature": 0, "max_tokens": 3, "ignore_eos": true, "prompt_logprobs": 1, "deterministic": true})";
  std::string receipts[2];
  for (std::string& receipt : receipts) {
    quire_request* request = submit(asked(sampling));
    size_t num_positions = 0;
    quire_update update = {};
    update.struct_size = sizeof update;
    while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) {
      if (update.receipt != nullptr) receipt = update.receipt;
      EXPECT_EQ(update.receipt != nullptr, update.finish_reason != nullptr);
      for (size_t i = 0; i < update.num_prompt_logprobs; ++i) {
        const size_t at = i * update.prompt_logprobs_per_token;
        EXPECT_EQ(update.prompt_logprob_tokens[at], prompt_[num_positions + 1]);
        EXPECT_LE(update.prompt_logprobs[at], 0.0f);
        ++num_positions;
      }
    }
    quire_request_destroy(request);
    EXPECT_EQ(num_positions, prompt_.size() - 1);
    EXPECT_EQ(receipt.size(), 16U);
  }
  EXPECT_EQ(receipts[0], receipts[1]);
}

TEST_F(AbiTest, WhoKnowsTheFirstVersionAloneIsAnswered) {
  quire_request* request = submit(asked(kEight));
  quire_update update = {};
  update.struct_size = offsetof(quire_update, prompt_logprob_tokens);
  update.receipt = "mine";
  size_t num_tokens = 0;
  while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) num_tokens += update.num_tokens;
  quire_request_destroy(request);
  EXPECT_EQ(num_tokens, 8U);
  EXPECT_STREQ(update.receipt, "mine");
}

TEST_F(AbiTest, TokensThatTheFirstOfSeveralAnswersComputedWereNotFound) {
  const int32_t fresh[] = {9, 8, 7, 6, 5};
  quire_request_options options = asked(R"({"n": 3, "max_tokens": 2, "ignore_eos": true, "seed": 1})");
  options.prompt_tokens = fresh;
  options.num_prompt_tokens = std::size(fresh);
  quire_request* request = submit(options);
  quire_update update = {};
  update.struct_size = sizeof update;
  int64_t cached = -1;
  while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) cached = update.num_cached_tokens;
  quire_request_destroy(request);
  EXPECT_EQ(cached, 0);
}

TEST_F(AbiTest, EachOfSeveralAnswersEndsAndOneSaysWhichItIs) {
  quire_request* request = submit(asked(R"({"n": 3, "max_tokens": 4, "ignore_eos": true, "seed": 1})"));
  std::vector<int> tokens(3), ends(3);
  quire_update update = {};
  update.struct_size = sizeof update;
  while (quire_poll(request, -1, &update) == QUIRE_POLL_UPDATE) {
    ASSERT_GE(update.index, 0);
    ASSERT_LT(update.index, 3);
    tokens[static_cast<size_t>(update.index)] += static_cast<int>(update.num_tokens);
    if (update.finish_reason != nullptr) ++ends[static_cast<size_t>(update.index)];
    EXPECT_EQ(update.num_prompt_tokens, static_cast<int64_t>(prompt_.size()));
  }
  quire_request_destroy(request);
  EXPECT_EQ(tokens, (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(ends, (std::vector<int>{1, 1, 1}));
}

TEST_F(AbiTest, ACancelledRequestEndsWithAbort) {
  busy();
  quire_request* request = submit(asked(kLong));
  quire_cancel(request);
  EXPECT_EQ(read_all(request).finish, "abort");
  quire_request_destroy(request);
}

TEST_F(AbiTest, ARequestThatIsDestroyedUnderWayLeavesTheOthersAlone) {
  quire_request* first = submit(asked(kLong));
  quire_request* second = submit(asked(kEight));
  quire_request_destroy(first);
  EXPECT_EQ(read_all(second).tokens.size(), 8U);
  quire_request_destroy(second);
}

TEST_F(AbiTest, RequestsOutliveTheirEngineAndEndWithIt) {
  busy();
  quire_request* request = submit(asked(kLong));
  quire_engine_destroy(engine_);
  engine_ = nullptr;
  EXPECT_EQ(read_all(request).finish, "abort");
  quire_request_destroy(request);
}

TEST_F(AbiTest, WhoeverPollsIsToldWhenThereIsSomething) {
  std::atomic<int> calls = 0;
  quire_request_options options = asked(kEight);
  options.on_ready = [](void* user) { ++*static_cast<std::atomic<int>*>(user); };
  options.user = &calls;
  quire_request* request = submit(options);
  EXPECT_EQ(read_all(request).tokens.size(), 8U);
  EXPECT_GT(calls, 0);
  quire_request_destroy(request);
}

TEST_F(AbiTest, ErrorsAreTextThatNamesTheFieldAtFault) {
  EXPECT_EQ(refusal(asked(R"({"temperature": 3})")).param, "temperature");
  EXPECT_EQ(refusal(asked(R"({"temprature": 1})")).code, QUIRE_INVALID_ARGUMENT);
  const std::vector<int32_t> alien = {1, 1 << 30};
  quire_request_options options = asked(nullptr);
  options.prompt_tokens = alien.data();
  options.num_prompt_tokens = alien.size();
  EXPECT_EQ(refusal(options).param, "prompt");
  options.prompt = "and a text";
  EXPECT_THAT(refusal(options).message, HasSubstr("found 2 of them"));
  options.prompt_tokens = nullptr;
  EXPECT_THAT(refusal(options).message, HasSubstr("needs a tokenizer"));
  options = asked(nullptr);
  options.timeout_seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refusal(options).param, "timeout_seconds");
}

TEST_F(AbiTest, AStructThatIsTooSmallIsRefusedAndALargerOneIsRead) {
  quire_request_options options = asked(kEight);
  options.struct_size = 8;
  EXPECT_THAT(refusal(options).message, HasSubstr("struct_size is 8"));
  struct Later {
    quire_request_options known;
    int64_t appended[4];
  } later = {asked(kEight), {1, 2, 3, 4}};
  later.known.struct_size = sizeof later;
  quire_request* request = submit(later.known);
  EXPECT_EQ(read_all(request).tokens.size(), 8U);
  quire_request_destroy(request);
}

TEST(Abi, AnAdapterIsLoadedByTheFirstRequestThatBringsItsPath) {
  const std::string model = tiny_path("llama"), adapter = std::string(QUIRE_TEST_DATA) + "/e2e/lora/llama/qv";
  const quire_engine_options options = {
      .struct_size = sizeof options,
      .model = model.c_str(),
      .config_json =
          R"({"skip_tokenizer_init": true, "kv_cache_memory_bytes": 4194304, "kv_cache_dtype": "float32", "enable_lora": true})"};
  quire_engine* engine = nullptr;
  quire_error* error = nullptr;
  ASSERT_EQ(quire_engine_create(&options, &engine, &error), QUIRE_OK) << Failure(error).message;
  const runner::GoldenCase golden = read_golden(adapter).back();
  quire_request_options asked = {};
  asked.struct_size = sizeof asked;
  asked.prompt_tokens = golden.prompt.data();
  asked.num_prompt_tokens = golden.prompt.size();
  asked.sampling_json = kEight;
  asked.lora_name = "mine";
  quire_request* request = nullptr;
  EXPECT_EQ(quire_submit(engine, &asked, &request, &error), QUIRE_NOT_FOUND);
  EXPECT_THAT(Failure(error).message, HasSubstr("mine"));
  for (const char* path : {adapter.c_str(), static_cast<const char*>(nullptr)}) {
    asked.lora_path = path;
    ASSERT_EQ(quire_submit(engine, &asked, &request, &error), QUIRE_OK) << Failure(error).message;
    const Answer answer = read_all(request);
    quire_request_destroy(request);
    ASSERT_EQ(answer.tokens.size(), 8U);
    ASSERT_GT(golden.greedy_margin[0], 0.01);
    for (size_t i = 0; i < answer.tokens.size() && golden.greedy_margin[i] > 0.01; ++i) {
      EXPECT_EQ(answer.tokens[i], golden.greedy[i]) << i;
    }
  }
  // What would be ignored is refused.
  asked.lora_name = nullptr;
  asked.lora_path = adapter.c_str();
  EXPECT_EQ(quire_submit(engine, &asked, &request, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(Failure(error).message, HasSubstr("lora_name"));
  asked.lora_path = nullptr;
  asked.priority = 5;
  EXPECT_EQ(quire_submit(engine, &asked, &request, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(Failure(error).message, HasSubstr("scheduling_policy"));
  quire_engine_destroy(engine);
}

TEST(Abi, AModelThatIsNotThereIsAnErrorWithItsName) {
  const quire_engine_options options = {
      .struct_size = sizeof options, .model = "no/such/model.gguf", .config_json = nullptr};
  quire_engine* engine = nullptr;
  quire_error* error = nullptr;
  EXPECT_EQ(quire_engine_create(&options, &engine, &error), QUIRE_NOT_FOUND);
  EXPECT_EQ(engine, nullptr);
  EXPECT_THAT(Failure(error).message, HasSubstr("no/such/model.gguf"));
  EXPECT_EQ(quire_engine_create(nullptr, &engine, nullptr), QUIRE_INVALID_ARGUMENT);  // who wants no text gets none
}

TEST(Abi, NothingIsDoneToNothing) {
  quire_engine_destroy(nullptr);
  quire_request_destroy(nullptr);
  quire_cancel(nullptr);
  quire_error_free(nullptr);
  EXPECT_STREQ(quire_error_message(nullptr), "");
  EXPECT_EQ(quire_abi_version(), QUIRE_ABI_VERSION);
  EXPECT_GT(std::strlen(quire_version()), 0U);
}

}  // namespace
}  // namespace quire::c_api
