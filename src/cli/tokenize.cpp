// quire tokenize: text to token ids and back.
#include <cstdio>
#include <iostream>
#include <iterator>

#include <boost/json.hpp>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/options.h"
#include "cli/tokenizer.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct TokenizeOptions {
  EngineConfig engine;
  HubFlags hub;
  std::string text;
  bool jsonl = false;
};

json::object tokenized(const text::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
  return {{"ids", json::array(ids.begin(), ids.end())},
          {"decoded", tokenizer.decode(ids, /*skip_special_tokens=*/false)},
          {"decoded_clean", tokenizer.decode(ids, /*skip_special_tokens=*/true)}};
}

Status run_jsonl(const text::Tokenizer& tokenizer) {
  const AnsweredLines lines = answer_json_lines([&](const json::object& line) -> Result<json::object> {
    const json::value* text = line.if_contains("text");
    if (text == nullptr || !text->is_string()) return invalid_argument("expected {{\"text\": \"...\"}}");
    return tokenized(tokenizer, std::string(text->get_string()));
  });
  if (lines.errors > 0) return invalid_argument("{} of {} lines could not be read", lines.errors, lines.all);
  return {};
}

Status run(TokenizeOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(options.engine, options.hub));
  if (options.jsonl) return run_jsonl(*tokenizer);
  if (options.text.empty()) {
    options.text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  for (const TokenId id : tokenizer->encode(options.text, /*add_special_tokens=*/false)) {
    std::printf("%6d  %s\n", id, json::serialize(json::value(tokenizer->decode(std::span(&id, 1), false))).c_str());
  }
  return {};
}

}  // namespace

void add_tokenize_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = program.add_subcommand("tokenize", "Text to token ids and back");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  command->get_option("model")->description(
      "A .gguf file (its vocabulary suffices), a model directory, or a tokenizer.json; nothing: the default model");
  command->add_option("-t,--text", options->text, "The text; without it, standard input");
  command->add_flag(
      "--jsonl", options->jsonl,
      "Lines {\"text\"} on standard input, lines {\"ids\", \"decoded\", \"decoded_clean\"} on standard output");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
