#include "cli/tokenizer.h"

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"
#include "cli/options.h"
#include "runner/text_files.h"

namespace quire::cli {
namespace {

constexpr size_t kMostTokenizerBytes = 256u << 20;

}  // namespace

Result<std::unique_ptr<text::Tokenizer>> load_tokenizer(EngineConfig& config) {
  QUIRE_RETURN_IF_ERROR(resolve_model(config));
  const std::filesystem::path path = config.model;
  const bool tokenizer_directory =
      std::filesystem::is_directory(path) && !std::filesystem::exists(path / "config.json");
  if (path.extension() == ".json" || tokenizer_directory) {
    const std::filesystem::path file_path = tokenizer_directory ? path / "tokenizer.json" : path;
    if (tokenizer_directory && !std::filesystem::exists(file_path)) {
      return not_found("the directory {} holds neither config.json nor tokenizer.json", config.model);
    }
    TextSource source;
    QUIRE_ASSIGN_OR_RETURN(source.tokenizer_json, checkpoint::read_text_file(file_path, kMostTokenizerBytes));
    return text::Tokenizer::from_source(source);
  }
  QUIRE_ASSIGN_OR_RETURN(auto checkpoint, checkpoint::Checkpoint::open(config.model));
  QUIRE_ASSIGN_OR_RETURN(const TextSource source, runner::read_text_source(config, *checkpoint));
  return text::Tokenizer::from_source(source);
}

}  // namespace quire::cli
