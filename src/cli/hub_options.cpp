#include "cli/hub_options.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "cli/download_progress.h"
#include "cli/options.h"
#include "hub/cache.h"
#include "hub/hub.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostTokenBytes = 4096;

// The first that is set.
std::string first_set(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return {};
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

fs::path home_folder() {
  return environment("HOME");
}

fs::path expanded(const std::string& path) {
  if (path == "~") return home_folder();
  return path.starts_with("~/") ? home_folder() / path.substr(2) : fs::path(path);
}

fs::path hugging_face_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return expanded(home);
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? home_folder() / ".cache" : fs::path(cache)) / "huggingface";
}

std::string trimmed(std::string text) {
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.pop_back();
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin);
}

std::string token() {
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  if (std::string token = trimmed(first_set({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})); !token.empty()) return token;
  const std::string named = environment("HF_TOKEN_PATH");
  const auto text =
      hub::read_small_file(named.empty() ? hugging_face_home() / "token" : expanded(named), kMostTokenBytes);
  return text.ok() ? trimmed(*text) : "";
}

// MODEL that is no path here: a name, or a mistake.
Status no_such_path(const std::string& model) {
  const bool is_plain = model.find_first_of("./\\") == std::string::npos;
  const std::string as_text =
      is_plain ? fmt::format(
                     " If it is text for the default model: quire complete --chat \"{0}\", quire tokenize -t \"{0}\".",
                     model)
               : std::string();
  return not_found(
      "there is no file or directory \"{}\". MODEL is a .gguf file, a directory with config.json and safetensors, or "
      "the name of a model on the Hugging Face Hub (ORG/NAME, ORG/NAME:Q4_K_M).{}",
      model, as_text);
}

}  // namespace

void add_hub_options(CLI::App& app, HubFlags& flags) {
  constexpr const char* kGroup = "Model by name";
  app.add_option("--revision", flags.revision, "Of a model by its name: a branch, a tag or a commit")
      ->group(kGroup)
      ->capture_default_str();
  app.add_option("--download-dir", flags.download_dir,
                 "Where such models are kept; otherwise $HF_HUB_CACHE, or ~/.cache/huggingface/hub, which transformers "
                 "and vLLM share")
      ->group(kGroup);
  app.add_option("--hf-token", flags.token,
                 "For gated and private models; otherwise $HF_TOKEN, or what `hf auth login` wrote. Other users see "
                 "flags in the list of processes")
      ->group(kGroup);
}

hub::HubOptions hub_options(const HubFlags& flags) {
  hub::HubOptions options;
  options.user_agent = "quire/" QUIRE_VERSION;
  if (const std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) options.endpoint = endpoint;
  const std::string cache = first_set({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  options.cache = cache.empty() ? hugging_face_home() / "hub" : expanded(cache);
  if (!flags.download_dir.empty()) options.cache = expanded(flags.download_dir);
  options.token = flags.token.empty() ? token() : flags.token;
  options.offline = is_true(first_set({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  options.ca_file = environment("SSL_CERT_FILE");
  options.ca_folder = environment("SSL_CERT_DIR");
  return options;
}

Status resolve_model(EngineConfig& config, const HubFlags& flags, hub::Need need) {
  const bool is_default = config.model.empty();
  if (is_default) config.model = default_model_path();
  std::error_code error;
  if (fs::exists(config.model, error)) return {};
  if (is_default) {
    return not_found(
        "the default model is not there ({}). Get it with ./quickstart.sh or scripts/fetch_model.sh, or name a .gguf "
        "file, a model directory or a model on the Hugging Face Hub (ORG/NAME).",
        config.model);
  }
  if (!hub::looks_like_model_name(config.model)) return no_such_path(config.model);
  QUIRE_ASSIGN_OR_RETURN(const hub::ModelName name, hub::parse_model_name(config.model));
  DownloadProgress progress(name.text());
  auto pulled = hub::pull(name, flags.revision, hub::Freshness::kCached, need, hub_options(flags), &progress);
  if (!pulled.ok()) {
    return Status(pulled.status())
        .with_prefix(fmt::format("there is no file or directory \"{}\" here, so it is taken for a name on the Hub: ",
                                 config.model));
  }
  config.served_model_name = config.model;
  config.model = pulled->path.string();
  return {};
}

const std::string& shown_model(const EngineConfig& config) {
  return config.served_model_name.empty() ? config.model : config.served_model_name;
}

}  // namespace quire::cli
