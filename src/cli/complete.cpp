// quire complete: one prompt, one streamed answer.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "cli/adapters.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "hub/model_name.h"

namespace quire::cli {
namespace {

struct CompleteOptions {
  std::string first, second;  // what stands without a flag
  EngineConfig engine;
  NodeOptions nodes;
  HubFlags hub;
  SamplingParams sampling;
  std::string prompt;
  std::string system;
  std::string lora;  // the path of an adapter; empty: none
  bool chat = false;
  bool quiet = false;
};

Result<std::vector<TokenId>> encode_prompt(const engine::Engine& engine, const CompleteOptions& options) {
  if (!options.chat) {
    if (engine.tokenizer() == nullptr) return unimplemented("complete needs a tokenizer");
    return engine.tokenizer()->encode(options.prompt, /*add_special_tokens=*/true);
  }
  boost::json::array messages;
  if (!options.system.empty()) {
    messages.push_back(boost::json::object{{"role", "system"}, {"content", options.system}});
  }
  messages.push_back(boost::json::object{{"role", "user"}, {"content", options.prompt}});
  QUIRE_ASSIGN_OR_RETURN(engine::ChatPrompt prompt, engine::render_chat(engine, messages, {}));
  return std::move(prompt.ids);
}

Status run(CompleteOptions& options, const CLI::App& command) {
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  if (options.prompt == "-" && !computes_for_another(ranks)) {
    options.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  QUIRE_RETURN_IF_ERROR(make_place_for(options.lora, options.engine));
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  QUIRE_ASSIGN_OR_RETURN(auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  QUIRE_ASSIGN_OR_RETURN(std::string adapter, load_only_adapter(*engine, options.lora));
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, encode_prompt(*engine, options));
  if (options.chat) {
    QUIRE_RETURN_IF_ERROR(apply_chat_sampling(command, engine->text(), options.sampling).status());
  }
  const auto num_prompt_tokens = static_cast<int64_t>(ids.size());
  QUIRE_ASSIGN_OR_RETURN(auto completion, engine::Completion::start_one(*engine, {.prompt = std::move(ids),
                                                                                  .params = options.sampling,
                                                                                  .adapter = std::move(adapter)}));
  const InterruptGuard guard;
  const StreamedAnswer answer = stream_answer(*completion);
  std::fputc('\n', stdout);
  std::fflush(stdout);  // before what goes to stderr, which may be the same file
  if (!options.quiet) std::fprintf(stderr, "%s\n", speed_line(num_prompt_tokens, answer).c_str());
  return answer.error;
}

bool names_a_model(const std::string& word) {
  std::error_code none;  // of a name that no file can have
  return word.ends_with(".gguf") || hub::looks_like_model_name(word) || std::filesystem::exists(word, none);
}

// Which of the words without a flag is the model and which the prompt. One alone is the model where --prompt is given;
// otherwise it is the prompt, unless it names a model: then the prompt was forgotten. Throws CLI::ValidationError.
void place_words(CompleteOptions& options, const CLI::App& command) {
  const auto refuse = [](const std::string& why) { throw CLI::ValidationError("PROMPT", why); };
  const bool has_prompt = command.count("--prompt") > 0;
  const bool has_first = command.count("model") > 0;
  const bool has_second = command.count("prompt") > 0;
  if (has_second && has_prompt) {
    refuse("two prompts are given, \"" + options.second + "\" and \"" + options.prompt + "\" (--prompt)");
  }
  const bool is_model = has_first && (has_prompt || has_second || names_a_model(options.first));
  if (is_model) name_model(options.engine, options.first);
  if (has_prompt) return;
  if (!has_second && (!has_first || is_model)) {
    refuse("no prompt is given: put it behind the model, or give --prompt (-p TEXT; -p - reads standard input)" +
           (is_model ? "; \"" + options.first + "\" is taken for the model" : std::string()));
  }
  options.prompt = has_second ? options.second : options.first;
}

}  // namespace

void add_complete_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<CompleteOptions>();
  options->engine.max_num_seqs = 1;
  options->sampling.max_tokens = 256;
  options->sampling.temperature = 0.7f;
  options->sampling.top_p = 0.95f;
  CLI::App* command = program.add_subcommand("complete", "Complete one prompt, streamed to the terminal");
  command->add_option("model", options->first, kModelHelp)->type_name("MODEL");
  command->add_option("prompt", options->second, "The prompt, which may also stand alone: quire complete \"Once upon\"")
      ->type_name("PROMPT");
  add_model_flag(*command, options->engine);
  add_hub_options(*command, options->hub);
  command->add_option("-p,--prompt", options->prompt, "The same, as a flag; - reads it from standard input");
  command->add_flag("--chat", options->chat, "Put the prompt into the model's chat template, as a user's message");
  command->add_option("--system", options->system, "System message, with --chat");
  command->add_flag("-q,--quiet", options->quiet, "No line about the speed");
  command->add_option("--seed", options->sampling.seed, "The same seed gives the same answer")->group("Sampling");
  add_sampling_options(*command, options->sampling);
  command->get_option("--temperature")->default_str("0.7; with --chat what suits the model");
  command->get_option("--top-p")->default_str("0.95; with --chat what suits the model");
  add_engine_options(*command, options->engine);
  add_lora_option(*command, options->lora);
  add_node_options(*command, options->nodes);
  command->callback([options, command, &exit_code] {
    place_words(*options, *command);  // a misspelt flag was complained of before
    exit_code = exit_code_of(run(*options, *command));
  });
}

}  // namespace quire::cli
