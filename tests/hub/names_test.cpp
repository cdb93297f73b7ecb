// What comes from outside as text: names, listings; and which files of a listing are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/listing.h"
#include "hub/model_name.h"
#include "hub/selection.h"

namespace quire::hub {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ModelName kModel{.repository = "org/name", .gguf = {}};

ModelName of_type(const std::string& gguf) {
  return {.repository = "org/name", .gguf = gguf};
}

TEST(HubModelName, NamesAreToldFromPaths) {
  for (const char* text : {"org/name", "Qwen/Qwen2.5-0.5B", "o/n:Q4_K_M", "o/n:sub/file.gguf", "a-b/c_d.e"}) {
    EXPECT_TRUE(looks_like_model_name(text)) << text;
  }
  for (const char* text : {"",
                           "name",
                           "/a/b",
                           "./a/b",
                           "../b",
                           "a/b/c",
                           "a/",
                           "/b",
                           "models/file.gguf",
                           "a/model.safetensors",
                           "a/config.json",
                           "~/b",
                           "a b/c",
                           "a/b:",
                           "a/b:../x",
                           "a/b:/x",
                           "a/..",
                           "a--b/c",
                           "a/b.git",
                           "a/b\\c",
                           "-a/b"}) {
    EXPECT_FALSE(looks_like_model_name(text)) << text;
    EXPECT_FALSE(parse_model_name(text).ok()) << text;
  }
  const ModelName name = *parse_model_name("org/name:Q4_K_M");
  EXPECT_EQ(name.repository, "org/name");
  EXPECT_EQ(name.gguf, "Q4_K_M");
  EXPECT_EQ(name.folder(), "models--org--name");
}

TEST(HubModelName, APathThatLeadsElsewhereIsNotSafe) {
  for (const char* text : {"config.json", "a/b.gguf", "...", "a..b", "Ünicode"})
    EXPECT_TRUE(is_safe_path(text)) << text;
  for (const char* text :
       {"", ".", "..", "../a", "a/../b", "a/..", "/a", "a//b", "a/", "a\\b", "..\\b", "a\nb", "./a"}) {
    EXPECT_FALSE(is_safe_path(text)) << text;
  }
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(2000, 'a')));
}

TEST(HubListing, ARevisionNamesItsCommitAndFiles) {
  const auto info = parse_revision_info(
      R"({"sha": "0123456789ABCDEF0123456789abcdef01234567", "siblings": [{"rfilename": "a.json"},
          {"rfilename": "b.gguf", "size": 9, "blobId": "x", "lfs": {"sha256": ")" +
      std::string(64, 'a') + R"(", "size": 7}}]})");
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->commit, "0123456789abcdef0123456789abcdef01234567");
  EXPECT_EQ(info->files.at("a.json").size, -1);
  EXPECT_EQ(info->files.at("b.gguf").size, 7);
  EXPECT_EQ(info->files.at("b.gguf").hash, std::string(64, 'a'));
}

TEST(HubListing, NamesThatLeadOutOfTheRepositoryAreRefused) {
  for (const char* name : {"../../etc/passwd", "/etc/passwd", "a/../../b", "..\\\\b", "a\\u0000b", "a\\u001b[2J", ""}) {
    const std::string entry = std::string(R"(":")") + name + R"("}])";
    Listing listing;
    const Status tree = add_tree_page(R"([{"type":"file","path)" + entry, listing);
    EXPECT_EQ(tree.code(), StatusCode::kDataLoss) << name;
    EXPECT_EQ(tree.message().find('\x1b'), std::string::npos);
    EXPECT_EQ(parse_revision_info(R"({"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[{"rfilename)" +
                                  entry + "}")
                  .status()
                  .code(),
              StatusCode::kDataLoss)
        << name;
  }
}

TEST(HubListing, WhatIsCutShortOrAnotherShapeIsAnError) {
  Listing listing;
  for (const char* text : {"", "[{\"type\":\"file\",\"path\":\"a", "{}", "[1]", "null", "[[]]"}) {
    EXPECT_FALSE(add_tree_page(text, listing).ok()) << text;
  }
  for (const char* text : {"[]", "{}", R"({"sha": "abc"})", R"({"sha": 3})"}) {
    EXPECT_FALSE(parse_revision_info(text).ok()) << text;
  }
  EXPECT_FALSE(add_tree_page(std::string(100'000, '['), listing).ok());
}

TEST(HubListing, ItIsWrittenAndReadBack) {
  const Listing listing{{"a", {.size = 3, .hash = std::string(40, 'b')}},
                        {"b/c", {.size = int64_t{1} << 40, .hash = std::string(64, 'c')}}};
  const auto read = parse_listing_json(listing_json(listing));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), 2u);
  EXPECT_EQ(read->at("a").hash, std::string(40, 'b'));
  EXPECT_EQ(read->at("b/c").hash, std::string(64, 'c'));
  EXPECT_EQ(read->at("b/c").size, int64_t{1} << 40);
}

TEST(HubListing, TheNextPageIsFoundAmongLinks) {
  EXPECT_EQ(next_link(R"(<https://h/a?b=c>; rel="next")"), "https://h/a?b=c");
  EXPECT_EQ(next_link(R"(<https://h/p>; rel="prev", <https://h/n>;title=x; REL=next)"), "https://h/n");
  for (const char* text : {"", "<", "<https://h/a>", R"(<https://h/a>; rel="last")", "<a>; rel=nextdoor", "rel=next"}) {
    EXPECT_EQ(next_link(text), std::nullopt) << text;
  }
}

TEST(HubListing, AnEntityTagIsAHashOrNothing) {
  EXPECT_EQ(hash_of_etag("\"" + std::string(64, 'A') + "\""), std::string(64, 'a'));
  EXPECT_EQ(hash_of_etag("W/\"" + std::string(40, '1') + "\""), std::string(40, '1'));
  EXPECT_EQ(hash_of_etag(std::string(40, 'f')), std::string(40, 'f'));
  for (const char* text : {"", "\"\"", "\"../../x\"", "W/", "\"", "123"}) EXPECT_EQ(hash_of_etag(text), "") << text;
}

std::vector<std::string> files(const Result<Selection>& selection) {
  EXPECT_TRUE(selection.ok()) << selection.status().message();
  return selection.ok() ? selection->files : std::vector<std::string>();
}

TEST(HubSelection, OfSafetensorsOnlyWhatTheModelNeedsIsTaken) {
  const std::vector<std::string> paths = {"README.md",         "config.json",       "consolidated.safetensors",
                                          "model.safetensors", "pytorch_model.bin", "tokenizer.json",
                                          "tf_model.h5",       "onnx/model.onnx"};
  EXPECT_THAT(files(select_files(kModel, paths, Need::kAll)),
              ElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_THAT(files(select_files(kModel, paths, Need::kText)), ElementsAre("config.json", "tokenizer.json"));
}

TEST(HubSelection, AnIndexStandsForItsShards) {
  const std::vector<std::string> paths = {"config.json", "model-00001-of-00002.safetensors",
                                          "model-00002-of-00002.safetensors", "model.safetensors.index.json"};
  const auto selection = select_files(kModel, paths, Need::kAll);
  EXPECT_THAT(files(selection), ElementsAre("config.json", "model.safetensors.index.json"));
  EXPECT_TRUE(selection->needs_index);
  EXPECT_THAT(*shards_of_index(R"({"weight_map": {"a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors"}})"),
              ElementsAre("x.safetensors", "y.safetensors"));
  for (const char* text : {"", "{}", R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": "../x.safetensors"}})",
                           R"({"weight_map": {"a": "pytorch_model.bin"}})"}) {
    EXPECT_FALSE(shards_of_index(text).ok()) << text;
  }
}

TEST(HubSelection, ModulesStandForWhatLiesInTheirFolders) {
  const std::vector<std::string> paths = {"config.json",
                                          "model.safetensors",
                                          "modules.json",
                                          "quantize_config.json",
                                          "1_Pooling/config.json",
                                          "2_Dense/config.json",
                                          "2_Dense/model.safetensors",
                                          "2_Dense/pytorch_model.bin",
                                          "tokenizer.json"};
  const auto selection = select_files(kModel, paths, Need::kAll);
  EXPECT_THAT(files(selection), ElementsAre("config.json", "tokenizer.json", "quantize_config.json", "modules.json",
                                            "model.safetensors"));
  EXPECT_TRUE(selection->needs_modules);
  EXPECT_THAT(*files_of_modules(
                  R"([{"path": "", "type": "T"}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "3_Normalize"},
                                    {"path": "../elsewhere"}, {"idx": 5}])",
                  paths),
              ElementsAre("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"));
  for (const char* text : {"", "{}", "[", "\"x\""}) EXPECT_FALSE(files_of_modules(text, paths).ok()) << text;
}

TEST(HubSelection, PicklesAloneAreRefusedWithAReason) {
  const std::vector<std::string> paths = {"config.json", "pytorch_model.bin", "tokenizer.json"};
  const Status status = select_files(kModel, paths, Need::kAll).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("pytorch_model.bin"));
  EXPECT_THAT(status.message(), HasSubstr("runs the code in it"));
}

TEST(HubSelection, ARepositoryWithoutAModelSaysWhatItLacks) {
  const auto message = [](std::vector<std::string> paths) {
    return select_files(kModel, paths, Need::kAll).status().message();
  };
  EXPECT_THAT(message({"README.md"}), HasSubstr("neither safetensors nor GGUF"));
  EXPECT_THAT(message({"model.safetensors"}), HasSubstr("no config.json"));
  EXPECT_THAT(message({"adapter_config.json", "adapter_model.safetensors"}), HasSubstr("adapter"));
  EXPECT_THAT(message({"config.json", "a.safetensors", "b.safetensors"}), HasSubstr("model.safetensors.index.json"));
}

const std::vector<std::string> kGgufs = {"Llama-3.2-1B-Instruct-IQ3_XXS.gguf",
                                         "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
                                         "Llama-3.2-1B-Instruct-UD-Q4_K_XL.gguf",
                                         "Llama-3.2-1B-Instruct-f16-00001-of-00002.gguf",
                                         "Llama-3.2-1B-Instruct-f16-00002-of-00002.gguf",
                                         "Q8_0/Llama-3.2-1B-Instruct-Q8_0.gguf",
                                         "mmproj-F16.gguf",
                                         "config.json"};

TEST(HubSelection, GgufModelsAreKnownByTheirTypes) {
  std::vector<std::string> labels;
  for (const GgufModel& model : gguf_models(kGgufs)) labels.push_back(model.label);
  EXPECT_THAT(labels, ElementsAre("F16", "IQ3_XXS", "Q4_K_M", "Q8_0", "UD-Q4_K_XL"));
}

TEST(HubSelection, AGgufTypeIsFoundInWhateverCaseAndTakenWhole) {
  EXPECT_THAT(files(select_files(of_type("q4_k_m"), kGgufs, Need::kAll)),
              ElementsAre("Llama-3.2-1B-Instruct-Q4_K_M.gguf"));
  EXPECT_THAT(
      files(select_files(of_type("F16"), kGgufs, Need::kAll)),
      ElementsAre("Llama-3.2-1B-Instruct-f16-00001-of-00002.gguf", "Llama-3.2-1B-Instruct-f16-00002-of-00002.gguf"));
  EXPECT_THAT(files(select_files(of_type("Q4_K_XL"), kGgufs, Need::kAll)),
              ElementsAre("Llama-3.2-1B-Instruct-UD-Q4_K_XL.gguf"));
  EXPECT_EQ(select_files(of_type("Q8_0/Llama-3.2-1B-Instruct-Q8_0.gguf"), kGgufs, Need::kAll)->main,
            "Q8_0/Llama-3.2-1B-Instruct-Q8_0.gguf");
}

TEST(HubSelection, WithoutATypeTheUsualOneIsTakenOrTheOnlyOne) {
  EXPECT_EQ(select_files(kModel, kGgufs, Need::kAll)->gguf, "Q4_K_M");
  const std::vector<std::string> only = {"model-q5_0.gguf"};
  EXPECT_EQ(select_files(kModel, only, Need::kAll)->gguf, "Q5_0");
  const std::vector<std::string> two = {"model.Q5_0.gguf", "model.Q6_K.gguf"};
  EXPECT_THAT(select_files(kModel, two, Need::kAll).status().message(), HasSubstr("There are: Q5_0, Q6_K"));
}

TEST(HubSelection, AMissingTypeIsAnsweredWithThoseThereAre) {
  const Status status = select_files(of_type("Q4_K"), kGgufs, Need::kAll).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("F16, IQ3_XXS, Q4_K_M, Q8_0, UD-Q4_K_XL"));
}

TEST(HubSelection, ASplitGgufWithoutAPartIsRefused) {
  const std::vector<std::string> paths = {"m-Q2_K-00001-of-00003.gguf", "m-Q2_K-00003-of-00003.gguf"};
  EXPECT_THAT(select_files(of_type("Q2_K"), paths, Need::kAll).status().message(), HasSubstr("parts"));
}

TEST(HubSelection, TwoModelsOfOneTypeAreToldApartByTheirFiles) {
  const std::vector<std::string> paths = {"a/m-Q2_K.gguf", "b/m-Q2_K.gguf"};
  EXPECT_THAT(select_files(of_type("Q2_K"), paths, Need::kAll).status().message(), HasSubstr("a/m-Q2_K.gguf, b/m"));
  EXPECT_EQ(select_files(of_type("b/m-Q2_K.gguf"), paths, Need::kAll)->main, "b/m-Q2_K.gguf");
}

TEST(HubSelection, BesideSafetensorsAGgufIsTakenWhereItsTypeIsNamed) {
  const std::vector<std::string> paths = {"config.json", "model.safetensors", "model-Q8_0.gguf"};
  EXPECT_THAT(files(select_files(of_type("Q8_0"), paths, Need::kAll)), ElementsAre("model-Q8_0.gguf"));
  EXPECT_EQ(select_files(kModel, paths, Need::kAll)->main, "");
}

}  // namespace
}  // namespace quire::hub
