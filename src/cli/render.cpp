// quire render: a chat template and its variables to text.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/options.h"
#include "runner/open_checkpoint.h"
#include "text/chat_template.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct RenderOptions {
  EngineConfig engine;
  std::string file;
};

// Of --template, else the model's own.
Result<std::string> template_source(RenderOptions& options) {
  if (options.file.empty()) {
    QUIRE_RETURN_IF_ERROR(resolve_model(options.engine));
    QUIRE_ASSIGN_OR_RETURN(auto checkpoint, runner::open_checkpoint(options.engine));
    std::string source = checkpoint->chat_template();
    if (source.empty()) return not_found("{} has no chat template; --template FILE names one", options.engine.model);
    return source;
  }
  // A pipe will do. A directory would read as an empty file.
  std::ifstream file(options.file, std::ios::binary);
  std::string source(std::istreambuf_iterator<char>(file), {});
  if (!file || std::filesystem::is_directory(options.file))
    return not_found("the template {} cannot be read", options.file);
  return source;
}

Status run(RenderOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::string source, template_source(options));
  const auto parsed = text::ChatTemplate::parse(source);
  // An error is an answer, too: templates refuse conversations.
  const AnsweredLines lines = answer_json_lines([&](const json::object& variables) -> Result<json::object> {
    if (!parsed.ok()) return parsed.status();
    QUIRE_ASSIGN_OR_RETURN(const auto pieces, parsed->render(variables, {}));
    return json::object{{"text", text::concatenate(pieces)}};
  });
  return lines.all > 0 ? Status() : parsed.status();
}

}  // namespace

void add_render_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<RenderOptions>();
  CLI::App* command = program.add_subcommand("render", "A chat template and its variables to text");
  add_model_argument(*command, options->engine);
  command->get_option("model")->description("Whose chat template; nothing: the default model's");
  command->add_option("--template", options->file, "A Jinja template's file, instead of the model's");
  command->footer(
      "Standard input: lines of JSON objects, the template's variables (messages, tools, add_generation_prompt,\n"
      "bos_token, ...). Standard output: a line {\"text\": ...} or {\"error\": ...} for each.");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
