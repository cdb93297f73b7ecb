// Several models in one server.
#include <algorithm>
#include <future>

#include "server/models.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kModelsCompletions = "/v1/completions";

class ModelsTest : public testing::Test {
 protected:
  // What is outside of one of the models "a", "b", "c", ... of 100 bytes each.
  struct Fake {
    std::atomic<int> loads{0};
    std::atomic<bool> fails{false};
    std::atomic<bool> gated{false};  // loading waits until it is not
    std::atomic<AlphabetExecutor*> executor{nullptr};
  };

  void start(size_t count, ServerConfig config = {}) {
    auto server = try_start(count, std::move(config));
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  Result<std::unique_ptr<Server>> try_start(size_t count, ServerConfig config) {
    config.host = "127.0.0.1";
    config.port = 0;
    config.enable_admin_endpoints = true;
    std::vector<ModelSource> sources;
    for (size_t i = 0; i < count; ++i) sources.push_back(source(i));
    return Server::start(std::move(config), std::move(sources), metrics_);
  }

  ModelSource source(size_t index) {
    while (fakes_.size() <= index) fakes_.push_back(std::make_unique<Fake>());
    Fake& fake = *fakes_[index];
    const std::string name(1, static_cast<char>('a' + index));
    return {.names = {name, name + name}, .root = name + ".gguf", .bytes = 100, .load = [&fake, name, this] {
              return load(fake, name);
            }};
  }

  Result<std::shared_ptr<engine::Engine>> load(Fake& fake, const std::string& name) {
    ++fake.loads;
    fake.gated.wait(true);
    if (fake.fails) return data_loss("a file ends too early");
    auto executor = std::make_unique<AlphabetExecutor>();
    fake.executor = executor.get();
    EngineConfig config;
    config.served_model_name = name;
    QUIRE_ASSIGN_OR_RETURN(
        std::shared_ptr<engine::Engine> engine,
        engine::Engine::create(config, alphabet_text(), suites::chosen(std::move(executor)), &metrics_));
    return engine;
  }

  // And waits until nobody holds the model any more.
  ClientResponse complete(const std::string& model) {
    ClientResponse response = post(server_->port(), kModelsCompletions, body(model));
    EXPECT_TRUE(eventually([&] { return get(server_->port(), "/load").json().at("server_load").as_int64() == 0; }));
    return response;
  }
  static std::string body(const std::string& model) {
    return R"({"prompt":"abc","max_tokens":2,"model":")" + model + "\"}";
  }
  std::future<ClientResponse> begin(const std::string& model) {
    return std::async(std::launch::async,
                      [this, model] { return post(server_->port(), kModelsCompletions, body(model)); });
  }
  // Of "a", "b", ...
  std::vector<std::string> statuses() {
    std::vector<std::string> out;
    const json::value listed = get(server_->port(), "/v1/models").json();
    for (const json::value& model : listed.at("data").as_array()) {
      if (model.at("id").as_string().size() == 1) out.emplace_back(model.at("status").at("value").as_string());
    }
    return out;
  }
  int loads(size_t index) const { return fakes_[index]->loads; }
  double running(const std::string& model) {
    return metrics_.gauge("vllm:num_requests_running", "", {{"model_name", model}}).value();
  }

  Metrics metrics_;
  std::vector<std::unique_ptr<Fake>> fakes_;
  std::unique_ptr<Server> server_;
};

TEST_F(ModelsTest, TheFirstIsLoadedAtOnceAndOthersWhenTheyAreNamed) {
  start(3);
  EXPECT_THAT(statuses(), ElementsAre("loaded", "unloaded", "unloaded"));
  const auto answer = complete("bb");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json().at("model"), "bb");
  EXPECT_EQ(text_of(answer.json().at("choices").at(0).at("text")), letters(3, 2));
  EXPECT_THAT(statuses(), ElementsAre("loaded", "loaded", "unloaded"));
  EXPECT_EQ(complete("b").status, 200);
  EXPECT_EQ(loads(1), 1);

  const auto default_model = post(server_->port(), kModelsCompletions, R"({"prompt":"abc","max_tokens":2})");
  EXPECT_EQ(default_model.json().at("model"), "a");
  const auto unknown = complete("d");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json().at("error").at("code"), "model_not_found");
  EXPECT_EQ(unknown.json().at("error").at("param"), "model");
  const auto card = get(server_->port(), "/v1/models/c").json();
  EXPECT_EQ(card.at("root"), "c.gguf");
  EXPECT_TRUE(card.at("max_model_len").is_null());
}

TEST_F(ModelsTest, TheOneThatWasWantedLongestAgoMakesRoom) {
  start(3, {.models_memory_bytes = 250});
  EXPECT_EQ(complete("b").status, 200);
  EXPECT_EQ(complete("a").status, 200);
  EXPECT_EQ(complete("c").status, 200);
  EXPECT_THAT(statuses(), ElementsAre("loaded", "unloaded", "loaded"));
  EXPECT_EQ(complete("b").status, 200);
  EXPECT_THAT(statuses(), ElementsAre("unloaded", "loaded", "loaded"));
  EXPECT_EQ(complete("a").status, 200);
  EXPECT_EQ(loads(0), 2);
  const std::string text = get(server_->port(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("vllm:generation_tokens_total{model_name=\"a\"} 4"));  // counted on
  EXPECT_THAT(text, HasSubstr("vllm:generation_tokens_total{model_name=\"c\"} 2"));
}

TEST_F(ModelsTest, AsManyAreLoadedAsMayBe) {
  start(3, {.max_loaded_models = 1});
  for (const char* model : {"b", "c", "a", "b"}) EXPECT_EQ(complete(model).status, 200);
  EXPECT_THAT(statuses(), ElementsAre("unloaded", "loaded", "unloaded"));
}

TEST_F(ModelsTest, OneThatIsInUseFinishesItsAnswersFirst) {
  start(2, {.max_loaded_models = 1});
  AlphabetExecutor& executor = *fakes_[0]->executor;
  executor.blocked = true;
  auto first = begin("a");
  ASSERT_TRUE(eventually([&] { return running("a") == 1; }));
  auto second = begin("b");
  ASSERT_TRUE(eventually([&] { return statuses()[0] == "unloading"; }));
  auto third = begin("a");  // it waits until "a" is loaded again, behind "b"
  EXPECT_EQ(loads(1), 0);
  executor.blocked = false;
  executor.blocked.notify_all();
  for (auto* answer : {&first, &second, &third}) {
    const auto response = answer->get();
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(text_of(response.json().at("choices").at(0).at("text")), letters(3, 2));
  }
  EXPECT_EQ(loads(0) + loads(1), 3);
}

TEST_F(ModelsTest, OneThatNobodyAsksIsUnloaded) {
  start(2, {.model_idle_timeout = std::chrono::milliseconds(20)});
  EXPECT_TRUE(eventually([&] { return statuses()[0] == "unloaded"; }));
  EXPECT_EQ(get(server_->port(), "/health").status, 200);
  EXPECT_EQ(complete("a").status, 200);
  EXPECT_EQ(loads(0), 2);
  EXPECT_TRUE(eventually([&] { return statuses()[0] == "unloaded"; }));
}

TEST_F(ModelsTest, OneThatCannotBeLoadedIsTriedAgain) {
  start(2);
  fakes_[1]->fails = true;
  const auto answer = complete("b");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("Model `b` cannot be loaded"));
  EXPECT_THAT(answer.body, testing::Not(HasSubstr("ends too early")));  // the log's, which may name paths
  EXPECT_THAT(statuses(), ElementsAre("loaded", "unloaded"));
  EXPECT_EQ(complete("a").status, 200);
  fakes_[1]->fails = false;
  EXPECT_EQ(complete("b").status, 200);
}

TEST_F(ModelsTest, SoManyRequestsMayWaitForModels) {
  start(2, {.max_queued_work = 2});
  fakes_[1]->gated = true;
  auto first = begin("b");
  ASSERT_TRUE(eventually([&] { return loads(1) == 1; }));
  auto second = begin("b");
  std::vector<std::future<ClientResponse>> more;
  // One of the three is refused: two may wait.
  for (int i = 0; i < 2; ++i) more.push_back(begin("b"));
  ASSERT_TRUE(eventually([&] {
    return std::ranges::any_of(
               more, [](auto& one) { return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }) ||
           second.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  EXPECT_EQ(begin("a").get().status, 200);
  fakes_[1]->gated = false;
  fakes_[1]->gated.notify_all();
  std::vector<int> codes = {first.get().status, second.get().status};
  for (auto& one : more) codes.push_back(one.get().status);
  EXPECT_EQ(std::ranges::count(codes, 200) + std::ranges::count(codes, 429), 4);
  EXPECT_GE(std::ranges::count(codes, 200), 2);
  EXPECT_GE(std::ranges::count(codes, 429), 1);
}

TEST_F(ModelsTest, BodiesThatWaitForAModelAreCountedUntilTheyArePrepared) {
  start(2, {.max_buffered_bytes = 300 << 10});
  fakes_[1]->gated = true;
  const auto ask = [this](const std::string& model) {
    const std::string text =
        R"({"prompt":"abc","max_tokens":2,"model":")" + model + R"(","user":")" + std::string(200 << 10, 'u') + "\"}";
    return std::async(std::launch::async, [this, text] { return post(server_->port(), kModelsCompletions, text); });
  };
  auto first = ask("b");
  ASSERT_TRUE(eventually([&] { return loads(1) == 1; }));
  auto second = ask("b");
  EXPECT_EQ(second.wait_for(std::chrono::seconds(10)), std::future_status::ready) << "there is no room for two";
  fakes_[1]->gated = false;
  fakes_[1]->gated.notify_all();
  EXPECT_EQ(second.get().status, 503);
  EXPECT_EQ(first.get().status, 200);
  EXPECT_TRUE(eventually([&] { return ask("b").get().status == 200; })) << "and their room is given back";
}

TEST_F(ModelsTest, OneKeysRequestsThatWaitLeavePlacesForAnothers) {
  start(2, {.api_keys = {"one", "two"}, .max_queued_work = 8});
  fakes_[1]->gated = true;
  const auto ask = [this](const std::string& key) {
    return std::async(std::launch::async, [this, key] {
      return post(server_->port(), kModelsCompletions, body("b"), "Authorization: Bearer " + key + "\r\n");
    });
  };
  std::vector<std::future<ClientResponse>> flood;
  for (int i = 0; i < 8; ++i) flood.push_back(ask("one"));
  EXPECT_TRUE(eventually([&] {
    return std::ranges::count_if(flood, [](auto& one) {
             return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
           }) >= 4;
  })) << "half of the places are one key's at most";
  auto other = ask("two");
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "it waits";
  fakes_[1]->gated = false;
  fakes_[1]->gated.notify_all();
  EXPECT_EQ(other.get().status, 200);
  for (auto& one : flood) {
    const int status = one.get().status;
    EXPECT_TRUE(status == 200 || status == 429) << status;
  }
}

TEST_F(ModelsTest, WhoeverWaitsWhenTheServerStopsIsTold) {
  start(2);
  fakes_[1]->gated = true;
  auto waiting = begin("b");
  ASSERT_TRUE(eventually([&] { return loads(1) == 1; }));
  server_->drain_and_stop();  // while it is being loaded
  EXPECT_EQ(waiting.get().status, 503);
  fakes_[1]->gated = false;
  fakes_[1]->gated.notify_all();
}

TEST_F(ModelsTest, OperatorsLoadAndUnload) {
  start(2);
  const auto say = [&](const char* path, const char* body) { return post(server_->port(), path, body).status; };
  EXPECT_EQ(say("/models/load", R"({"model":"b"})"), 200);
  EXPECT_TRUE(eventually([&] { return statuses()[1] == "loaded"; }));
  EXPECT_EQ(get(server_->port(), "/admin/flight_recorder?model=b").status, 200);
  EXPECT_EQ(say("/models/unload", R"({"model":"b"})"), 200);
  EXPECT_TRUE(eventually([&] { return statuses()[1] == "unloaded"; }));
  EXPECT_EQ(get(server_->port(), "/admin/flight_recorder?model=b").status, 503);
  EXPECT_EQ(get(server_->port(), "/admin/flight_recorder?model=x").status, 404);
  EXPECT_EQ(say("/models/unload", R"({"model":"x"})"), 404);
  EXPECT_EQ(say("/models/load", R"({"model":"x"})"), 404);
  EXPECT_EQ(say("/models/load", R"({"model":1})"), 400);
  EXPECT_EQ(say("/models/load", R"([])"), 400);
}

TEST_F(ModelsTest, TheyMustBeToldApartAndFit) {
  EXPECT_FALSE(Server::start({.host = "127.0.0.1", .port = 0}, {}, metrics_).ok());
  EXPECT_FALSE(Server::start({.host = "127.0.0.1", .port = 0}, {source(0), source(0)}, metrics_).ok());
  const auto large = try_start(2, {.models_memory_bytes = 99});
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.status().message(), HasSubstr("--models-memory"));
  source(0);
  fakes_[0]->fails = true;
  EXPECT_FALSE(try_start(2, {}).ok());
}

TEST_F(ModelsTest, ManyWhoAskForEachAreAllAnswered) {
  start(4, {.max_loaded_models = 2});
  std::vector<std::future<ClientResponse>> answers;
  for (int i = 0; i < 40; ++i) answers.push_back(begin(std::string(1, static_cast<char>('a' + i % 4))));
  for (auto& answer : answers) EXPECT_EQ(answer.get().status, 200);
}

}  // namespace
}  // namespace quire::server
