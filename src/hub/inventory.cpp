// What a cache holds, and how parts of it are removed.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "hub/cache.h"
#include "hub/selection.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";

// "models--ORG--NAME" -> "ORG/NAME"; empty: another folder.
std::string repository_of(const std::string& folder) {
  if (!folder.starts_with(kPrefix)) return {};
  std::string name = folder.substr(kPrefix.size());
  if (const size_t at = name.find("--"); at != name.npos) name.replace(at, 2, "/");
  return name;
}

// commit -> the revisions that stand at it.
std::map<std::string, std::vector<std::string>> refs_in(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> refs;
  const fs::path root = folder / "refs";
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const auto commit = read_small_file(entry->path(), 256);
    if (!commit.ok()) continue;
    refs[commit->substr(0, 40)].push_back(entry->path().lexically_relative(root).generic_string());
  }
  for (auto& [commit, names] : refs) std::sort(names.begin(), names.end());
  return refs;
}

// Where a file of a snapshot has its content; links are followed one step, as far as blobs/.
fs::path blob_of(const fs::path& pointer) {
  std::error_code error;
  const fs::path target = fs::read_symlink(pointer, error);
  return error ? pointer : (pointer.parent_path() / target).lexically_normal();
}

int64_t size_of(const fs::path& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) ? static_cast<int64_t>(found.st_size) : 0;
}

// What a file takes on the disk: a download under way is as large as the file it will be, and mostly holes.
int64_t disk_bytes(const fs::path& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return 0;
  return std::min<int64_t>(found.st_size, static_cast<int64_t>(found.st_blocks) * 512);
}

bool is_incomplete(const fs::path& path) {
  return path.filename().string().find(".incomplete") != std::string::npos;
}

CachedSnapshot read_snapshot(const fs::path& folder, std::vector<std::string> refs) {
  CachedSnapshot snapshot{.commit = folder.filename().string(), .refs = std::move(refs), .files = {}, .folder = folder};
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    snapshot.files.push_back({.path = entry->path().lexically_relative(folder).generic_string(),
                              .size = size_of(entry->path()),
                              .blob = blob_of(entry->path())});
  }
  std::sort(snapshot.files.begin(), snapshot.files.end(),
            [](const CachedFile& a, const CachedFile& b) { return a.path < b.path; });
  return snapshot;
}

CachedModel read_model(const fs::path& folder, std::string repository) {
  CachedModel model{.repository = std::move(repository), .folder = folder, .snapshots = {}};
  auto refs = refs_in(folder);
  std::error_code error;
  for (fs::directory_iterator entry(folder / "snapshots", error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored))
      model.snapshots.push_back(read_snapshot(entry->path(), refs[entry->path().filename().string()]));
  }
  std::sort(model.snapshots.begin(), model.snapshots.end(),
            [](const CachedSnapshot& a, const CachedSnapshot& b) { return a.commit < b.commit; });
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const int64_t bytes = disk_bytes(entry->path());
    model.bytes += bytes;
    if (is_incomplete(entry->path())) model.incomplete_bytes += bytes;
  }
  return model;
}

// Nobody else is downloading it.
Status check_no_download(const fs::path& cache, const ModelName& name) {
  const fs::path locks = cache / ".locks" / name.folder();
  std::error_code error;
  for (fs::directory_iterator entry(locks, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() != ".lock") continue;
    QUIRE_ASSIGN_OR_RETURN(const auto lock, FileLock::try_take(entry->path()));
    if (!lock) {
      return unavailable("{} is being downloaded by another process; end that, or wait for it", name.repository);
    }
  }
  return {};
}

// The files of a snapshot that a removal means.
Result<std::vector<CachedFile>> meant(const CachedSnapshot& snapshot, const ModelName& name) {
  if (name.gguf.empty()) return snapshot.files;
  std::vector<std::string> paths;
  for (const CachedFile& file : snapshot.files) paths.push_back(file.path);
  const auto selection = select_files(name, paths, Need::kAll);
  std::vector<CachedFile> files;
  if (!selection.ok()) {
    if (selection.status().code() == StatusCode::kNotFound) return files;
    return selection.status();
  }
  for (const CachedFile& file : snapshot.files) {
    if (std::find(selection->files.begin(), selection->files.end(), file.path) != selection->files.end())
      files.push_back(file);
  }
  return files;
}

class Removal {
 public:
  Removal(const CachedModel& model, bool dry) : model_(model), dry_(dry) {}

  void drop(const CachedSnapshot& snapshot, const CachedFile& file) {
    dropped_.insert(snapshot.folder / file.path);
    ++removed_.files;
  }
  // The links that were dropped, and the content that no link that stays has.
  Removed finish() {
    std::set<fs::path> kept;
    for (const CachedSnapshot& snapshot : model_.snapshots) {
      for (const CachedFile& file : snapshot.files) {
        if (!dropped_.contains(snapshot.folder / file.path)) kept.insert(file.blob);
      }
    }
    std::set<fs::path> freed;
    for (const CachedSnapshot& snapshot : model_.snapshots) {
      bool empty = true;
      for (const CachedFile& file : snapshot.files) {
        const fs::path pointer = snapshot.folder / file.path;
        if (!dropped_.contains(pointer)) {
          empty = false;
          continue;
        }
        if (!kept.contains(file.blob) && freed.insert(file.blob).second) removed_.bytes += free(file.blob);
        if (pointer != file.blob && !dry_) remove(pointer);
      }
      if (empty && !snapshot.files.empty() && !dry_) forget(snapshot);
    }
    return removed_;
  }

 private:
  int64_t free(const fs::path& blob) {
    // Content outside of this model's folder (a store that models share) is others' too.
    const auto relative = blob.lexically_relative(model_.folder);
    if (relative.empty() || *relative.begin() == "..") return 0;
    const int64_t bytes = disk_bytes(blob);
    if (!dry_) remove(blob);
    return bytes;
  }
  void forget(const CachedSnapshot& snapshot) {
    std::error_code ignored;
    fs::remove_all(snapshot.folder, ignored);
    for (const std::string& ref : snapshot.refs) remove(model_.folder / "refs" / ref);
    for (const char* where : {".quire", "trees"}) remove(model_.folder / where / (snapshot.commit + ".json"));
    fs::remove_all(model_.folder / ".no_exist" / snapshot.commit, ignored);
  }
  static void remove(const fs::path& path) {
    std::error_code ignored;
    fs::remove(path, ignored);
  }

  const CachedModel& model_;
  bool dry_;
  std::set<fs::path> dropped_;
  Removed removed_;
};

// All of it, what was not finished included.
Result<Removed> remove_folder(const fs::path& cache, const CachedModel& model, const ModelName& name, bool dry) {
  Removed removed{.bytes = model.bytes, .whole = true};
  for (const CachedSnapshot& snapshot : model.snapshots) removed.files += static_cast<int>(snapshot.files.size());
  if (dry) return removed;
  std::error_code error;
  fs::remove_all(model.folder, error);  // follows no links
  if (error) return unavailable("{} cannot be removed: {}", model.folder.string(), error.message());
  fs::remove_all(cache / ".locks" / name.folder(), error);
  return removed;
}

}  // namespace

std::vector<CachedModel> scan_cache(const fs::path& cache) {
  std::vector<CachedModel> models;
  std::error_code error;
  for (fs::directory_iterator entry(cache, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    std::string repository = repository_of(entry->path().filename().string());
    if (!repository.empty() && entry->is_directory(ignored))
      models.push_back(read_model(entry->path(), std::move(repository)));
  }
  std::sort(models.begin(), models.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.repository < b.repository; });
  return models;
}

int64_t last_used(const fs::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return 0;
  return std::max<int64_t>(found.st_atime, found.st_mtime);
}

Result<Removed> remove_model(const fs::path& cache, const RemoveWhat& what, bool dry) {
  const fs::path folder = cache / what.name.folder();
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return not_found("{} is not in {}; `quire models` lists what is", what.name.repository, cache.string());
  }
  if (fs::is_symlink(folder, error)) {
    return invalid_argument("{} is a symbolic link, and what it leads to is not removed", folder.string());
  }
  QUIRE_RETURN_IF_ERROR(check_no_download(cache, what.name));
  const CachedModel model = read_model(folder, what.name.repository);
  if (what.name.gguf.empty() && what.revision.empty()) return remove_folder(cache, model, what.name, dry);

  Removal removal(model, dry);
  int found = 0;
  bool snapshot_found = what.revision.empty();
  for (const CachedSnapshot& snapshot : model.snapshots) {
    const bool this_one = what.revision.empty() || snapshot.commit == what.revision ||
                          std::find(snapshot.refs.begin(), snapshot.refs.end(), what.revision) != snapshot.refs.end();
    if (!this_one) continue;
    snapshot_found = true;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<CachedFile> files, meant(snapshot, what.name));
    for (const CachedFile& file : files) removal.drop(snapshot, file);
    found += static_cast<int>(files.size());
  }
  if (!snapshot_found) return not_found("no revision \"{}\" of {} is cached", what.revision, what.name.repository);
  if (found == 0) return not_found("nothing of {} is cached", what.name.text());
  if (static_cast<size_t>(found) == [&] {
        size_t all = 0;
        for (const CachedSnapshot& snapshot : model.snapshots) all += snapshot.files.size();
        return all;
      }()) {
    return remove_folder(cache, model, what.name, dry);
  }
  return removal.finish();
}

}  // namespace quire::hub
