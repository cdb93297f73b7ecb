#include "hub/hub.h"

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "hub/cache.h"
#include "hub/download.h"
#include "hub/fetch.h"
#include "hub/listing.h"
#include "hub/partial_file.h"

namespace quire::hub {
namespace {

constexpr size_t kMostAnswerBytes = size_t{64} << 20;
constexpr size_t kMostIndexBytes = size_t{64} << 20;
constexpr int kMostPages = 1000;
constexpr int64_t kSpareBytes = int64_t{64} << 20;  // left on a disk beside what is downloaded

std::vector<std::string> paths_of(const Listing& listing) {
  std::vector<std::string> paths;
  for (const auto& [path, file] : listing) paths.push_back(path);
  return paths;
}

class Pull {
 public:
  Pull(const ModelName& name, const std::string& revision, Need need, const HubOptions& options, Progress* progress)
      : name_(name),
        revision_(revision),
        need_(need),
        options_(options),
        progress_(progress),
        cache_(options.cache, name) {}

  // What is there, without a request; nullopt: not all of it.
  std::optional<PulledModel> from_cache() const;
  // Why a command that may ask nobody cannot go on.
  Status missing_offline() const;
  Result<PulledModel> from_hub();

 private:
  // The selected files with the index's shards. nullopt: the index is not there, or cannot be read.
  std::optional<std::vector<std::string>> all_files(const std::string& commit, const Selection& selection,
                                                    std::span<const std::string> paths) const;
  bool is_there(const std::string& commit, const std::string& path, const Listing* listing) const;
  PulledModel result(const std::string& commit, const Selection& selection,
                     const std::vector<std::string>& files) const;

  Result<std::string> ask_commit(const Session& session, Fetcher& fetcher, Listing& siblings);
  Result<Listing> ask_listing(const Session& session, Fetcher& fetcher, const std::string& commit,
                              const Listing& siblings);
  Status check_space(int64_t missing) const;
  Status fetch(Downloader& downloader, const std::string& commit, const std::vector<std::string>& files,
               Listing& listing, int64_t& fetched);

  const ModelName& name_;
  const std::string& revision_;
  const Need need_;
  const HubOptions& options_;
  Progress* progress_;
  const ModelCache cache_;
};

bool Pull::is_there(const std::string& commit, const std::string& path, const Listing* listing) const {
  if (!cache_.has(commit, path)) return false;
  if (listing == nullptr) return true;
  const auto found = listing->find(path);
  if (found == listing->end() || found->second.size < 0) return true;
  std::error_code error;
  return static_cast<int64_t>(std::filesystem::file_size(cache_.snapshot(commit) / path, error)) == found->second.size;
}

std::optional<std::vector<std::string>> Pull::all_files(const std::string& commit, const Selection& selection,
                                                        std::span<const std::string> paths) const {
  std::vector<std::string> files = selection.files;
  if (selection.needs_modules) {
    const auto modules = read_small_file(cache_.snapshot(commit) / kModulesFile, kMostIndexBytes);
    if (!modules.ok()) return std::nullopt;
    auto more = files_of_modules(*modules, paths);
    if (!more.ok()) return std::nullopt;
    files.insert(files.end(), more->begin(), more->end());
  }
  if (!selection.needs_index) return files;
  const auto text = read_small_file(cache_.snapshot(commit) / kIndexFile, kMostIndexBytes);
  if (!text.ok()) return std::nullopt;
  auto shards = shards_of_index(*text);
  if (!shards.ok()) return std::nullopt;
  files.insert(files.end(), shards->begin(), shards->end());
  return files;
}

std::optional<PulledModel> Pull::from_cache() const {
  const auto commit = cache_.commit_of(revision_);
  if (!commit) return std::nullopt;
  const std::optional<Listing> listing = cache_.listing(*commit);
  // Without a listing, as another program downloaded it: what is there must be a model by itself.
  const std::vector<std::string> paths = listing ? paths_of(*listing) : cache_.files_of(*commit);
  const auto selection = select_files(name_, paths, need_);
  if (!selection.ok()) return std::nullopt;
  const auto files = all_files(*commit, *selection, paths);
  if (!files) return std::nullopt;
  const bool complete = std::all_of(files->begin(), files->end(), [&](const std::string& path) {
    return is_there(*commit, path, listing ? &*listing : nullptr);
  });
  if (!complete) return std::nullopt;
  if (!listing && !options_.offline) {
    // The repository may have more than is here: a tokenizer, or the GGUF type that is taken where none is named.
    const bool sure =
        !selection->main.empty() ? !name_.gguf.empty() : std::any_of(paths.begin(), paths.end(), is_tokenizer_file);
    if (!sure) return std::nullopt;
  }
  return result(*commit, *selection, *files);
}

PulledModel Pull::result(const std::string& commit, const Selection& selection,
                         const std::vector<std::string>& files) const {
  PulledModel model{.path = cache_.snapshot(commit), .commit = commit, .gguf = selection.gguf};
  if (!selection.main.empty()) model.path /= selection.main;
  model.files = static_cast<int>(files.size());
  for (const std::string& file : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(cache_.snapshot(commit) / file, error);
    if (!error) model.bytes += static_cast<int64_t>(size);
  }
  return model;
}

Status Pull::missing_offline() const {
  const auto commit = cache_.commit_of(revision_);
  std::string there;
  if (commit) {
    const std::vector<std::string> paths = cache_.files_of(*commit);
    for (const GgufModel& model : gguf_models(paths)) {
      if (model.whole) there += (there.empty() ? " There are: " : ", ") + model.label;
    }
  }
  return not_found(
      "{} (revision {}) is not, or not whole, in {}, and HF_HUB_OFFLINE forbids to ask the Hub.{} Get it with `quire "
      "pull {}` where there is a network",
      name_.text(), revision_, options_.cache.string(), there, name_.text());
}

Result<std::string> Pull::ask_commit(const Session& session, Fetcher& fetcher, Listing& siblings) {
  const std::string about = fmt::format("the revision \"{}\" of {}", revision_, name_.repository);
  const std::string target =
      fmt::format("/api/models/{}/revision/{}", name_.repository, net::percent_encoded(revision_, false));
  QUIRE_ASSIGN_OR_RETURN(const std::string text,
                         fetcher.get(at_endpoint(session, target), about, kMostAnswerBytes, nullptr));
  QUIRE_ASSIGN_OR_RETURN(RevisionInfo info, parse_revision_info(text));
  if (is_commit(revision_) && info.commit != revision_) {
    return data_loss("the Hub answers with commit {} where {} was asked for", info.commit, revision_);
  }
  siblings = std::move(info.files);
  return std::move(info.commit);
}

Result<Listing> Pull::ask_listing(const Session& session, Fetcher& fetcher, const std::string& commit,
                                  const Listing& siblings) {
  const net::Url first =
      at_endpoint(session, fmt::format("/api/models/{}/tree/{}?recursive=true", name_.repository, commit));
  Listing listing;
  net::Url url = first;
  std::set<std::string> seen;
  for (int page = 0; page < kMostPages; ++page) {
    if (!seen.insert(url.text()).second) return data_loss("the list of files of {} goes in a circle", name_.repository);
    net::HttpHead head;
    const auto text = fetcher.get(url, "the list of files of " + name_.repository, kMostAnswerBytes, &head);
    if (!text.ok()) {
      // A mirror without lists: the names are known, and each file is asked about.
      if (page == 0 && text.status().code() == StatusCode::kNotFound && !siblings.empty()) return siblings;
      return text.status();
    }
    QUIRE_RETURN_IF_ERROR(add_tree_page(*text, listing).with_prefix(name_.repository + ": "));
    const auto next = next_link(head.field("Link"));
    if (!next) {
      // Cut short, unless it has all that the revision is said to have.
      for (const auto& [path, file] : siblings) listing.try_emplace(path, file);
      return listing;
    }
    QUIRE_ASSIGN_OR_RETURN(net::Url following, net::resolve_reference(url, *next));
    if (!net::same_origin(following, first)) {
      return data_loss("the list of files of {} goes on at another server, {}, which is refused", name_.repository,
                       following.origin());
    }
    url = std::move(following);
  }
  return resource_exhausted("the list of files of {} has more than {} pages", name_.repository, kMostPages);
}

Status Pull::check_space(int64_t missing) const {
  if (missing == 0) return {};
  std::error_code error;
  std::filesystem::create_directories(options_.cache, error);
  if (error) return unavailable("the folder {} cannot be made: {}", options_.cache.string(), error.message());
  int64_t free = 0;
  if (options_.free_bytes) {
    free = options_.free_bytes(options_.cache);
  } else {
    const auto space = std::filesystem::space(options_.cache, error);
    if (error) return {};  // not known: writing will tell
    free = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  }
  if (free >= missing + kSpareBytes) return {};
  return resource_exhausted(
      "{} needs {:.2f} GB more on the disk, and {} has {:.2f} GB free. Make room (`quire models` and `quire remove`), "
      "or "
      "name another folder with --download-dir or HF_HUB_CACHE",
      name_.text(), static_cast<double>(missing) / 1e9, options_.cache.string(), static_cast<double>(free) / 1e9);
}

Status Pull::fetch(Downloader& downloader, const std::string& commit, const std::vector<std::string>& files,
                   Listing& listing, int64_t& fetched) {
  std::vector<std::string> missing;
  int64_t bytes = 0, there = 0;
  for (const std::string& path : files) {
    const auto known = listing.find(path);
    if (known == listing.end()) {
      return not_found("{}: {} names {}, which is not in the repository", name_.repository, kIndexFile, path);
    }
    RemoteFile& file = known->second;
    if (file.size < 0 || file.hash.empty()) QUIRE_RETURN_IF_ERROR(downloader.ask_about(commit, path, file));
    if (is_there(commit, path, &listing)) continue;
    missing.push_back(path);
    std::error_code error;
    if (std::filesystem::exists(cache_.blob(file.hash), error)) continue;  // another revision has it
    bytes += file.size;
    there += PartialFile::bytes_there(partial_path(cache_, file.hash), file.size);
  }
  QUIRE_RETURN_IF_ERROR(check_space(bytes - there));
  if (bytes > 0 && progress_ != nullptr) progress_->started(static_cast<int>(missing.size()), bytes, there);
  for (const std::string& path : missing) {
    const RemoteFile& file = listing.find(path)->second;
    Status status = downloader.download(commit, path, file);
    if (status.ok()) status = cache_.link(commit, path, file.hash);
    if (!status.ok()) {
      if (bytes > 0 && progress_ != nullptr) progress_->finished();
      return status;
    }
  }
  if (bytes > 0 && progress_ != nullptr) progress_->finished();
  fetched += bytes - there;
  return {};
}

Result<PulledModel> Pull::from_hub() {
  QUIRE_ASSIGN_OR_RETURN(Session session, Session::make(options_, name_.repository, revision_));
  session.progress = progress_;
  Downloader downloader(session, cache_);
  Listing siblings;
  QUIRE_ASSIGN_OR_RETURN(const std::string commit, ask_commit(session, downloader.fetcher(), siblings));
  std::optional<Listing> listing = cache_.listing(commit);
  if (!listing) {
    QUIRE_ASSIGN_OR_RETURN(listing, ask_listing(session, downloader.fetcher(), commit, siblings));
  }
  QUIRE_ASSIGN_OR_RETURN(const Selection selection, select_files(name_, paths_of(*listing), need_));
  int64_t fetched = 0;
  QUIRE_RETURN_IF_ERROR(fetch(downloader, commit, selection.files, *listing, fetched));
  std::vector<std::string> files = selection.files;
  if (selection.needs_modules) {
    QUIRE_ASSIGN_OR_RETURN(const std::string modules,
                           read_small_file(cache_.snapshot(commit) / kModulesFile, kMostIndexBytes));
    auto more = files_of_modules(modules, paths_of(*listing));
    if (!more.ok()) return more.status().with_prefix(name_.repository + ": ");
    QUIRE_RETURN_IF_ERROR(fetch(downloader, commit, *more, *listing, fetched));
    files.insert(files.end(), more->begin(), more->end());
  }
  if (selection.needs_index) {
    QUIRE_ASSIGN_OR_RETURN(const std::string index,
                           read_small_file(cache_.snapshot(commit) / kIndexFile, kMostIndexBytes));
    auto shards = shards_of_index(index);
    if (!shards.ok()) return shards.status().with_prefix(name_.repository + ": ");
    QUIRE_RETURN_IF_ERROR(fetch(downloader, commit, *shards, *listing, fetched));
    files.insert(files.end(), shards->begin(), shards->end());
  }
  QUIRE_RETURN_IF_ERROR(cache_.write_listing(commit, *listing));
  QUIRE_RETURN_IF_ERROR(cache_.write_ref(revision_, commit));
  PulledModel model = result(commit, selection, files);
  model.fetched_bytes = fetched;
  return model;
}

}  // namespace

Result<PulledModel> pull(const ModelName& name, const std::string& revision, Freshness freshness, Need need,
                         const HubOptions& options, Progress* progress) {
  if (!is_safe_path(revision)) {
    return invalid_argument("\"{}\" is no revision: a branch, a tag or a commit hash", revision.substr(0, 100));
  }
  Pull pull(name, revision, need, options, progress);
  if (freshness == Freshness::kCached || options.offline) {
    if (auto model = pull.from_cache()) return std::move(*model);
    if (options.offline) return pull.missing_offline();
  }
  return pull.from_hub();
}

}  // namespace quire::hub
