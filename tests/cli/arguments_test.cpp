// Every argument of vLLM's `serve` is taken or refused with a sentence, and docs/arguments.md says which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "cli/config_file.h"
#include "cli/serve_options.h"
#include "cli/served_models.h"
#include "cli/vllm_arguments.h"

namespace quire::cli {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string text_of(const json::value& value) {
  return std::string(std::string_view(value.as_string()));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of quire serve, without the server.
struct ServeParser {
  ServeParser() {
    add_models_argument(app, options);
    add_serve_options(app, options);
  }
  // What is said against it; empty: nothing.
  std::string parse(std::vector<std::string> arguments) {
    try {
      arguments = in_our_spelling(std::move(arguments));
      auto whole = with_config_file(app, std::move(arguments));
      if (!whole.ok()) return whole.status().message();
      std::vector<std::string> list = std::move(*whole);
      std::reverse(list.begin(), list.end());
      app.parse(std::move(list));
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  ServeOptions options;
  CLI::App app{"", "serve"};
};

std::string refusal(std::vector<std::string> arguments) {
  return ServeParser().parse(std::move(arguments));
}

struct Listed {
  std::vector<std::string> names;
  std::string kind;          // "flag" (--x and --no-x), "switch", "value", "values"
  std::string vllm_default;  // empty: none
  std::string verdict, why;  // of one that is an option here
  std::vector<std::string> takes, refuses;
  bool old = false;
};

std::vector<Listed> vllms_list() {
  const json::value data = json::parse(read_file(QUIRE_TEST_DATA "/vllm_arguments.json"));
  std::vector<Listed> out;
  for (const char* part : {"arguments", "older"}) {
    for (const json::value& entry : data.at(part).as_array()) {
      Listed& listed = out.emplace_back();
      for (const json::value& name : entry.at("names").as_array()) listed.names.push_back(text_of(name));
      listed.kind = text_of(entry.at("kind"));
      listed.vllm_default = text_of(entry.at("default"));
      listed.old = std::string_view(part) == "older";
      listed.verdict = "same";
      const auto* here = entry.as_object().if_contains("here");
      if (here == nullptr) continue;
      listed.verdict = text_of(here->at("verdict"));
      listed.why = text_of(here->at("why"));
      for (const auto& [key, list] : {std::pair{"takes", &listed.takes}, std::pair{"refuses", &listed.refuses}}) {
        if (const auto* values = here->as_object().if_contains(key)) {
          for (const json::value& value : values->as_array()) list->push_back(text_of(value));
        }
      }
    }
  }
  return out;
}

const VllmArgument* in_table(const std::string& name) {
  for (const VllmArgument& argument : vllm_arguments()) {
    if (argument.name() == name) return &argument;
  }
  return nullptr;
}

std::vector<std::string> parts_of(std::string_view list, char separator) {
  std::vector<std::string> out;
  while (!list.empty()) {
    out.emplace_back(list.substr(0, list.find(separator)));
    list = list.size() == out.back().size() ? std::string_view() : list.substr(out.back().size() + 1);
  }
  return out;
}

bool takes_no_value(const VllmArgument& argument) {
  return argument.takes == VllmArgument::Takes::kFlag || argument.takes == VllmArgument::Takes::kSwitch;
}

// As it stands on a command line, with a value ("yes" and "no" of a flag).
std::vector<std::string> spelled(const VllmArgument& argument, const std::string& name, const std::string& value) {
  if (!takes_no_value(argument)) return {name, value};
  return {value == "no" ? "--no-" + name.substr(2) : name};
}

TEST(VllmArguments, EachIsAnOptionHereOrInTheTable) {
  const ServeParser parser;
  for (const Listed& listed : vllms_list()) {
    for (const std::string& name : listed.names) {
      const std::string ours = in_our_spelling({name}).front();
      EXPECT_NE(parser.app.get_option_no_throw(ours), nullptr) << name << " would be an unknown option";
    }
  }
}

TEST(VllmArguments, OfTheTableAreAllInTheList) {
  std::set<std::string> listed;
  for (const Listed& one : vllms_list()) listed.insert(one.names.begin(), one.names.end());
  for (const VllmArgument& argument : vllm_arguments()) {
    EXPECT_TRUE(listed.contains(std::string(argument.name()))) << argument.name();
  }
}

TEST(VllmArguments, OfTheTableAreRefusedWithTheirSentenceUnlessTheyAskForNothing) {
  ServeParser parser;
  for (const VllmArgument& argument : vllm_arguments()) {
    const CLI::Option* option = parser.app.get_option_no_throw(std::string(argument.name()));
    if (option == nullptr || !option->get_group().empty()) continue;  // an option here after all
    std::vector<std::string> values = {"yes", "no"};
    if (argument.takes == VllmArgument::Takes::kSwitch) values = {"yes"};
    if (!takes_no_value(argument)) values = {"something-else"};
    for (const std::string& value : parts_of(argument.accepted, '|')) {
      if (value != "*" && value != "false") values.push_back(value);
    }
    for (const std::string& name : parts_of(argument.names, ',')) {
      for (const std::string& value : values) {
        if (takes_no_value(argument) && value == "no" && !name.starts_with("--")) continue;
        parser.options.notes.clear();
        const std::string said = parser.parse(spelled(argument, name, value));
        if (argument.accepts(value)) {
          EXPECT_EQ(said, "") << name << " " << value;
          EXPECT_EQ(parser.options.notes.size(), argument.verdict == VllmArgument::Verdict::kTaken ? 1u : 0u) << name;
        } else {
          EXPECT_THAT(said, HasSubstr(std::string(argument.sentence))) << name << " " << value;
          EXPECT_THAT(said, HasSubstr(std::string(argument.name().substr(2)))) << name << " " << value;
        }
      }
    }
  }
}

TEST(VllmArguments, WhatIsTakenTakesSomethingAndWhatIsRefusedRefusesSomething) {
  for (const VllmArgument& argument : vllm_arguments()) {
    const bool taken = argument.verdict == VllmArgument::Verdict::kTaken;
    EXPECT_TRUE(taken ? !argument.accepted.empty() : argument.accepted != "*") << argument.name();
    EXPECT_FALSE(argument.sentence.ends_with('.')) << argument.name();
    EXPECT_GT(argument.sentence.size(), 15u) << argument.name();
  }
}

TEST(VllmArguments, ThatAreOptionsHereTakeAndRefuseWhatTheListSays) {
  for (const Listed& listed : vllms_list()) {
    for (const std::string& value : listed.takes) {
      EXPECT_EQ(refusal({listed.names.front(), value}), "") << listed.names.front() << " " << value;
    }
    for (const std::string& value : listed.refuses) {
      EXPECT_NE(refusal({listed.names.front(), value}), "") << listed.names.front() << " " << value;
    }
  }
}

TEST(EngineOptions, WhatIsChosenByAWordIsTyped) {
  ServeParser parser;
  EXPECT_EQ(parser.parse({"--load-format",
                          "dummy",
                          "--dtype",
                          "half",
                          "-q",
                          "int4",
                          "--activation-dtype",
                          "int16",
                          "--kv-cache-dtype",
                          "fp8_e5m2",
                          "--preemption-mode",
                          "swap",
                          "--scheduling-policy",
                          "priority",
                          "--device",
                          "cuda:3",
                          "--attention-backend",
                          "FLASHINFER",
                          "--isa",
                          "avx512"}),
            "");
  const EngineConfig& config = parser.options.engine;
  EXPECT_EQ(config.load_format, LoadFormat::kDummy);
  EXPECT_EQ(config.dtype, WeightDType::kFloat16);
  EXPECT_EQ(config.quantization, Quantization::kInt4);
  EXPECT_EQ(config.activation_dtype, ActivationDType::kInt16);
  EXPECT_EQ(config.kv_cache_dtype, KvCacheDType::kFp8E5M2);
  EXPECT_EQ(config.preemption_mode, PreemptionMode::kSwap);
  EXPECT_EQ(config.scheduling_policy, SchedulingPolicy::kPriority);
  EXPECT_EQ(config.device, DeviceChoice::cuda(3));
  EXPECT_EQ(config.attention_backend, AttentionBackend::kFlashInfer);
  EXPECT_EQ(config.isa, Isa::kAvx512);
}

TEST(EngineOptions, AWordThatIsNoneIsRefusedWithThoseThatAre) {
  const std::pair<const char*, const char*> kCases[] = {
      {"--load-format", "load_format \"x1\" is not known; choose one of: auto, dummy"},
      {"--dtype", "dtype \"x1\" is not known; choose one of: auto, float32, float, float16, half, bfloat16"},
      {"--quantization", "quantization \"x1\" is not known; choose one of: int8, int4, fp8, awq"},
      {"--activation-dtype", "activation_dtype \"x1\" is not known; choose one of: auto, float32, bfloat16, int8"},
      {"--kv-cache-dtype", "kv_cache_dtype \"x1\" is not known; choose one of: auto, float32, float16, bfloat16, fp8"},
      {"--preemption-mode", "preemption_mode \"x1\" is not known; choose one of: recompute, swap, auto"},
      {"--scheduling-policy", "scheduling_policy \"x1\" is not known; choose one of: fcfs, priority"},
      {"--device", "device \"x1\" is not known; choose one of: auto, cpu, cuda, cuda:N"},
      {"--attention-backend", "attention_backend \"x1\" is not known; choose one of: auto, native, flashinfer, fa3"},
      {"--lora-dtype", "lora_dtype \"x1\" is not known; choose one of: auto, float32, float, float16, half, bfloat16"},
      {"--isa", "isa \"x1\" is not known; choose one of: auto, portable, avx2, avx512, avx512_bf16"},
  };
  for (const auto& [flag, expected] : kCases) EXPECT_THAT(refusal({flag, "x1"}), HasSubstr(expected));
}

TEST(VllmArguments, FlagsHaveBothSpellings) {
  for (const Listed& listed : vllms_list()) {
    if (listed.kind != "flag") continue;
    const ServeParser parser;
    const std::string& name = listed.names.front();
    EXPECT_NE(parser.app.get_option_no_throw("--no-" + name.substr(2)), nullptr) << name;
  }
}

TEST(VllmArguments, OfFlagsTheLastSpellingDecides) {
  ServeParser parser;
  EXPECT_EQ(parser.parse({"--no-enable-prefix-caching", "--enforce-eager", "--disable-log-stats"}), "");
  EXPECT_FALSE(parser.options.engine.enable_prefix_caching);
  EXPECT_TRUE(parser.options.engine.enforce_eager);
  EXPECT_FALSE(parser.options.log_stats);
  ServeParser other;
  EXPECT_EQ(other.parse({"--no-enable-chunked-prefill", "--disable-log-requests", "--no-disable-log-stats"}), "");
  EXPECT_FALSE(other.options.engine.enable_chunked_prefill);
  EXPECT_FALSE(other.options.server.enable_log_requests);
  EXPECT_TRUE(other.options.log_stats);
}

TEST(VllmArguments, ShortNamesUnderscoresAndLevelsAreReadAsVllmReadsThem) {
  EXPECT_THAT(in_our_spelling({"-tp", "2", "--max_model_len=8", "-O3", "-dp=1", "-q", "int8", "-1", "-0.5", "a_b"}),
              ElementsAre("--tensor-parallel-size", "2", "--max-model-len=8", "--optimization-level=3",
                          "--data-parallel-size=1", "--quantization", "int8", "-1", "-0.5", "a_b"));
  EXPECT_THAT(refusal({"-dpn", "2"}), HasSubstr("--data-parallel-rank 2"));
  EXPECT_EQ(refusal({"-tp", "1", "-O3", "-pp=1", "--enable-lora=false"}), "");
}

TEST(VllmArguments, MembersOfJsonAreRefusedByTheArgumentsName) {
  EXPECT_THAT(refusal({"--compilation-config.mode", "3"}), HasSubstr("--compilation-config.mode"));
  EXPECT_THAT(refusal({"-cc.mode=3"}), HasSubstr("--compilation-config '{...}'"));
  EXPECT_THAT(refusal({"--override-generation-config.temperature", "0.5"}), HasSubstr("give the whole"));
}

// ---- docs/arguments.md ----

constexpr const char* kBegin = "<!-- the tables: as tests/cli/arguments_test.cpp writes them -->\n";

std::string in_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", text);
}

std::string row_of(const ServeParser& parser, const Listed& listed) {
  std::string names;
  for (const std::string& name : listed.names) names += (names.empty() ? "" : ", ") + code(name);
  const CLI::Option* option = parser.app.get_option_no_throw(in_our_spelling({listed.names.front()}).front());
  std::string verdict = listed.verdict;
  std::string what;
  if (option != nullptr && !option->get_group().empty()) {
    what = option->get_description();
    if (!listed.why.empty()) what += (what.empty() ? "" : ". **Here** ") + listed.why;
  } else if (const VllmArgument* argument = in_table(listed.names.front())) {
    verdict = argument->verdict == VllmArgument::Verdict::kTaken ? "taken" : "refused";
    what = argument->sentence;
    std::string accepted;
    for (const std::string& value : parts_of(argument->accepted, '|')) {
      if (value == "*" || takes_no_value(*argument)) continue;
      accepted += (accepted.empty() ? "" : ", ") + code(value);
    }
    if (!accepted.empty()) what += (verdict == "taken" ? " (takes " : " (accepted: ") + accepted + ")";
  }
  return fmt::format("| {} | {} | {} | {} |\n", names, verdict, in_cell(code(listed.vllm_default)), in_cell(what));
}

std::string tables() {
  const ServeParser parser;
  std::string out = kBegin;
  std::set<const CLI::Option*> listed_options;
  const char* head = "\n| argument | here | vLLM's default | what |\n|---|---|---|---|\n";
  for (const bool old : {false, true}) {
    out += old ? "\n## vLLM's of older versions\n" : "\n## vLLM's\n";
    out += head;
    for (const Listed& listed : vllms_list()) {
      if (listed.old == old) out += row_of(parser, listed);
      listed_options.insert(parser.app.get_option_no_throw(in_our_spelling({listed.names.front()}).front()));
    }
  }
  out += "\n## Quire's own\n\n| argument | default | what |\n|---|---|---|\n";
  for (const CLI::Option* option : parser.app.get_options()) {
    if (listed_options.contains(option) || option->get_group().empty() || option->get_lnames().empty()) continue;
    if (option->get_lnames().front() == "help") continue;
    std::string names;
    for (const std::string& name : option->get_lnames()) names += (names.empty() ? "" : ", ") + code("--" + name);
    out += fmt::format("| {} | {} | {} |\n", names, in_cell(code(option->get_default_str())),
                       in_cell(option->get_description()));
  }
  return out;
}

TEST(ArgumentsPage, SaysWhatTheProgramDoes) {
  const std::string page = read_file(QUIRE_TEST_DATA "/../../docs/arguments.md");
  const std::string expected = tables();
  const size_t begin = page.find(kBegin);
  ASSERT_NE(begin, std::string::npos) << "docs/arguments.md has no line " << kBegin;
  if (page.substr(begin) == expected) return;
  const std::filesystem::path written = std::filesystem::path(testing::TempDir()) / "quire-arguments.md";
  std::ofstream(written) << page.substr(0, begin) << expected;
  FAIL() << "docs/arguments.md says otherwise than the program. As it would be now: " << written;
}

// ---- --config ----

class ConfigFile : public testing::Test {
 protected:
  ConfigFile() : path_(std::filesystem::path(testing::TempDir()) / fmt::format("quire-config-{}.yaml", getpid())) {}
  ~ConfigFile() override { std::filesystem::remove(path_); }

  std::string parse(const std::string& text, std::vector<std::string> arguments = {}) {
    std::ofstream(path_) << text;
    arguments.insert(arguments.end(), {"--config", path_.string()});
    return parser_.parse(std::move(arguments));
  }

  std::filesystem::path path_;
  ServeParser parser_;
};

TEST_F(ConfigFile, SaysWhatTheCommandLineWould) {
  EXPECT_EQ(parse("# vLLM's example\n"
                  "---\n"
                  "model: some/model.gguf   # a comment\n"
                  "port: 6379\n"
                  "uvicorn-log-level: \"info\"\n"
                  "max_model_len: 8k\n"
                  "dtype: half\n"
                  "enforce-eager: true\n"
                  "enable-prefix-caching: false\n"
                  "served-model-name:\n"
                  "  - one\n"
                  "  - 'two # not a comment'\n"
                  "api-key: [a, \"b,c\"]\n"
                  "override-generation-config: {\"temperature\": 0.5}\n"
                  "data-parallel-rank: 0\n"),
            "");
  const ServeOptions& options = parser_.options;
  ASSERT_EQ(options.models.size(), 1u);
  EXPECT_EQ(options.models.front().path, "some/model.gguf");
  EXPECT_EQ(options.server.port, 6379);
  EXPECT_EQ(options.engine.max_model_len, 8000);
  EXPECT_EQ(options.engine.dtype, WeightDType::kFloat16);
  EXPECT_TRUE(options.engine.enforce_eager);
  EXPECT_FALSE(options.engine.enable_prefix_caching);
  EXPECT_THAT(options.server.served_model_names, ElementsAre("one", "two # not a comment"));
  EXPECT_THAT(options.server.api_keys, ElementsAre("a", "b,c"));
  EXPECT_EQ(options.server.override_generation_config, "{\"temperature\": 0.5}");
}

TEST_F(ConfigFile, TheCommandLineGoesBeforeIt) {
  EXPECT_EQ(parse("port: 1\nmodel: a.gguf\nenforce-eager: true\nmemory-utilization: 0.25\n",
                  {"b.gguf", "--port", "2", "--no-enforce-eager", "--gpu-memory-utilization", "0.75"}),
            "");
  EXPECT_EQ(parser_.options.server.port, 2);
  EXPECT_EQ(parser_.options.models.front().path, "b.gguf");
  EXPECT_FALSE(parser_.options.engine.enforce_eager);
  EXPECT_EQ(parser_.options.engine.memory_utilization, 0.75);
}

TEST_F(ConfigFile, WhatIsRefusedOnTheCommandLineIsRefusedThere) {
  EXPECT_THAT(parse("data-parallel-rank: 2\n"), HasSubstr("--data-parallel-rank 2"));
  EXPECT_THAT(parse("kv-cache-dtype: fp4\n"), HasSubstr("kv_cache_dtype \"fp4\" is not known; choose one of: auto"));
}

TEST_F(ConfigFile, ErrorsSayTheLine) {
  const std::pair<const char*, const char*> kCases[] = {
      {"port: 1\nno-such-argument: 3\n", "line 2: there is no argument --no-such-argument"},
      {"port: 1\nport: 2\n", "line 2: port again; it is in line 1"},
      {"port\n", "line 1: expected `key: value`"},
      {"a:\n  b: 1\n", "line 2: is indented"},
      {"port:\nseed: 1\n", "line 1: port has no value"},
      {"- a\n", "line 1: an entry of a list under no key"},
      {"seed: &anchor 1\n", "line 1: a value that begins with &"},
      {"api-key: [a, b\n", "line 1: the list does not end"},
      {"api-key: \"a\n", "line 1: a quote is not closed"},
      {"api-key: a: b\n", "line 1: a value with a colon"},
      {"enforce-eager: 3\n", "line 1: enforce-eager is true or false"},
      {"config: other.yaml\n", "line 1: there is no argument --config"},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string said = parse(text);
    EXPECT_THAT(said, HasSubstr(expected)) << text;
    EXPECT_THAT(said, HasSubstr(path_.string())) << text;
  }
  EXPECT_THAT(refusal({"--config", "/no/such/file.yaml"}),
              HasSubstr("--config: there is no file \"/no/such/file.yaml\""));
  EXPECT_THAT(refusal({"--config"}), HasSubstr("needs a file"));
}

}  // namespace
}  // namespace quire::cli
