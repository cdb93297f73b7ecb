// What operators rely on: keys as tenants, full queues, timeouts, admin endpoints, metrics.
#include <sys/resource.h>

#include <cmath>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "server/load.h"
#include "server/worker_pool.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr const char* kOperatorsCompletions = "/v1/completions";

std::string bearer_field(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

TEST(Load, OneTenantIsNeverRefused) {
  const auto load = std::make_shared<Load>(std::vector<double>{1}, 1, 1);
  std::vector<std::unique_ptr<LoadTicket>> held;
  for (int i = 0; i < 100; ++i) {
    held.push_back(load->enter(0, 10));
    ASSERT_NE(held.back(), nullptr);
  }
}

TEST(Load, ATenantThatFloodsLeavesRoomForTheNext) {
  const auto load = std::make_shared<Load>(std::vector<double>{1, 1, 1}, 0, 120);
  std::vector<std::unique_ptr<LoadTicket>> held;
  const auto flood = [&](int32_t tenant) {
    int count = 0;
    for (auto ticket = load->enter(tenant, 1); ticket != nullptr; ticket = load->enter(tenant, 1)) {
      held.push_back(std::move(ticket));
      ++count;
    }
    return count;
  };
  EXPECT_EQ(flood(0), 60) << "as much as is left";
  EXPECT_EQ(flood(1), 30);
  EXPECT_EQ(flood(2), 15);
  held.clear();
  EXPECT_EQ(flood(2), 60) << "what was held is given back";
}

TEST(Load, AHeavierTenantMayHoldMore) {
  const auto load = std::make_shared<Load>(std::vector<double>{4, 1}, 0, 100);
  std::vector<std::unique_ptr<LoadTicket>> held;
  for (auto ticket = load->enter(1, 1); ticket != nullptr; ticket = load->enter(1, 1))
    held.push_back(std::move(ticket));
  EXPECT_EQ(held.size(), 20u) << "a quarter of the 80 left";
}

TEST(Load, ARequestLargerThanTheShareIsTakenWhereNothingElseOfItsTenantIs) {
  const auto load = std::make_shared<Load>(std::vector<double>{1, 1}, 2, 10);
  const auto large = load->enter(0, 128);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(load->enter(0, 1), nullptr);
}

TEST(Load, RetryAfterIsHalfOfWhatTheQueueTakesAtThePresentPace) {
  Load load({1}, 1, 1);
  const Load::Clock::time_point start;
  EXPECT_EQ(load.retry_after(1000, start), 1) << "nothing is known yet";
  for (int i = 0; i < 200; ++i) load.finished(start + seconds(i));
  EXPECT_EQ(load.retry_after(20, start + seconds(200)), 10);
  EXPECT_EQ(load.retry_after(0, start + seconds(200)), 1);
  EXPECT_EQ(load.retry_after(1'000'000'000, start + seconds(200)), 60);
}

constexpr auto kShortWork = WorkerPool::Length::kShort;
constexpr auto kLongWork = WorkerPool::Length::kLong;

TEST(WorkerPool, LongWorkLeavesAThreadForShortWork) {
  std::promise<void> gate;
  std::atomic<int> long_ones{0};
  WorkerPool pool(2, 10, 1);
  auto opened = gate.get_future().share();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pool.post(0, kLongWork, [&, opened] {
      ++long_ones;
      opened.wait();
    }));
  }
  EXPECT_TRUE(eventually([&] { return long_ones == 1; }));
  for (int i = 0; i < 3; ++i) {
    std::promise<void> done;
    EXPECT_TRUE(pool.post(0, kShortWork, [&] { done.set_value(); }));
    EXPECT_EQ(done.get_future().wait_for(seconds(10)), std::future_status::ready);
    EXPECT_EQ(long_ones, 1);
  }
  gate.set_value();
  EXPECT_TRUE(eventually([&] { return long_ones == 4; })) << "what waited is done in the end";
}

TEST(WorkerPool, LongWorkGivesWayToShortWorkAndToWhateverElseRuns) {
  WorkerPool pool(2, 10, 1);
  const auto niceness_of = [&](WorkerPool::Length length) {
    std::promise<int> found;
    EXPECT_TRUE(pool.post(0, length, [&] { found.set_value(getpriority(PRIO_PROCESS, 0)); }));
    return found.get_future().get();
  };
  const int usual = getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(niceness_of(kShortWork), usual);
  EXPECT_GT(niceness_of(kLongWork), usual);
  EXPECT_EQ(niceness_of(kShortWork), usual);
}

TEST(WorkerPool, ATenantWhoseWorkIsStuckLeavesAThreadForOthers) {
  std::atomic<double> now{0};
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  std::atomic<int> held{0};
  std::promise<void> answered;
  WorkerPool pool(2, 10, 2, [&] { return now.load(); });
  const auto hold = [&, opened] {
    ++held;
    opened.wait();
  };
  EXPECT_TRUE(pool.post(0, kShortWork, hold));
  EXPECT_TRUE(eventually([&] { return held == 1; }));
  now = 2 * WorkerPool::kStuckSeconds;
  EXPECT_TRUE(pool.post(0, kShortWork, hold));
  EXPECT_TRUE(pool.post(1, kShortWork, [&] { answered.set_value(); }));
  EXPECT_EQ(answered.get_future().wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(held, 1);
  gate.set_value();
  EXPECT_TRUE(eventually([&] { return held == 2; }));
}

TEST(WorkerPool, TenantsThatHoldEveryThreadAreNotInAnybodysWay) {
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  std::atomic<int> held{0};
  std::array<std::atomic<int32_t>, 2> threads{};
  WorkerPool pool(2, 10, 3);
  for (const int tenant : {0, 1}) {
    EXPECT_TRUE(pool.post(tenant, kShortWork, [&, tenant, opened] {
      threads[static_cast<size_t>(tenant)] = this_thread_number();
      ++held;
      opened.wait();
    }));
  }
  EXPECT_TRUE(eventually([&] { return held == 2; }));
  const int usual = getpriority(PRIO_PROCESS, 0);
  for (int i = 0; i < 3; ++i) {
    std::promise<int> answered;
    EXPECT_TRUE(pool.post(2, kShortWork, [&] { answered.set_value(getpriority(PRIO_PROCESS, 0)); }));
    auto answer = answered.get_future();
    ASSERT_EQ(answer.wait_for(seconds(10)), std::future_status::ready);
    EXPECT_EQ(answer.get(), usual);
  }
  // Whoever runs lowers them, once it has been seen that they are in the way.
  for (const auto& thread : threads)
    EXPECT_TRUE(eventually([&] { return getpriority(PRIO_PROCESS, static_cast<id_t>(thread.load())) > usual; }));
  std::promise<int> again;
  EXPECT_TRUE(pool.post(0, kShortWork, [&] { again.set_value(getpriority(PRIO_PROCESS, 0)); }));
  gate.set_value();
  EXPECT_EQ(again.get_future().get(), usual) << "whoever gave way does no other work";
}

TEST(WorkerPool, ClientsOfOneTenantDoNotHoldEveryThreadEither) {
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  std::atomic<int> held{0};
  WorkerPool pool(2, 100, 1);
  const auto hold = [&, opened] {
    ++held;
    opened.wait();
  };
  for (int i = 0; i < WorkerPool::kMostReplaced + 3; ++i) EXPECT_TRUE(pool.post(0, kShortWork, hold));
  EXPECT_TRUE(eventually([&] { return held == WorkerPool::kMostReplaced + 2; })) << held << ": all that may be";
  gate.set_value();
  EXPECT_TRUE(eventually([&] { return held == WorkerPool::kMostReplaced + 3; }));
  std::promise<void> answered;
  EXPECT_TRUE(pool.post(0, kShortWork, [&] { answered.set_value(); }));
  EXPECT_EQ(answered.get_future().wait_for(seconds(10)), std::future_status::ready);
}

TEST(WorkerPool, WhoUsedTheLeastTimeIsNext) {
  std::atomic<double> now{0};
  std::promise<void> gate;
  std::promise<void> done;
  std::vector<int> order;  // of the only thread
  std::atomic<bool> begun{false};
  WorkerPool pool(1, 20, 2, [&] { return now.load(); });
  EXPECT_TRUE(pool.post(0, kShortWork, [&] {
    begun = true;
    gate.get_future().wait();
    now = 0.010;
  }));
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool.post(0, kShortWork, [&] { order.push_back(0); }));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pool.post(1, kShortWork, [&] {
      order.push_back(1);
      now = now + 0.004;
    }));
  }
  EXPECT_TRUE(pool.post(1, kShortWork, [&] { done.set_value(); }));
  gate.set_value();
  done.get_future().wait();
  EXPECT_THAT(order, testing::ElementsAre(1, 1, 1, 0, 0, 1)) << "three of 4 ms are more than one of 10";
}

TEST(WorkerPool, TenantsTakeTurns) {
  std::promise<void> gate;
  std::promise<void> done;
  std::vector<int> order;  // of the only thread
  std::atomic<int> microseconds{0};
  WorkerPool pool(1, 6, 3, [&] { return ++microseconds * 1e-6; });  // nothing is ever stuck
  EXPECT_TRUE(pool.post(0, kShortWork, [&] { gate.get_future().wait(); }));
  while (!pool.post(0, kShortWork, [&] { order.push_back(0); })) std::this_thread::yield();
  for (const int tenant : {0, 0, 2, 1})
    EXPECT_TRUE(pool.post(tenant, kShortWork, [&, tenant] { order.push_back(tenant); }));
  bool last = false;  // the sixth fits once the first has begun
  while (!last) last = pool.post(0, kShortWork, [&] { done.set_value(); });
  EXPECT_FALSE(pool.post(1, kShortWork, [] {})) << "the bound is everybody's";
  gate.set_value();
  done.get_future().wait();
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 0, 0, 0));
}

TEST_F(ServerTest, OneKeysFloodDoesNotFillTheQueueForAnother) {
  start({.api_keys = {"flood", "other"}}, {.max_num_seqs = 1, .max_num_queued_reqs = 8});
  executor_->step_microseconds = 2000;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(
        http_request("POST", kOperatorsCompletions, R"({"prompt":"abc","max_tokens":30})", bearer_field("flood")));
  }
  const auto other = post(port(), kOperatorsCompletions, R"({"prompt":"abc","max_tokens":2})", bearer_field("other"));
  EXPECT_EQ(other.status, 200) << other.body;
  int refused = 0;
  for (auto& client : clients) {
    const auto response = client->receive();
    if (response.status == 200) continue;
    ++refused;
    EXPECT_EQ(response.status, 429) << response.body;
    EXPECT_EQ(response.json().at("error").at("type"), "RateLimitError");
    EXPECT_GE(std::stoi(response.headers.at("retry-after")), 1);
  }
  EXPECT_GT(refused, 0);
  EXPECT_THAT(get(port(), "/metrics", bearer_field("other")).body, HasSubstr("reason=\"tenant_share\""));
  expect_idle();
}

TEST_F(ServerTest, KeysAndTheirWeightsMustFit) {
  start();
  for (ServerConfig config :
       {ServerConfig{.api_keys = {"a", "a"}}, ServerConfig{.api_keys = {""}},
        ServerConfig{.api_keys = {"a"}, .api_key_weights = {1, 2}},
        ServerConfig{.api_keys = {"a"}, .api_key_weights = {0}},
        ServerConfig{.api_keys = {"a"}, .api_key_weights = {std::nan("")}}, ServerConfig{.api_key_weights = {1}}}) {
    config.host = "127.0.0.1";
    config.port = 0;
    config.served_model_names = {"alphabet"};
    const auto server = Server::start(config, *engine_);
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ServerTest, RequestsThatDoNotSayAreSampledAsTheGenerationConfigSays) {
  start({.generation_config = R"({"temperature":0.5,"max_new_tokens":9,"do_sample":true})",
         .override_generation_config = R"({"max_new_tokens":3})"});
  const auto tokens = [this](std::string_view body) {
    return complete(body).json().at("usage").at("completion_tokens").as_int64();
  };
  EXPECT_EQ(tokens(R"({"prompt":"abc","max_tokens":2})"), 2);
  EXPECT_EQ(tokens(R"({"prompt":"abc","max_tokens":12})"), 3);
  EXPECT_EQ(tokens(R"({"prompt":"abc"})"), 3);
  for (const char* bad : {"[]", R"({"temperature":-1})", R"({"top_k":"all"})", R"({"max_new_tokens":0})"}) {
    const ServerConfig config{
        .host = "127.0.0.1", .port = 0, .served_model_names = {"alphabet"}, .override_generation_config = bad};
    EXPECT_FALSE(Server::start(config, *engine_).ok()) << bad;
  }
}

TEST_F(ServerTest, ADefaultIsWhatARequestDoesNotSay) {
  const auto defaults = read_sampling_defaults(
      json::parse(R"({"temperature":0.6,"top_p":0.95,"top_k":20,"repetition_penalty":1.1,"eos_token_id":[1,2]})")
          .as_object(),
      "generation config");
  ASSERT_TRUE(defaults.ok()) << defaults.status().message();
  const SchemaLimits limits{.defaults = *defaults};
  const auto params = [&](std::string_view body) {
    const json::object object = json::parse(body).as_object();
    JsonFields fields(object);
    SamplingParams out;
    read_sampling(fields, limits, out);
    EXPECT_TRUE(fields.status().ok());
    return out;
  };
  EXPECT_EQ(params("{}").temperature, 0.6f);
  EXPECT_EQ(params("{}").top_k, 20);
  EXPECT_EQ(params(R"({"temperature":0,"top_k":-1})").temperature, 0.0f);
  EXPECT_EQ(params(R"({"temperature":0,"top_k":-1})").top_k, -1);
  EXPECT_EQ(params(R"({"use_beam_search":true})").top_k, 0) << "which contradicts a beam search";
}

TEST_F(ServerTest, ARequestBeyondItsTimeoutIs408AndInAStreamAnError) {
  start();
  executor_->step_microseconds = 5000;
  const auto whole = complete(R"({"prompt":"abc","max_tokens":200,"timeout":0.05})");
  EXPECT_EQ(whole.status, 408) << whole.body;
  const json::value error = whole.json().at("error");
  EXPECT_EQ(error.at("type"), "TimeoutError");
  EXPECT_EQ(error.at("code"), "deadline_exceeded");
  EXPECT_EQ(error.at("param"), "timeout");
  const auto stream = complete(R"({"prompt":"abc","max_tokens":200,"timeout":0.05,"stream":true})");
  EXPECT_EQ(stream.status, 200);
  const auto events = stream.events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("error").at("code"), "deadline_exceeded");
  EXPECT_EQ(complete(R"({"prompt":"abc","max_tokens":2,"timeout":30})").status, 200);
  expect_idle();
}

TEST_F(ServerTest, PriorityIsForServersThatHeedIt) {
  start({}, {.scheduling_policy = SchedulingPolicy::kPriority});
  for (const char* priority : {"5", "-3", "2147483647"}) {
    EXPECT_EQ(complete(std::string(R"({"prompt":"abc","max_tokens":2,"priority":)") + priority + "}").status, 200);
  }
  EXPECT_EQ(complete(R"({"prompt":"abc","priority":2147483648})").status, 400);
}

TEST_F(ServerTest, CachedTokensAreToldSeparatedBySaltAndForgottenOnReset) {
  start({.enable_admin_endpoints = true});
  const std::string prompt(100, 'x');
  const auto cached = [&](const std::string& more) {
    const auto response = complete(R"({"prompt":")" + prompt + R"(","max_tokens":2)" + more + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int>();
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached(""), 96);
  EXPECT_EQ(cached(R"(,"n":3)"), 96);
  EXPECT_EQ(cached(R"(,"cache_salt":"mine")"), 0);
  EXPECT_EQ(cached(R"(,"cache_salt":"mine")"), 96);
  const auto events =
      complete(R"({"prompt":")" + prompt + R"(","stream":true,"stream_options":{"include_usage":true}})").events();
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("usage").at("prompt_tokens_details").at("cached_tokens"), 96);
  EXPECT_EQ(post(port(), "/reset_prefix_cache", "").status, 200);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached(R"(,"cache_salt":"mine")"), 0);
}

TEST_F(ServerTest, AdminEndpointsAreNotThereUnlessEnabled) {
  start();
  EXPECT_EQ(post(port(), "/reset_prefix_cache", "").status, 404);
  EXPECT_EQ(get(port(), "/reset_prefix_cache").status, 404);
  EXPECT_EQ(get(port(), "/admin/flight_recorder").status, 404);
  EXPECT_EQ(get(port(), "/admin/requests/1").status, 404);
}

TEST_F(ServerTest, TheTokenizerIsDescribedOnlyWhereAFlagSaysSo) {
  start();
  EXPECT_EQ(get(port(), "/tokenizer_info").status, 404);
  start({.enable_tokenizer_info_endpoint = true});
  const auto reply = get(port(), "/tokenizer_info");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json::object info = reply.json().as_object();
  for (const char* member : {"tokenizer_class", "chat_template", "bos_token", "eos_token", "model_max_length"}) {
    EXPECT_TRUE(info.contains(member)) << member;
  }
  EXPECT_TRUE(info.at("chat_template").is_string());
  EXPECT_EQ(get(port(), "/tokenizer_info?model=other").status, 404);
}

TEST_F(ServerTest, AdminEndpointsAskForTheKeyToo) {
  start({.api_keys = {"k"}, .enable_admin_endpoints = true});
  EXPECT_EQ(post(port(), "/reset_prefix_cache", "").status, 401);
  EXPECT_EQ(get(port(), "/admin/flight_recorder").status, 401);
  EXPECT_EQ(get(port(), "/admin/requests/1").status, 401);
  EXPECT_EQ(get(port(), "/admin/flight_recorder", bearer_field("k")).status, 200);
}

TEST_F(ServerTest, TheFlightRecorderShowsStepsAndARequestsLife) {
  start({.enable_admin_endpoints = true});
  post(port(), kOperatorsCompletions, R"({"prompt":["abc","abcd"],"max_tokens":5})", "X-Request-Id: my-request\r\n");
  expect_idle();
  const json::value all = get(port(), "/admin/flight_recorder").json();
  ASSERT_GE(all.at("steps").as_array().size(), 5u);
  EXPECT_EQ(get(port(), "/admin/flight_recorder?steps=2").json().at("steps").as_array().size(), 2u);
  EXPECT_EQ(get(port(), "/admin/flight_recorder?other=1&steps=0").json().at("steps").as_array().size(), 0u);
  for (const char* bad : {"-1", "x", "1e3", "", "99999999999999999999", "1%20"}) {
    const auto response = get(port(), std::string("/admin/flight_recorder?steps=") + bad);
    EXPECT_EQ(response.status, 400) << bad;
    EXPECT_EQ(response.json().at("error").at("param"), "steps");
  }
  for (const char* id : {"my-request", "cmpl-my-request"}) {
    const auto response = get(port(), std::string("/admin/requests/") + id);
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value life = response.json();
    const json::array& answers = life.at("answers").as_array();
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(answers[1].at("prompt_tokens"), 4);
    EXPECT_EQ(answers[1].at("output_tokens"), 5);
    EXPECT_EQ(answers[1].at("finish_reason"), "length");
    EXPECT_EQ(answers[0].at("events").at(0).at("event"), "queued");
  }
  for (const char* id : {"nobody", "", "my", "%ff%fe", "../../health"}) {
    EXPECT_EQ(get(port(), std::string("/admin/requests/") + id).status, 404) << id;
  }
}

TEST_F(ServerTest, WithoutARecorderTheAdminSaysSo) {
  start({.enable_admin_endpoints = true}, {.flight_recorder_steps = 0});
  EXPECT_THAT(get(port(), "/admin/flight_recorder").body, HasSubstr("flight-recorder-steps"));
  EXPECT_EQ(get(port(), "/admin/requests/1").status, 404);
}

TEST_F(ServerTest, HealthSaysWhenTheEngineIsStuckAndWhenItGoesOnAgain) {
  start({.health_timeout = std::chrono::milliseconds(30)});
  executor_->blocked = true;
  const struct Release {
    AlphabetExecutor* executor;
    ~Release() {
      executor->blocked = false;
      executor->blocked.notify_all();
    }
  } release{executor_};
  Client client(port());
  client.send(http_request("POST", kOperatorsCompletions, R"({"prompt":"abc","max_tokens":3})"));
  EXPECT_TRUE(eventually([&] { return get(port(), "/health").status == 503; }));
  EXPECT_THAT(get(port(), "/health").body, HasSubstr("no progress"));
  EXPECT_EQ(get(port(), "/ping").status, 503);
  EXPECT_EQ(get(port(), "/ready").status, 503);
  EXPECT_EQ(get(port(), "/load").json().at("server_load"), 1);
  executor_->blocked = false;
  executor_->blocked.notify_all();
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_TRUE(eventually([&] { return engine_->busy_without_progress().count() == 0; })) << "it waits for work";
  EXPECT_EQ(get(port(), "/health").status, 200);
}

TEST_F(ServerTest, EveryStepIsProgress) {
  start();
  executor_->step_microseconds = 3000;
  const auto seen_within_one_request = [&] {
    auto asking =
        std::async(std::launch::async, [&] { return complete(R"({"prompt":"abc","max_tokens":100})").status; });
    bool fell = false;
    std::chrono::nanoseconds before{0};
    while (asking.wait_for(std::chrono::microseconds(500)) != std::future_status::ready) {
      const auto now = engine_->busy_without_progress();
      fell = fell || (now.count() > 0 && now < before);
      before = now;
    }
    EXPECT_EQ(asking.get(), 200);
    return fell;
  };
  EXPECT_TRUE(eventually(seen_within_one_request));
}

TEST_F(ServerTest, TheLoadIsTheNumberOfRequestsBeingServed) {
  start();
  const auto load = [&] { return get(port(), "/load").json().at("server_load").to_number<int>(); };
  EXPECT_EQ(load(), 0);
  executor_->blocked = true;
  std::vector<std::unique_ptr<Client>> clients;
  for (const char* more : {"", R"(,"stream":true)", R"(,"n":3)"}) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(http_request("POST", kOperatorsCompletions, std::string(R"({"prompt":"abc")") + more + "}"));
  }
  EXPECT_TRUE(eventually([&] { return load() == 3; })) << load();
  clients.back()->close();
  EXPECT_TRUE(eventually([&] { return load() == 2; })) << "gone clients count no more";
  executor_->blocked = false;
  executor_->blocked.notify_all();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(clients[i]->receive().status, 200);
  EXPECT_TRUE(eventually([&] { return load() == 0; }));
}

TEST_F(ServerTest, ATraceIsReturnedWhereItIsOne) {
  start();
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_EQ(get(port(), "/health", "traceparent: " + good + "\r\n").headers.at("traceparent"), good);
  const auto stream = post(port(), kOperatorsCompletions, R"({"prompt":"abc","max_tokens":2,"stream":true})",
                           "traceparent: " + good + "\r\n");
  EXPECT_EQ(stream.headers.at("traceparent"), good);
  for (const char* bad : {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", "x",
                          "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                          "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                          "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}) {
    EXPECT_EQ(get(port(), "/health", std::string("traceparent: ") + bad + "\r\n").headers.count("traceparent"), 0u);
  }
}

TEST_F(ServerTest, MetricsHaveVllmsNames) {
  start();
  complete(R"({"prompt":"abc","max_tokens":3,"n":2})");
  expect_idle();
  const std::string text = get(port(), "/metrics").body;
  for (const char* name : {"vllm:num_requests_running{",
                           "vllm:num_requests_waiting{",
                           "vllm:kv_cache_usage_perc{",
                           "vllm:cache_config_info{",
                           "vllm:prefix_cache_queries_total{",
                           "vllm:prefix_cache_hits_total{",
                           "vllm:num_preemptions_total{",
                           "vllm:prompt_tokens_total{",
                           "vllm:prompt_tokens_cached_total{",
                           "vllm:generation_tokens_total{",
                           "vllm:request_success_total{",
                           "vllm:time_to_first_token_seconds_bucket{",
                           "vllm:inter_token_latency_seconds_bucket{",
                           "vllm:request_time_per_output_token_seconds_bucket{",
                           "vllm:e2e_request_latency_seconds_bucket{",
                           "vllm:request_queue_time_seconds_bucket{",
                           "vllm:request_inference_time_seconds_bucket{",
                           "vllm:request_prefill_time_seconds_bucket{",
                           "vllm:request_decode_time_seconds_bucket{",
                           "vllm:iteration_tokens_total_bucket{",
                           "vllm:request_prompt_tokens_bucket{",
                           "vllm:request_generation_tokens_bucket{",
                           "vllm:request_max_num_generation_tokens_bucket{",
                           "vllm:request_success_total{finished_reason=\"repetition\",",
                           "vllm:request_params_n_bucket{",
                           "vllm:request_params_max_tokens_bucket{",
                           "vllm:request_num_preemptions_bucket{"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
  EXPECT_THAT(text, HasSubstr("num_gpu_blocks=\"4096\""));
}

TEST_F(ServerTest, WhatIsOfARequestIsCountedOnceForAllOfItsAnswers) {
  start();
  complete(R"({"prompt":"abc","max_tokens":5,"n":3})");
  complete(R"({"prompt":"abc","max_tokens":2})");
  complete(R"({"prompt":"abc","max_tokens":4,"n":2,"use_beam_search":true})");
  expect_idle();
  const std::string text = get(port(), "/metrics").body;
  const auto value = [&](std::string_view name) {
    const std::string key = "vllm:" + std::string(name) + "{model_name=\"alphabet\"} ";
    const size_t found = text.find(key);
    return found == std::string::npos ? -1 : std::stoi(text.substr(found + key.size()));
  };
  EXPECT_EQ(value("request_params_n_count"), 3);
  EXPECT_EQ(value("request_params_n_sum"), 3 + 1 + 2);
  EXPECT_EQ(value("request_max_num_generation_tokens_count"), 3);
  EXPECT_EQ(value("request_max_num_generation_tokens_sum"), 5 + 2 + 4);
  EXPECT_EQ(value("request_generation_tokens_count"), 6) << "of each answer";
  EXPECT_EQ(value("request_generation_tokens_sum"), 3 * 5 + 2 + 2 * 4);
}

}  // namespace
}  // namespace quire::server
