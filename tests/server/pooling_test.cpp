// Vectors and scores over HTTP, of a model whose numbers tell what it was given.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include <boost/json.hpp>

#include "engine/pooling.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A text's numbers: how many tokens it has, its first one, its last one, where its second text begins. One with '#' in
// it fails.
class MirrorExecutor final : public runner::Executor {
 public:
  explicit MirrorExecutor(ModelTask task, int64_t num_labels = 0) {
    model_.vocab_size = 257;
    model_.hidden_size = 4;
    model_.max_position = kContext;
    model_.task = task;
    model_.attends_both_ways = true;
    model_.pooling.normalize = false;
    model_.pooling.vector_size = model_.hidden_size;
    model_.pooling.dimensions = {2};
    model_.pooling.num_labels = num_labels;
    for (int64_t i = 0; i < num_labels; ++i) model_.pooling.labels.push_back("class " + std::to_string(i));
    if (task == ModelTask::kClassify) {
      model_.pooling.activation = num_labels == 1 ? ScoreActivation::kSigmoid : ScoreActivation::kSoftmax;
    }
    memory_.block_size = 16;
    memory_.num_blocks = 4096;
    memory_.max_model_len = kContext;
    memory_.max_num_batched_tokens = 2048;
  }

  const ModelConfig& model() const override { return model_; }
  const MemoryPlan& memory() const override { return memory_; }
  const std::string& description() const override { return description_; }
  void submit(StepPlan plan) override { submitted_.push_back(std::move(plan)); }
  Result<runner::ExecutedStep> collect() override {
    const StepPlan plan = std::move(submitted_.front());
    submitted_.pop_front();
    blocked.wait(true);
    std::this_thread::sleep_for(step_time.load());
    for (const SequenceId id : plan.retired) sequences_.erase(id);
    for (const NewSequence& added : plan.added) sequences_[added.id] = added;
    StepResult result;
    result.step = plan.step;
    for (const ScheduledSequence& run : plan.scheduled) result.sequences.push_back(answer(run));
    return runner::ExecutedStep{.result = std::move(result), .timings = {}};
  }

  std::atomic<bool> blocked{false};
  std::atomic<std::chrono::milliseconds> step_time{};
  std::atomic<int> computed{0};

 private:
  SequenceResult answer(const ScheduledSequence& run) {
    const NewSequence& sequence = sequences_.at(run.id);
    const std::vector<TokenId>& prompt = sequence.prompt;
    SequenceResult out{.id = run.id};
    EXPECT_EQ(run.num_new_tokens, static_cast<int32_t>(prompt.size())) << "a text is computed whole";
    ++computed;
    if (std::ranges::count(prompt, '#') > 0) {
      out.error = internal_error("a fault at 0x7ffd00000000");
      return out;
    }
    out.pooled = {static_cast<float>(prompt.size()), static_cast<float>(prompt.front()),
                  static_cast<float>(prompt.back()), static_cast<float>(sequence.second_text)};
    if (model_.task == ModelTask::kEmbed) return out;
    EXPECT_EQ(sequence.output_kind, OutputKind::kScore);
    if (model_.pooling.num_labels == 1) {
      out.pooled = {static_cast<float>(prompt.size()) / 10};
    } else {
      out.pooled.resize(static_cast<size_t>(model_.pooling.num_labels));
      for (float& number : out.pooled) number /= 100;
    }
    return out;
  }

  ModelConfig model_;
  MemoryPlan memory_;
  std::string description_ = "mirror";
  std::deque<StepPlan> submitted_;
  std::unordered_map<SequenceId, NewSequence> sequences_;
};

class PoolingServer : public testing::Test {
 protected:
  void start(ModelTask task, int64_t num_labels = 0, ServerConfig config = {}, EngineConfig engine_config = {}) {
    config.host = "127.0.0.1";
    config.port = 0;
    config.served_model_names = {"mirror"};
    config.root_model = "mirror";
    engine_config.served_model_name = "mirror";
    auto executor = std::make_unique<MirrorExecutor>(task, num_labels);
    executor_ = executor.get();
    TextSource text;
    text.vocabulary = byte_vocabulary();
    text.prompts = {{"query", "Q:"}};
    auto engine = engine::Engine::create(engine_config, std::move(text), suites::chosen(std::move(executor)));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
    auto server = Server::start(config, *engine_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  ClientResponse ask(const char* path, std::string_view body) { return post(server_->port(), path, body); }
  ClientResponse embed(std::string_view body) { return ask("/v1/embeddings", body); }
  void expect_refused(const char* path, std::string_view body, std::string_view param, std::string_view words) {
    const ClientResponse response = ask(path, body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    if (response.status != 400) return;
    EXPECT_EQ(text_of(response.json().at("error").at("param")), param) << response.body;
    EXPECT_THAT(response.body, HasSubstr(std::string(words)));
  }
  std::vector<float> vector_of(const ClientResponse& response, size_t index) {
    return json::value_to<std::vector<float>>(response.json().at("data").at(index).at("embedding"));
  }

  MirrorExecutor* executor_ = nullptr;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(PoolingServer, ATextOrAListOfThemOrTokenIdsBecomeVectors) {
  start(ModelTask::kEmbed);
  const ClientResponse one = embed(R"({"model":"mirror","input":"abc"})");
  ASSERT_EQ(one.status, 200) << one.body;
  EXPECT_THAT(vector_of(one, 0), ElementsAre(3, 'a', 'c', -1));
  const json::value body = one.json();
  EXPECT_EQ(body.at("object"), "list");
  EXPECT_EQ(body.at("model"), "mirror");
  EXPECT_EQ(body.at("data").at(0).at("object"), "embedding");
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(body.at("usage").at("total_tokens"), 3);
  const ClientResponse several = embed(R"({"input":["abc","","zz"]})");
  EXPECT_EQ(several.status, 400) << "the second has no token";
  const ClientResponse texts = embed(R"({"input":["abc","zz"]})");
  EXPECT_THAT(vector_of(texts, 1), ElementsAre(2, 'z', 'z', -1));
  EXPECT_EQ(texts.json().at("data").at(1).at("index"), 1);
  EXPECT_THAT(vector_of(embed(R"({"input":[7,8,9]})"), 0), ElementsAre(3, 7, 9, -1));
  EXPECT_THAT(vector_of(embed(R"({"input":[[7],[8,9]]})"), 1), ElementsAre(2, 8, 9, -1));
}

TEST_F(PoolingServer, VectorsComeAsBase64OfLittleEndianFloatsWhereAsked) {
  start(ModelTask::kEmbed);
  const ClientResponse response = embed(R"({"input":"abc","encoding_format":"base64"})");
  ASSERT_EQ(response.status, 200) << response.body;
  // 3.0f, 97.0f, 99.0f, -1.0f
  EXPECT_EQ(response.json().at("data").at(0).at("embedding"), "AABAQAAAwkIAAMZCAACAvw==");
}

TEST_F(PoolingServer, VectorsAreCutNormalisedAndPrompted) {
  start(ModelTask::kEmbed);
  EXPECT_THAT(vector_of(embed(R"({"input":"abc","dimensions":2})"), 0), ElementsAre(3, 'a'));
  const std::vector<float> normal = vector_of(embed(R"({"input":"abc","dimensions":2,"normalize":true})"), 0);
  EXPECT_NEAR(normal[0] * normal[0] + normal[1] * normal[1], 1, 1e-6);
  EXPECT_THAT(vector_of(embed(R"({"input":"abc","prompt_name":"query"})"), 0), ElementsAre(5, 'Q', 'c', -1));
  expect_refused("/v1/embeddings", R"({"input":"abc","dimensions":3})", "dimensions", "trained for 2");
  expect_refused("/v1/embeddings", R"({"input":"abc","dimensions":5})", "dimensions", "have 4");
  expect_refused("/v1/embeddings", R"({"input":"abc","prompt_name":"poem"})", "prompt_name", "it has: query");
}

TEST_F(PoolingServer, LongTextsAreRefusedOrCut) {
  start(ModelTask::kEmbed);
  const std::string text(kContext + 40, 'x');
  expect_refused("/v1/embeddings", R"({"input":")" + text + "\"}", "input", "at most 256");
  EXPECT_THAT(vector_of(embed(R"({"truncate_prompt_tokens":-1,"input":")" + text + "\"}"), 0),
              ElementsAre(kContext, 'x', 'x', -1));
  EXPECT_THAT(vector_of(embed(R"({"truncate_prompt_tokens":2,"input":"abcd"})"), 0), ElementsAre(2, 'a', 'b', -1));
  expect_refused("/v1/embeddings", R"({"input":"a","truncate_prompt_tokens":0})", "truncate_prompt_tokens", "is 0");
  expect_refused("/v1/embeddings", R"({"input":"a","truncate_prompt_tokens":999})", "truncate_prompt_tokens", "256");
}

TEST_F(PoolingServer, BadInputIsRefusedByItsField) {
  start(ModelTask::kEmbed);
  constexpr const char* kPath = "/v1/embeddings";
  expect_refused(kPath, R"({})", "input", "required");
  expect_refused(kPath, R"({"input":[]})", "input", "empty list");
  expect_refused(kPath, R"({"input":{"text":"a"}})", "input", "must be a string");
  expect_refused(kPath, R"({"input":["a",1]})", "input", "different kinds");
  expect_refused(kPath, R"({"input":[1,"a"]})", "input", "token id");
  expect_refused(kPath, R"({"input":[1,-1]})", "input", "at least 0");
  expect_refused(kPath, R"({"input":[[1],[99999]]})", "input", "Text 2 of input");
  expect_refused(kPath, R"({"input":[[]]})", "input", "at least one token");
  expect_refused(kPath, R"({"input":"a","encoding_format":"bytes"})", "encoding_format", "base64");
  expect_refused(kPath, R"({"input":"a","messages":[{"role":"user","content":"a"}]})", "messages", "not embedded");
  expect_refused(kPath, R"({"input":"a","priority":3})", "priority", "order they come");
  EXPECT_EQ(embed(R"({"input":"a","model":"other"})").status, 404);
  EXPECT_EQ(embed(R"({"input":"ok"})").status, 200) << "nobody else is disturbed";
}

TEST_F(PoolingServer, AFaultEndsItsOwnRequestAndIsNotTold) {
  start(ModelTask::kEmbed);
  const ClientResponse response = embed(R"({"input":["a","b#c","d"]})");
  EXPECT_EQ(response.status, 500) << response.body;
  EXPECT_THAT(response.body, testing::Not(HasSubstr("0x7ffd")));
  EXPECT_EQ(embed(R"({"input":"a"})").status, 200);
}

TEST_F(PoolingServer, ManyTextsPassThroughABoundedQueue) {
  EngineConfig engine;
  engine.max_num_seqs = 4;
  engine.max_num_queued_reqs = 16;
  start(ModelTask::kEmbed, 0, {}, engine);
  std::string body = R"({"input":[)";
  for (int i = 0; i < 2000; ++i) body += std::string(i > 0 ? "," : "") + "[" + std::to_string(100 + i % 100) + ",5]";
  const ClientResponse response = embed(body + "]}");
  ASSERT_EQ(response.status, 200) << response.body;
  ASSERT_EQ(response.json().at("data").as_array().size(), 2000u);
  for (size_t i = 0; i < 2000; i += 199) {
    EXPECT_THAT(vector_of(response, i), ElementsAre(2, static_cast<float>(100 + i % 100), 5, -1));
  }
  EXPECT_EQ(response.json().at("usage").at("prompt_tokens"), 4000);
}

TEST_F(PoolingServer, MoreNumbersThanAnAnswerMayHoldAreRefused) {
  ServerConfig config;
  config.max_answer_bytes = 10'000;
  start(ModelTask::kEmbed, 0, config);
  std::string body = R"({"input":["a")";
  for (int i = 0; i < 200; ++i) body += R"(,"a")";
  expect_refused("/v1/embeddings", body + "]}", "input", "--max-answer-bytes");
}

TEST_F(PoolingServer, WhoGoesAwayIsNotComputedFor) {
  EngineConfig engine;
  engine.max_num_seqs = 2;
  start(ModelTask::kEmbed, 0, {}, engine);
  executor_->blocked = true;
  executor_->step_time = std::chrono::milliseconds(20);  // of two inputs: 5 s for all of them
  std::string body = R"({"input":["a")";
  for (int i = 0; i < 500; ++i) body += R"(,"a")";
  body += "]}";
  {
    Client client(server_->port());
    client.send(http_request("POST", "/v1/embeddings", body));
    EXPECT_TRUE(eventually([&] { return engine_->stats().num_running > 0; }));
  }
  executor_->blocked = false;
  executor_->blocked.notify_all();
  EXPECT_TRUE(eventually([&] {
    const auto stats = engine_->stats();
    return stats.num_running == 0 && stats.num_waiting == 0 && stats.blocks_used == 0;
  }));
  EXPECT_LT(executor_->computed, 100);
  EXPECT_EQ(embed(R"({"input":"a"})").status, 200);
}

TEST_F(PoolingServer, PoolingGivesTheModelsNumbersAsData) {
  start(ModelTask::kEmbed);
  const ClientResponse response = ask("/pooling", R"({"input":"abc","task":"embed"})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value entry = response.json().at("data").at(0);
  EXPECT_EQ(entry.at("object"), "pooling");
  EXPECT_THAT(json::value_to<std::vector<float>>(entry.at("data")), ElementsAre(3, 'a', 'c', -1));
  expect_refused("/pooling", R"({"input":"abc","task":"token_embed"})", "task", "gives embeddings");
}

TEST_F(PoolingServer, ClassesComeWithTheirProbabilitiesAndTheLikeliestsName) {
  start(ModelTask::kClassify, 3);
  const ClientResponse response = ask("/classify", R"({"input":["abc","b"]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value entry = response.json().at("data").at(0);
  EXPECT_EQ(entry.at("num_classes"), 3);
  EXPECT_EQ(entry.at("label"), "class 2");
  const auto probabilities = json::value_to<std::vector<float>>(entry.at("probs"));
  const double sum = std::exp(0.03) + std::exp(0.97) + std::exp(0.99);
  EXPECT_NEAR(probabilities[2], std::exp(0.99) / sum, 1e-6);
  const ClientResponse raw = ask("/classify", R"({"input":"abc","use_activation":false})");
  EXPECT_NEAR(raw.json().at("data").at(0).at("probs").at(2).to_number<double>(), 0.99, 1e-6);
  EXPECT_EQ(embed(R"({"input":"a"})").status, 501);
  expect_refused("/v1/score", R"({"text_1":"a","text_2":"b"})", "null", "gives 3 numbers");
}

TEST_F(PoolingServer, ACrossEncoderScoresPairs) {
  start(ModelTask::kClassify, 1);
  const ClientResponse one = ask("/v1/score", R"({"text_1":"ab","text_2":"cde"})");
  ASSERT_EQ(one.status, 200) << one.body;
  EXPECT_NEAR(one.json().at("data").at(0).at("score").to_number<double>(), 1 / (1 + std::exp(-0.5)), 1e-6);
  const ClientResponse many = ask("/score", R"({"text_1":"ab","text_2":["c","cdefg"]})");
  EXPECT_NEAR(many.json().at("data").at(1).at("score").to_number<double>(), 1 / (1 + std::exp(-0.7)), 1e-6);
  const ClientResponse paired =
      ask("/v1/score", R"({"queries":["a","bbb"],"documents":["c","c"],"use_activation":false})");
  EXPECT_NEAR(paired.json().at("data").at(1).at("score").to_number<double>(), 0.4, 1e-6);
  expect_refused("/v1/score", R"({"text_1":["a","b"],"text_2":["c"]})", "text_1", "paired one by one");
  expect_refused("/v1/score", R"({"text_1":"a"})", "text_2", "required");
  expect_refused("/v1/score", R"({"text_1":"a","text_2":[]})", "text_2", "empty list");
}

TEST_F(PoolingServer, DocumentsAreRankedTheBestFirst) {
  start(ModelTask::kClassify, 1);
  for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank"}) {
    const ClientResponse response = ask(path, R"({"query":"q","documents":["a",{"text":"ccc"},"bb"],"top_n":2})");
    ASSERT_EQ(response.status, 200) << response.body;
    const json::array results = response.json().at("results").as_array();
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].at("index"), 1);
    EXPECT_EQ(results[1].at("index"), 2);
    EXPECT_NEAR(results[0].at("relevance_score").to_number<double>(), 1 / (1 + std::exp(-0.4)), 1e-6);
    const bool shows = std::string_view(path) != "/v2/rerank";
    EXPECT_EQ(results[0].as_object().contains("document"), shows) << path;
    if (shows) {
      EXPECT_EQ(results[0].at("document").at("text"), "ccc");
    }
    EXPECT_EQ(response.json().at("usage").at("total_tokens"), 2 + 4 + 3);
  }
  expect_refused("/rerank", R"({"query":["a","b"],"documents":["c"]})", "query", "one query");
  expect_refused("/rerank", R"({"query":"a","documents":[]})", "documents", "empty list");
  expect_refused("/rerank", R"({"query":"a","documents":["b"],"top_n":-1})", "top_n", "top_n");
}

TEST_F(PoolingServer, OfLongDocumentsTheBeginningIsRanked) {
  start(ModelTask::kClassify, 1);
  const ClientResponse response =
      ask("/v2/rerank", R"({"query":"q","documents":["aaaaaa","bb"],"max_tokens_per_doc":3})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NEAR(response.json().at("results").at(0).at("relevance_score").to_number<double>(), 1 / (1 + std::exp(-0.4)),
              1e-6);
  EXPECT_EQ(response.json().at("usage").at("total_tokens"), 4 + 3);
  expect_refused("/rerank", R"({"query":"a","documents":["b"],"max_tokens_per_doc":0})", "max_tokens_per_doc",
                 "max_tokens_per_doc");
}

// A small body must not take what all its pairs would, spelled out: the query is kept, and encoded, once.
TEST_F(PoolingServer, AQueryOfManyDocumentsIsHeldOnce) {
  ServerConfig config;
  config.max_answer_bytes = 1 << 20;
  start(ModelTask::kClassify, 1, config);
  std::string documents = "\"\"";
  for (int i = 1; i < 20000; ++i) documents += ",\"\"";
  const std::string long_query(200000, 'q');
  // 4 GB of queries, were each pair a text of its own.
  expect_refused("/rerank", R"({"query":")" + long_query + R"(","documents":[)" + documents + "]}", "documents",
                 "leaves room");
  expect_refused("/rerank", R"({"query":")" + std::string(100, 'q') + R"(","documents":[)" + documents + "]}",
                 "documents", "--max-answer-bytes");
  expect_refused("/v1/score", R"({"text_1":")" + std::string(100, 'q') + R"(","text_2":[)" + documents + "]}", "text_2",
                 "--max-answer-bytes");
}

// As the tokenizers library does: of two long texts the longer one, or the second, keeps the token that is left over.
TEST_F(PoolingServer, PairsAreCutToTheirRoom) {
  start(ModelTask::kClassify, 1);
  const auto second_begins = [&](size_t first, size_t second, int most) {
    auto encoder = engine::PairEncoder::create(*engine_, {});
    EXPECT_TRUE(encoder.ok());
    const auto text = encoder->encode(std::string(first, 'a'), std::string(second, 'b'), most);
    EXPECT_TRUE(text.ok());
    EXPECT_EQ(text->ids.size(), std::min<size_t>(first + second, static_cast<size_t>(most)));
    return text->second_text;
  };
  EXPECT_EQ(second_begins(3, 4, 20), 3);
  EXPECT_EQ(second_begins(100, 150, 15), 7);
  EXPECT_EQ(second_begins(150, 100, 15), 8);
  EXPECT_EQ(second_begins(120, 120, 15), 7);
  EXPECT_EQ(second_begins(120, 120, 16), 8);
  EXPECT_EQ(second_begins(3, 100, 15), 3);
  EXPECT_EQ(second_begins(100, 3, 15), 12);
  EXPECT_EQ(second_begins(8, 9, 15), 7);
}

TEST_F(PoolingServer, AKeysTokensAMinuteCountForTextsToo) {
  ServerConfig config;
  config.named_api_keys = {{.name = "small", .key = "s", .tokens_per_minute = 20}};
  config.admin.port = 0;
  start(ModelTask::kEmbed, 0, config);
  const auto embed_with_key = [&] {
    return post(server_->port(), "/v1/embeddings", R"({"input":["0123456789","0123456789"]})",
                "Authorization: Bearer s\r\n");
  };
  EXPECT_EQ(embed_with_key().status, 200);
  const ClientResponse refused = embed_with_key();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json().at("error").at("code"), "rate_limit_exceeded");
  const ClientResponse metrics = get(server_->admin_port(), "/metrics");
  EXPECT_THAT(metrics.body, HasSubstr("quire:api_key_prompt_tokens_total{api_key=\"small\"} 20"));
}

TEST_F(PoolingServer, CoheresClientsGetVectorsInTheFormsTheyAskFor) {
  start(ModelTask::kEmbed);
  const json::value second =
      ask("/v2/embed",
          R"({"texts":["abc","zz"],"input_type":"classification","embedding_types":["float","binary","ubinary"]})")
          .json();
  const json::value& vectors = second.at("embeddings");
  EXPECT_THAT(json::value_to<std::vector<float>>(vectors.at("float").at(1)), ElementsAre(2, 'z', 'z', -1));
  EXPECT_EQ(vectors.at("ubinary").at(0).at(0), 0b11100000);
  EXPECT_EQ(vectors.at("binary").at(0).at(0), 0b11100000 - 128);
  EXPECT_EQ(second.at("texts").at(1), "zz");
  EXPECT_EQ(second.at("response_type"), "embeddings_by_type");
  EXPECT_EQ(second.at("meta").at("billed_units").at("input_tokens"), 5);
  const json::value first = ask("/v1/embed", R"({"texts":["abc"]})").json();
  EXPECT_THAT(json::value_to<std::vector<float>>(first.at("embeddings").at(0)), ElementsAre(3, 'a', 'c', -1));
  EXPECT_EQ(first.at("response_type"), "embeddings_floats");
}

TEST_F(PoolingServer, WhatCohereCallsAnInputsTypeChoosesThePromptOfThatName) {
  start(ModelTask::kEmbed);
  const auto vector = [&](std::string_view body) {
    return json::value_to<std::vector<float>>(ask("/v2/embed", body).json().at("embeddings").at("float").at(0));
  };
  EXPECT_THAT(vector(R"({"texts":["abc"],"input_type":"search_query"})"), ElementsAre(5, 'Q', 'c', -1));
  EXPECT_THAT(vector(R"({"texts":["abc"],"input_type":"search_document"})"), ElementsAre(3, 'a', 'c', -1));
  EXPECT_THAT(vector(R"({"inputs":[{"content":[{"type":"text","text":"ab"},{"type":"text","text":"c"}]}]})"),
              ElementsAre(3, 'a', 'c', -1));
  EXPECT_THAT(vector(R"({"texts":["abcdef"],"max_tokens":2})"), ElementsAre(2, 'a', 'b', -1));
  EXPECT_THAT(vector(R"({"texts":["abc"],"output_dimension":2})"), ElementsAre(3, 'a'));
}

TEST_F(PoolingServer, WhatIsNotAsCohereHasItIsRefusedByName) {
  start(ModelTask::kEmbed);
  expect_refused("/v2/embed", R"({"texts":[]})", "texts", "not empty");
  expect_refused("/v2/embed", R"({"texts":["a",1]})", "texts", "expected texts");
  expect_refused("/v2/embed", R"({"texts":["a"],"embedding_types":["int8"]})", "embedding_types", "int8");
  expect_refused("/v2/embed", R"({"texts":["a"],"truncate":"START"})", "truncate", "START");
  expect_refused("/v2/embed", R"({"texts":["a"],"output_dimension":3})", "output_dimension", "trained for 2");
  expect_refused("/v2/embed", R"({"texts":["a"],"images":["data:"]})", "images", "text alone");
  expect_refused("/v2/embed", R"({"inputs":[{"content":[{"type":"image_url"}]}]})", "inputs", "expected texts");
}

TEST_F(PoolingServer, AModelThatEmbedsRanksByTheCosine) {
  start(ModelTask::kEmbed);
  const ClientResponse response = ask("/v1/score", R"({"text_1":"ab","text_2":["ab","zz"]})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NEAR(response.json().at("data").at(0).at("score").to_number<double>(), 1, 1e-6);
  EXPECT_LT(response.json().at("data").at(1).at("score").to_number<double>(), 1 - 1e-6);
  EXPECT_EQ(response.json().at("usage").at("prompt_tokens"), 6) << "the one query is computed once";
}

TEST_F(PoolingServer, AModelThatPoolsGeneratesNothing) {
  start(ModelTask::kEmbed);
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const ClientResponse response =
        ask(path, R"({"prompt":"a","messages":[{"role":"user","content":"a"}],"max_tokens":2})");
    EXPECT_EQ(response.status, 400) << response.body;
  }
  EXPECT_EQ(ask("/tokenize", R"({"prompt":"abc"})").status, 200);
  EXPECT_THAT(get(server_->port(), "/v1/models").body, testing::Not(HasSubstr("chat_sampling")));
}

}  // namespace
}  // namespace quire::server
