#include "cli/tokenizer.h"

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "cli/options.h"
#include "runner/open_checkpoint.h"
#include "runner/text_files.h"

namespace quire::cli {

Result<std::unique_ptr<text::Tokenizer>> load_tokenizer(EngineConfig& config, const HubFlags& hub) {
  QUIRE_RETURN_IF_ERROR(resolve_model(config, hub, hub::Need::kText));
  const std::filesystem::path path = config.model;
  const bool by_name = !config.served_model_name.empty();  // then the weights may not be there
  const bool tokenizer_directory =
      std::filesystem::is_directory(path) && (by_name || !std::filesystem::exists(path / "config.json"));
  if (path.extension() == ".json" || path.extension() == ".model" || tokenizer_directory) {
    if (tokenizer_directory && !std::filesystem::exists(path / "tokenizer.json") &&
        !std::filesystem::exists(path / "tokenizer.model")) {
      return not_found("the directory {} holds neither config.json nor tokenizer.json nor tokenizer.model",
                       config.model);
    }
    TextSource source;
    QUIRE_RETURN_IF_ERROR(runner::read_tokenizer_files(path, source));
    return text::Tokenizer::from_source(source);
  }
  QUIRE_ASSIGN_OR_RETURN(auto checkpoint, runner::open_checkpoint(config));
  QUIRE_ASSIGN_OR_RETURN(const TextSource source, runner::read_text_source(config, *checkpoint));
  return text::Tokenizer::from_source(source);
}

}  // namespace quire::cli
