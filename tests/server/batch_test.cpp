// Files and batches: /v1/files, /v1/batches, and what is left after a death in the middle.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/batch_file.h"
#include "server/batch_folder.h"
#include "server/batch_lines.h"
#include "server/multipart.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using testing::HasSubstr;

std::string line(const std::string& id, const std::string& prompt, int tokens = 3) {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":{"prompt":")" + prompt +
         R"(","max_tokens":)" + std::to_string(tokens) + "}}\n";
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (fs::temp_directory_path() / "quire-batch-XXXXXX").string();
    path_ = ::mkdtemp(path.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }
  std::string read(const std::string& name) const { return *read_whole_file((path_ / name).string()); }

 private:
  fs::path path_;
};

class BatchTest : public ServerTest {
 protected:
  ~BatchTest() override { server_.reset(); }  // which still writes to the folder

  void start_with_folder(ServerConfig config = {}) {
    config.batch_folder = folder_.path();
    start(config);
  }
  ClientResponse request(std::string_view method, const std::string& path, std::string_view fields = "") {
    Client client(port());
    client.send(http_request(method, path, "", fields));
    return client.receive();
  }
  ClientResponse upload(const std::string& content, const std::string& purpose = "batch",
                        const std::string& fields = "") {
    const std::string body = "--xx\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
                             "\r\n--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
                             "Content-Type: application/octet-stream\r\n\r\n" +
                             content + "\r\n--xx--\r\n";
    Client client(port());
    client.send("POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=xx\r\n" +
                fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.receive();
  }
  ClientResponse create(const std::string& file_id, const std::string& endpoint = "/v1/completions",
                        std::string_view fields = "") {
    return post(port(), "/v1/batches",
                R"({"input_file_id":")" + file_id + R"(","endpoint":")" + endpoint +
                    R"(","completion_window":"24h","metadata":{"a":"b"}})",
                fields);
  }
  std::string begin(const std::string& content) {
    const auto file = upload(content);
    EXPECT_EQ(file.status, 200) << file.body;
    const auto batch = create(text_of(file.json().at("id")));
    EXPECT_EQ(batch.status, 200) << batch.body;
    return text_of(batch.json().at("id"));
  }
  json::value ended(const std::string& id) {
    for (int i = 0; i < 5000; ++i) {
      json::value batch = get(port(), "/v1/batches/" + id).json();
      for (const char* status : {"completed", "failed", "cancelled", "expired"}) {
        if (batch.at("status") == status) return batch;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ADD_FAILURE() << "batch " << id << " does not end";
    return nullptr;
  }
  // custom_id -> the line of the answer.
  std::map<std::string, json::value> lines_of(const json::value& file_id) {
    std::map<std::string, json::value> out;
    const auto content = get(port(), "/v1/files/" + text_of(file_id) + "/content");
    EXPECT_EQ(content.status, 200) << content.body;
    std::istringstream text(content.body);
    for (std::string one; std::getline(text, one);) {
      json::value value = json::parse(one);
      EXPECT_TRUE(out.emplace(text_of(value.at("custom_id")), value).second) << one;
    }
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(BatchTest, WithoutAFolderThePathsDoNotExist) {
  start();
  for (const char* path : {"/v1/files", "/v1/batches", "/v1/files/x", "/v1/batches/x"}) {
    EXPECT_EQ(get(port(), path).status, 404) << path;
  }
}

TEST_F(BatchTest, EveryLineIsAnsweredOnce) {
  start_with_folder();
  std::string input;
  for (int i = 0; i < 40; ++i) input += line("id" + std::to_string(i), std::string(static_cast<size_t>(i + 1), 'x'));
  input += "\n" + line("bad", "x", -1);
  const std::string id = begin(input);
  const json::value batch = ended(id);
  EXPECT_EQ(batch.at("status"), "completed");
  EXPECT_EQ(batch.at("metadata").at("a"), "b");
  EXPECT_EQ(batch.at("request_counts"), (json::value{{"total", 41}, {"completed", 40}, {"failed", 1}}));
  const auto answers = lines_of(batch.at("output_file_id"));
  ASSERT_EQ(answers.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    const json::value& response = answers.at("id" + std::to_string(i)).at("response");
    EXPECT_EQ(response.at("status_code"), 200);
    EXPECT_EQ(text_of(response.at("body").at("choices").at(0).at("text")), letters(i + 1, 3));
  }
  const auto errors = lines_of(batch.at("error_file_id"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors.at("bad").at("response").at("status_code"), 400);
  EXPECT_EQ(errors.at("bad").at("response").at("body").at("error").at("param"), "max_tokens");
  EXPECT_EQ(request("POST", "/v1/batches/" + id + "/cancel").status, 400);
  expect_idle();
}

TEST_F(BatchTest, FilesAreListedReadAndDeleted) {
  start_with_folder();
  const json::value file = upload(line("a", "x")).json();
  EXPECT_EQ(file.at("object"), "file");
  EXPECT_EQ(file.at("filename"), "in.jsonl");
  EXPECT_EQ(file.at("purpose"), "batch");
  EXPECT_EQ(file.at("bytes"), line("a", "x").size());
  const std::string path = "/v1/files/" + text_of(file.at("id"));
  EXPECT_EQ(get(port(), path).json(), file);
  EXPECT_EQ(get(port(), path + "/content").body, line("a", "x"));
  EXPECT_EQ(get(port(), "/v1/files").json().at("data").as_array().size(), 1u);
  EXPECT_EQ(get(port(), "/v1/files?purpose=batch_output").json().at("data").as_array().size(), 0u);
  EXPECT_EQ(request("DELETE", path).json().at("deleted"), true);
  EXPECT_EQ(get(port(), path).status, 404);
  EXPECT_EQ(get(port(), "/v1/files/..%2Flock").status, 404);
  EXPECT_EQ(get(port(), "/v1/files/..%2Flock/content").status, 404);
}

TEST_F(BatchTest, WhatIsWrongIsToldByTheLine) {
  start_with_folder();
  const auto failed = [&](const std::string& content) {
    const json::value batch = ended(begin(content));
    EXPECT_EQ(batch.at("status"), "failed") << content;
    return batch.at("errors").at("data").at(0);
  };
  EXPECT_EQ(failed(line("a", "x") + "{\n").at("line"), 2);
  EXPECT_EQ(failed(line("a", "x") + line("a", "y")).at("param"), "custom_id");
  EXPECT_EQ(failed("\n\n").at("message"), "The file has no requests.");
  EXPECT_EQ(failed(R"({"custom_id":"a","method":"POST","url":"/v1/responses","body":{}})").at("param"), "url");
  EXPECT_EQ(failed(R"({"custom_id":"a","url":"/v1/completions","body":{"stream":true}})").at("param"), "body.stream");
  const std::string good = text_of(upload(line("a", "x")).json().at("id"));
  EXPECT_EQ(create(good, "/v1/images").json().at("error").at("param"), "endpoint");
  EXPECT_EQ(create("file-0").status, 404);
  EXPECT_EQ(upload("x", "fine-tune").json().at("error").at("param"), "purpose");
  EXPECT_EQ(upload("").status, 400);
  EXPECT_EQ(get(port(), "/v1/batches/batch_0").status, 404);
}

TEST_F(BatchTest, ACancelledBatchKeepsWhatItHas) {
  start_with_folder();
  executor_->step_microseconds = 3000;
  std::string input;
  for (int i = 0; i < 500; ++i) input += line("id" + std::to_string(i), "x", 20);
  const std::string id = begin(input);
  EXPECT_EQ(request("POST", "/v1/batches/" + id + "/cancel").status, 200);
  const json::value batch = ended(id);
  EXPECT_EQ(batch.at("status"), "cancelled");
  EXPECT_LT(batch.at("request_counts").at("completed").to_number<int>(), 500);
  expect_idle();
}

TEST_F(BatchTest, ABatchIsGoneOnWithAfterTheServersEnd) {
  start_with_folder();
  executor_->step_microseconds = 1000;
  std::string input;
  for (int i = 0; i < 200; ++i) input += line("id" + std::to_string(i), "abc", 5);
  const std::string id = begin(input);
  for (int i = 0; i < 5000; ++i) {  // until some are there
    if (get(port(), "/v1/batches/" + id).json().at("request_counts").at("completed").to_number<int>() > 5) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  server_.reset();
  engine_.reset();
  start_with_folder();
  const json::value batch = ended(id);
  EXPECT_EQ(batch.at("status"), "completed");
  EXPECT_EQ(lines_of(batch.at("output_file_id")).size(), 200u);
}

TEST_F(BatchTest, FilesAndBatchesOfOneKeyDoNotExistForAnother) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  start_with_folder(config);
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const auto file = upload(line("a", "x"), "batch", one);
  ASSERT_EQ(file.status, 200) << file.body;
  const std::string id = text_of(file.json().at("id"));
  EXPECT_EQ(get(port(), "/v1/files/" + id, two).status, 404);
  EXPECT_EQ(get(port(), "/v1/files", two).json().at("data").as_array().size(), 0u);
  EXPECT_EQ(request("DELETE", "/v1/files/" + id, two).status, 404);
  EXPECT_EQ(create(id, "/v1/completions", two).status, 404);
  const auto batch = create(id, "/v1/completions", one);
  ASSERT_EQ(batch.status, 200) << batch.body;
  const std::string path = "/v1/batches/" + text_of(batch.json().at("id"));
  EXPECT_EQ(get(port(), path, two).status, 404);
  EXPECT_EQ(request("POST", path + "/cancel", two).status, 404);
  EXPECT_EQ(get(port(), "/v1/batches", two).json().at("data").as_array().size(), 0u);
  EXPECT_EQ(get(port(), path, one).status, 200);
}

TEST_F(BatchTest, OneKeysFilesLeaveRoomForAnothers) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  config.max_batch_folder_bytes = 26000;  // a file counts 8 KiB more than it has
  start_with_folder(config);
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  EXPECT_EQ(upload(std::string(1500, 'x'), "batch", one).status, 200);
  const auto refused = upload(std::string(1500, 'x'), "batch", one);
  EXPECT_EQ(refused.status, 429) << "half of what is left is another's";
  EXPECT_THAT(refused.body, HasSubstr("--max-batch-folder-bytes"));
  EXPECT_EQ(upload(std::string(1000, 'x'), "batch", two).status, 200);
}

TEST_F(BatchTest, AnswersCountAndABatchWhoseAnswersHaveNoRoomFails) {
  ServerConfig config;
  config.max_batch_folder_bytes = 6000 + 8192;
  start_with_folder(config);
  std::string content;
  for (int i = 0; i < 30; ++i) content += line("line-" + std::to_string(i), "abc");
  const json::value batch = ended(begin(content));
  EXPECT_EQ(batch.at("status"), "failed") << json::serialize(batch);
  EXPECT_THAT(json::serialize(batch.at("errors")), HasSubstr("--max-batch-folder-bytes"));
  int64_t bytes = 0;
  const json::value listed = get(port(), "/v1/files").json();
  for (const json::value& file : listed.at("data").as_array()) bytes += file.at("bytes").to_number<int64_t>();
  EXPECT_LE(bytes, 6000);
  const auto refused = upload(std::string(3000, 'x'));
  EXPECT_EQ(refused.status, 429) << "what was answered takes its part";
  // And makes room again.
  for (const json::value& file : listed.at("data").as_array()) {
    EXPECT_EQ(request("DELETE", "/v1/files/" + text_of(file.at("id"))).status, 200);
  }
  EXPECT_EQ(upload(std::string(3000, 'x')).status, 200);
}

TEST_F(BatchTest, OneKeysBatchesLeavePlacesForAnothers) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  start_with_folder(config);
  executor_->blocked = true;
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const std::string input = text_of(upload(line("a", "x"), "batch", one).json().at("id"));
  int taken = 0;
  for (int i = 0; i < 64; ++i) taken += create(input, "/v1/completions", one).status == 200 ? 1 : 0;
  EXPECT_EQ(taken, 32);
  const std::string other = text_of(upload(line("a", "x"), "batch", two).json().at("id"));
  EXPECT_EQ(create(other, "/v1/completions", two).status, 200);
  executor_->blocked = false;
  executor_->blocked.notify_all();
}

TEST_F(BatchTest, TwoServersDoNotShareAFolder) {
  start_with_folder();
  ServerConfig config;
  config.host = "127.0.0.1";
  config.port = 0;
  config.served_model_names = {"alphabet"};
  config.batch_folder = folder_.path();
  const auto second = Server::start(config, *engine_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("another server"));
}

TEST_F(BatchTest, AFileIsAnsweredWithoutAServerAndGoneOnWith) {
  start();
  std::string input;
  for (int i = 0; i < 20; ++i) input += line("id" + std::to_string(i), "abc");
  const BatchFileOptions options{.input = folder_.file("in.jsonl", input), .output = folder_.path() + "/out.jsonl"};
  ServerConfig config;
  config.served_model_names = {"alphabet"};
  const auto run = [&] { return run_batch_file(config, *engine_, options, [](const BatchFileResult&) {}); };
  auto result = run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->completed, 20);
  // A death in the middle of the eleventh line.
  const std::string whole = folder_.read("out.jsonl");
  size_t end = 0;
  for (int i = 0; i < 10; ++i) end = whole.find('\n', end) + 1;
  folder_.file("out.jsonl", whole.substr(0, end + 30));
  result = run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->skipped, 10);
  EXPECT_EQ(result->completed, 10);
  std::istringstream text(folder_.read("out.jsonl"));
  std::set<std::string> ids;
  for (std::string one; std::getline(text, one);) {
    const json::value answer = json::parse(one);
    EXPECT_EQ(text_of(answer.at("response").at("body").at("choices").at(0).at("text")), letters(3, 3));
    EXPECT_TRUE(ids.insert(text_of(answer.at("custom_id"))).second);
  }
  EXPECT_EQ(ids.size(), 20u);
  EXPECT_FALSE(check_batch_files(folder_.file("bad.jsonl", "{}\n"), folder_.path() + "/fresh").ok());
  EXPECT_EQ(check_batch_files(folder_.path() + "/nowhere", folder_.path() + "/fresh").code(), StatusCode::kNotFound);
}

// --------------------------------------------------------------------------------------------------------- multipart

constexpr const char* kType = "multipart/form-data; boundary=b";

TEST(MultipartTest, PartsAreReadAsTheyAre) {
  const auto parts = parse_multipart("Multipart/Form-Data; charset=x; boundary=\"b c\"",
                                     "--b c\r\ncontent-disposition: form-data; name=\"a\\\"b\"\r\n\r\nx\r\n--b\r\n"
                                     "\r\n--b c\r\nContent-Type: t\r\nContent-Disposition: form-data; name=f; "
                                     "filename=\"g.txt\"\r\n\r\n\r\n--b c--\r\n");
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ(parts->at(0).name, "a\"b");
  EXPECT_EQ(parts->at(0).body, "x\r\n--b\r\n");
  EXPECT_EQ(parts->at(1).name, "f");
  EXPECT_EQ(parts->at(1).filename, "g.txt");
  EXPECT_EQ(parts->at(1).body, "");
}

TEST(MultipartTest, WhatIsNoFormIsRefused) {
  const std::string head = "Content-Disposition: form-data; name=\"a\"\r\n\r\n";
  EXPECT_TRUE(parse_multipart(kType, "--b\r\n" + head + "x\r\n--b--").ok());
  const std::vector<std::string> bad = {"",
                                        "--b",
                                        "--b\r\n",
                                        "--b\r\n" + head + "x",
                                        "--b\r\n" + head + "x\r\n--b",
                                        "--b\r\n" + head + "x\r\n--bx",
                                        "x\r\n--b\r\n" + head + "x\r\n--b--",
                                        "--b\r\nx\r\n--b--",
                                        "--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--",
                                        "--b\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\nx\r\n--b--",
                                        "--b\r\n" + head + "x\r\n--b\r\n" + head + "y\r\n--b--",
                                        "--b\r\n" + std::string(5000, 'h') + "\r\n--b--"};
  for (const std::string& body : bad) {
    EXPECT_FALSE(parse_multipart(kType, body).ok()) << body.substr(0, 100);
  }
  for (const char* type : {"", "application/json", "multipart/form-data",
                           "multipart/form-data; boundary=", "multipart/form-data; boundary=\"b"}) {
    EXPECT_FALSE(parse_multipart(type, "--b\r\n" + head + "x\r\n--b--").ok()) << type;
  }
  std::string many;
  for (int i = 0; i < 17; ++i) {
    many += "--b\r\nContent-Disposition: form-data; name=\"" + std::to_string(i) + "\"\r\n\r\nx\r\n";
  }
  EXPECT_FALSE(parse_multipart(kType, many + "--b--").ok());
}

TEST(AnswerFiles, WhatWasWrittenIsFoundAgainHoweverDeepItIs) {
  const std::string path = testing::TempDir() + "quire-answers.jsonl";
  std::filesystem::remove(path);
  std::unordered_set<std::string> answered;
  std::string deep;
  for (int level = 0; level < 60; ++level) deep += "[";
  {
    auto file = AnswerFile::open(path, answered);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append(R"({"custom_id":"a","response":)" + deep + std::string(60, ']') + "}\n").ok());
    ASSERT_TRUE(file->append(R"({"custom_id":"b","response":1})"
                             "\n")
                    .ok());
    ASSERT_TRUE(file->append(R"({"custom_id":"c","resp)").ok());
  }
  const auto again = AnswerFile::open(path, answered);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->num_lines(), 2);
  EXPECT_THAT(answered, testing::UnorderedElementsAre("a", "b"));
}

}  // namespace
}  // namespace quire::server
