// quire render: a chat template and its variables to text.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <boost/json.hpp>

#include "base/named_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory_files.h"
#include "checkpoint/folder_checkpoint.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/json_lines.h"
#include "cli/options.h"
#include "runner/open_checkpoint.h"
#include "text/chat_template.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct RenderOptions {
  EngineConfig engine;
  HubFlags hub;
  std::string file;
};

// A folder's without its weights, which need not be there.
Result<std::string> model_template(const EngineConfig& config) {
  if (std::filesystem::is_directory(config.model)) {
    QUIRE_ASSIGN_OR_RETURN(const auto directory, checkpoint::ModelDirectory::open(config.model));
    QUIRE_ASSIGN_OR_RETURN(checkpoint::FolderFiles files, checkpoint::read_folder_files(directory));
    return std::move(files.chat_template);
  }
  QUIRE_ASSIGN_OR_RETURN(const auto checkpoint, runner::open_checkpoint(config));
  return checkpoint->chat_template();
}

// Of --template, else the model's own.
Result<std::string> template_source(RenderOptions& options) {
  if (options.file.empty()) {
    QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub, hub::Need::kText));
    QUIRE_ASSIGN_OR_RETURN(std::string source, model_template(options.engine));
    if (source.empty()) {
      return not_found("{} has no chat template; --template FILE names one", shown_model(options.engine));
    }
    return source;
  }
  if (Status status = check_file(options.file, FileUse::kReadOnce); !status.ok()) {
    return std::move(status).with_prefix("--template: ");
  }
  std::ifstream file(options.file, std::ios::binary);
  std::string source(std::istreambuf_iterator<char>(file), {});
  if (!file) return not_found("the template {} cannot be read", options.file);
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
  add_hub_options(*command, options->hub);
  command->get_option("model")->description("Whose chat template; nothing: the default model's");
  command->add_option("--template", options->file, "A Jinja template's file, instead of the model's");
  command->footer(
      "Standard input: lines of JSON objects, the template's variables (messages, tools, add_generation_prompt,\n"
      "bos_token, ...). Standard output: a line {\"text\": ...} or {\"error\": ...} for each.");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
