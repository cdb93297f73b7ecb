// /openapi.json beside the routes that there are; and prompts that fill a gap.
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/fill_in_the_middle.h"
#include "server/openapi.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class OpenApiTest : public ServerTest {};

// Every $ref below a value.
void collect_references(const json::value& value, std::set<std::string>& out) {
  if (const auto* object = value.if_object()) {
    for (const auto& [name, inner] : *object) {
      if (name == "$ref") out.insert(text_of(inner));
      collect_references(inner, out);
    }
  } else if (const auto* list = value.if_array()) {
    for (const json::value& inner : *list) collect_references(inner, out);
  }
}

TEST_F(OpenApiTest, TheDocumentDescribesTheRoutesThatThereAreAndNoOthers) {
  const std::string folder = testing::TempDir() + "quire-openapi";
  ServerConfig config;
  config.enable_admin_endpoints = true;
  config.enable_tokenizer_info_endpoint = true;
  config.batch_folder = folder;
  start(config);
  const json::value document = get(port(), "/openapi.json").json();
  EXPECT_EQ(document.at("openapi"), "3.1.0");
  std::set<std::string> documented;
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    for (const auto& [method, operation] : operations.as_object()) {
      std::string upper(method);
      for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      documented.insert(upper + " " + std::string(path));
      EXPECT_TRUE(operation.as_object().contains("responses")) << path;
    }
  }
  std::set<std::string> there;
  for (std::string route : server_->routes()) {
    if (const size_t dots = route.find("...}"); dots != std::string::npos) route.erase(dots, 3);
    there.insert(route);
  }
  EXPECT_EQ(documented, there);
  // Nothing is described that no configuration has.
  const std::vector<std::string> routes = server_->routes();
  for (const std::string& described : described_routes()) EXPECT_THAT(routes, testing::Contains(described));
  std::filesystem::remove_all(folder);
}

TEST_F(OpenApiTest, WhatIsNotOpenIsNotDescribed) {
  start();
  const json::value document = get(port(), "/openapi.json").json();
  const json::object& paths = document.at("paths").as_object();
  EXPECT_FALSE(paths.contains("/v1/batches"));
  EXPECT_FALSE(paths.contains("/reset_prefix_cache"));
  EXPECT_TRUE(paths.contains("/v1/responses"));
}

TEST_F(OpenApiTest, EveryReferenceIsThereAndEverySchemaIsUsed) {
  ServerConfig config;
  config.enable_admin_endpoints = true;
  config.batch_folder = testing::TempDir() + "quire-openapi-2";
  start(config);
  const json::value document = get(port(), "/openapi.json").json();
  std::set<std::string> references;
  collect_references(document, references);
  std::set<std::string> schemas;
  for (const auto& schema : document.at("components").at("schemas").as_object()) {
    schemas.insert("#/components/schemas/" + std::string(schema.key()));
  }
  EXPECT_EQ(references, schemas);
  std::filesystem::remove_all(config.batch_folder);
}

TEST_F(OpenApiTest, TheAnswersHaveWhatTheirSchemasRequire) {
  start();
  const json::value document = get(port(), "/openapi.json").json();
  const auto expect_required = [&](const char* schema, const ClientResponse& response) {
    const json::object body = response.json().as_object();
    for (const json::value& name : document.at("components").at("schemas").at(schema).at("required").as_array()) {
      EXPECT_TRUE(body.contains(text_of(name))) << schema << ": " << text_of(name) << ": " << response.body;
    }
  };
  constexpr const char* kGreeting = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})";
  expect_required("Chat", chat(kGreeting));
  expect_required("Completion", complete(R"({"prompt":"a"})"));
  expect_required("Response", post(port(), "/v1/responses", R"({"input":"a"})"));
  expect_required("Message", post(port(), "/v1/messages", kGreeting));
  expect_required("TokenCount", post(port(), "/v1/messages/count_tokens", kGreeting));
  expect_required("AnthropicError", post(port(), "/v1/messages", "{}"));
  expect_required("Tokens", post(port(), "/tokenize", R"({"prompt":"a"})"));
  expect_required("Text", post(port(), "/detokenize", R"({"tokens":[65]})"));
  expect_required("Models", get(port(), "/v1/models"));
  expect_required("Model", get(port(), "/v1/models/abc"));
  expect_required("Health", get(port(), "/health"));
  expect_required("Version", get(port(), "/version"));
  expect_required("Error", get(port(), "/v1/models/nobody"));
}

// --------------------------------------------------------------------------------------------------- filling a gap

std::unique_ptr<text::Tokenizer> tokenizer_with(const std::vector<std::string>& special) {
  Vocabulary vocabulary = byte_vocabulary();
  for (const std::string& token : special) {
    vocabulary.tokens.push_back(token);
    vocabulary.token_types.push_back(VocabularyTokenType::kControl);
  }
  auto tokenizer = text::Tokenizer::from_vocabulary(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

TEST(FillInTheMiddleTest, ThePromptIsBetweenTheVocabularysMarks) {
  const std::vector<std::string> kMarks[] = {
      {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
      {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
      {"▁<PRE>", "▁<SUF>", "▁<MID>"},
      {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
  };
  for (const auto& marks : kMarks) {
    const auto tokenizer = tokenizer_with(marks);
    const auto ids = fill_in_the_middle(*tokenizer, std::string("ab"), "c", true, {});
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    // One token a byte, the marks behind the vocabulary's end.
    EXPECT_THAT(*ids, testing::ElementsAre(257, tokenizer->encode("a", false)[0], tokenizer->encode("b", false)[0], 258,
                                           tokenizer->encode("c", false)[0], 259));
    const auto of_ids = fill_in_the_middle(*tokenizer, std::vector<TokenId>{1, 2}, "c", true, {});
    EXPECT_THAT(*of_ids, testing::ElementsAre(257, 1, 2, 258, tokenizer->encode("c", false)[0], 259));
  }
}

TEST(FillInTheMiddleTest, TextThatSpellsAMarkStaysText) {
  const auto tokenizer = tokenizer_with({"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"});
  const auto ids = fill_in_the_middle(*tokenizer, std::string("<|fim_middle|>"), "<|fim_middle|>", true, {});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 259), 1);
}

TEST_F(OpenApiTest, AModelWithoutMarksRefusesASuffixByName) {
  start();
  const auto response = complete(R"({"prompt":"a","suffix":"b"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json().at("error").at("param"), "suffix");
  EXPECT_EQ(complete(R"({"prompt":"a","suffix":""})").status, 200);
  EXPECT_EQ(complete(R"({"prompt":"a","suffix":"b","echo":true})").json().at("error").at("param"), "suffix");
  const auto in_chat = chat(R"({"messages":[{"role":"user","content":"hi"}],"suffix":"b"})");
  EXPECT_EQ(in_chat.json().at("error").at("param"), "suffix");
}

}  // namespace
}  // namespace quire::server
