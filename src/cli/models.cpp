// quire pull, models and remove: what of the Hub is on this machine.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <set>

#include <boost/json.hpp>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/download_progress.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "hub/cache.h"
#include "hub/hub.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct PullOptions {
  HubFlags hub;
  std::vector<std::string> names;
};

Status pull_one(const std::string& text, const HubFlags& flags) {
  QUIRE_ASSIGN_OR_RETURN(const hub::ModelName name, hub::parse_model_name(text));
  DownloadProgress progress(name.text());
  QUIRE_ASSIGN_OR_RETURN(const hub::PulledModel pulled, hub::pull(name, flags.revision, hub::Freshness::kNewest,
                                                                  hub::Need::kAll, hub_options(flags), &progress));
  const std::string type = pulled.gguf.empty() ? "safetensors" : pulled.gguf;
  std::fprintf(stderr, "%s: %s, commit %s, %d %s, %s%s\n", name.text().c_str(), type.c_str(),
               pulled.commit.substr(0, 12).c_str(), pulled.files, pulled.files == 1 ? "file" : "files",
               size_text(pulled.bytes).c_str(), pulled.fetched_bytes == 0 ? ", all of it was there" : "");
  std::printf("%s\n", pulled.path.c_str());
  return {};
}

Status run(PullOptions& options) {
  for (const std::string& name : options.names) QUIRE_RETURN_IF_ERROR(pull_one(name, options.hub));
  return {};
}

struct ModelsOptions {
  HubFlags hub;
  bool json = false;
};

// A line of the table: what a command could be given.
struct Row {
  std::string name;
  std::string type;
  std::string format;  // "GGUF", "safetensors" or "incomplete"
  int64_t bytes = 0;
  std::string commit;
  std::vector<std::string> refs;
  int64_t used = 0;
  std::string path;
};

Row row_of(const hub::CachedModel& model, const hub::CachedSnapshot& snapshot) {
  return {.name = model.repository, .commit = snapshot.commit, .refs = snapshot.refs, .path = snapshot.folder.string()};
}

void count(const hub::CachedFile& file, Row& row) {
  row.bytes += file.size;
  row.used = std::max(row.used, hub::last_used(file.blob));
}

// Of the weights, by their headers.
std::string dtype_of(const hub::CachedSnapshot& snapshot) {
  const auto checkpoint = checkpoint::Checkpoint::open(snapshot.folder.string());
  return checkpoint.ok() ? (*checkpoint)->describe_weights() : "?";
}

void add_rows(const hub::CachedModel& model, const hub::CachedSnapshot& snapshot, std::vector<Row>& rows) {
  std::vector<std::string> paths;
  for (const hub::CachedFile& file : snapshot.files) paths.push_back(file.path);
  std::set<std::string> in_gguf;
  for (const hub::GgufModel& gguf : hub::gguf_models(paths)) {
    Row row = row_of(model, snapshot);
    row.name += ":" + gguf.label;
    row.type = gguf.label;
    row.format = gguf.whole ? "GGUF" : "incomplete";
    row.path = (snapshot.folder / gguf.files.front()).string();
    for (const hub::CachedFile& file : snapshot.files) {
      if (std::find(gguf.files.begin(), gguf.files.end(), file.path) != gguf.files.end()) count(file, row);
    }
    in_gguf.insert(gguf.files.begin(), gguf.files.end());
    rows.push_back(std::move(row));
  }
  if (in_gguf.size() == snapshot.files.size()) return;
  Row row = row_of(model, snapshot);
  for (const hub::CachedFile& file : snapshot.files) {
    if (!in_gguf.contains(file.path)) count(file, row);
  }
  const bool weights =
      std::any_of(paths.begin(), paths.end(), [](const std::string& path) { return path.ends_with(".safetensors"); });
  if (!weights && !in_gguf.empty()) return;  // a config.json beside GGUF files
  const bool whole = hub::select_files({.repository = model.repository, .gguf = {}}, paths, hub::Need::kAll).ok();
  row.format = weights && whole ? "safetensors" : "incomplete";
  row.type = weights ? dtype_of(snapshot) : "no weights";
  rows.push_back(std::move(row));
}

std::vector<Row> rows_of(const std::vector<hub::CachedModel>& models) {
  std::vector<Row> rows;
  for (const hub::CachedModel& model : models) {
    const size_t before = rows.size();
    for (const hub::CachedSnapshot& snapshot : model.snapshots) {
      if (!snapshot.files.empty()) add_rows(model, snapshot, rows);
    }
    if (model.incomplete_bytes > 0 || rows.size() == before) {
      const int64_t used = rows.size() == before ? hub::last_used(model.folder / "blobs") : 0;
      rows.push_back({.name = model.repository,
                      .type = "partial",
                      .format = "incomplete",
                      .bytes = model.incomplete_bytes,
                      .used = used,
                      .path = model.folder.string()});
    }
  }
  return rows;
}

std::string date_text(int64_t seconds) {
  if (seconds <= 0) return "-";
  const std::time_t time = seconds;
  std::tm parts{};
  localtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts)};
}

std::string revision_text(const Row& row) {
  std::string text;
  for (const std::string& ref : row.refs) text += (text.empty() ? "" : ",") + ref;
  const std::string commit = row.commit.substr(0, 8);
  return text.empty() ? (commit.empty() ? "-" : commit) : text + " " + commit;
}

void print_table(const std::vector<Row>& rows, int64_t bytes, const std::string& cache) {
  if (rows.empty()) {
    std::printf("No models in %s. `quire pull ORG/NAME` gets one from the Hugging Face Hub.\n", cache.c_str());
    return;
  }
  size_t name = 4, type = 4, revision = 8;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    type = std::max(type, row.type.size());
    revision = std::max(revision, revision_text(row).size());
  }
  const auto line = [&](const std::string& a, const std::string& b, const std::string& c, const std::string& d,
                        const std::string& e) {
    std::printf("%s\n", fmt::format("{:<{}}  {:<{}}  {:>9}  {:<{}}  {}", a, name, b, type, c, d, revision, e).c_str());
  };
  line("NAME", "TYPE", "SIZE", "REVISION", "LAST USED");
  for (const Row& row : rows) {
    line(row.name, row.type, size_text(row.bytes), revision_text(row),
         date_text(row.used) + (row.format == "incomplete" ? "  (incomplete)" : ""));
  }
  std::printf("%s on disk in %s\n", size_text(bytes).c_str(), cache.c_str());
}

Status run(ModelsOptions& options) {
  const std::filesystem::path cache = hub_options(options.hub).cache;
  const std::vector<hub::CachedModel> models = hub::scan_cache(cache);
  int64_t bytes = 0;
  for (const hub::CachedModel& model : models) bytes += model.bytes;
  const std::vector<Row> rows = rows_of(models);
  if (!options.json) {
    print_table(rows, bytes, cache.string());
    return {};
  }
  json::array list;
  for (const Row& row : rows) {
    list.push_back(json::object{{"name", row.name},
                                {"type", row.type},
                                {"format", row.format},
                                {"bytes", row.bytes},
                                {"commit", row.commit},
                                {"revisions", json::array(row.refs.begin(), row.refs.end())},
                                {"last_used", row.used},
                                {"path", row.path}});
  }
  std::printf("%s\n",
              json::serialize(json::object{{"cache", cache.string()}, {"bytes", bytes}, {"models", list}}).c_str());
  return {};
}

struct RemoveOptions {
  HubFlags hub{.revision = {}, .download_dir = {}, .token = {}};
  std::string name;
  bool yes = false;
};

std::string what_text(const hub::RemoveWhat& what) {
  return what.name.text() + (what.revision.empty() ? "" : " (revision " + what.revision + ")");
}

Status run(RemoveOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const hub::ModelName name, hub::parse_model_name(options.name));
  const hub::RemoveWhat what{.name = name, .revision = options.hub.revision};
  const std::filesystem::path cache = hub_options(options.hub).cache;
  QUIRE_ASSIGN_OR_RETURN(const hub::Removed planned, hub::remove_model(cache, what, /*dry=*/true));
  if (!options.yes) {
    if (isatty(STDIN_FILENO) == 0) {
      return invalid_argument("{} would be removed; say --yes where nobody can be asked", what_text(what));
    }
    std::fprintf(stderr, "Remove %s from %s: %d %s, %s? [y/N] ", what_text(what).c_str(), cache.c_str(), planned.files,
                 planned.files == 1 ? "file" : "files", size_text(planned.bytes).c_str());
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes") {
      std::fputs("Nothing was removed.\n", stderr);
      return {};
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const hub::Removed removed, hub::remove_model(cache, what, /*dry=*/false));
  std::printf("%s removed: %d %s, %s freed%s\n", what_text(what).c_str(), removed.files,
              removed.files == 1 ? "file" : "files", size_text(removed.bytes).c_str(),
              removed.whole ? "" : "; other files of the model stay");
  return {};
}

}  // namespace

void add_pull_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<PullOptions>();
  CLI::App* command = program.add_subcommand("pull", "Download a model from the Hugging Face Hub, or its newest state");
  command->add_option("name", options->names, "ORG/NAME, ORG/NAME:Q4_K_M (a GGUF type) or ORG/NAME:FILE.gguf")
      ->type_name("NAME")
      ->required();
  add_hub_options(*command, options->hub);
  command->footer("Standard output: where each lies. Only the files that a model needs, never pickles: docs/hub.md.");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

void add_models_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<ModelsOptions>();
  CLI::App* command = program.add_subcommand("models", "The models of the Hugging Face Hub on this machine");
  command->add_flag("--json", options->json, "One JSON object");
  command->add_option("--download-dir", options->hub.download_dir,
                      "Where they are kept; otherwise $HF_HUB_CACHE, or ~/.cache/huggingface/hub");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

void add_remove_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<RemoveOptions>();
  CLI::App* command = program.add_subcommand("remove", "Remove a model of the Hub from this machine");
  command->add_option("name", options->name, "ORG/NAME, or ORG/NAME:Q4_K_M for the files of that type alone")
      ->type_name("NAME")
      ->required();
  command->add_option("--revision", options->hub.revision, "That branch, tag or commit alone; otherwise all of them");
  command->add_option("--download-dir", options->hub.download_dir,
                      "Where it is kept; otherwise $HF_HUB_CACHE, or ~/.cache/huggingface/hub");
  command->add_flag("-y,--yes", options->yes, "Do not ask");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
