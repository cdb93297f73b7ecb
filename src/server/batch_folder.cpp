#include "server/batch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "server/api_error.h"
#include "server/random_id.h"

namespace quire::server {
namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

// A file takes a block at least, and so does what is kept of it.
size_t taken_by(int64_t bytes) {
  constexpr size_t kBesideIt = 8192;
  return static_cast<size_t>(std::max<int64_t>(bytes, 0)) + kBesideIt;
}

// The path is the operator's to know, not the client's.
Status disk_error(const char* what) {
  return unavailable("The batch folder cannot be {}: {}.", what, std::strerror(errno));
}

// Either all of it is there after a crash, or what was there before.
Status write_atomically(const std::string& path, std::string_view content) {
  const std::string fresh = path + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return disk_error("written");
  Status status;
  while (status.ok() && !content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      status = disk_error("written");
    } else {
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (status.ok() && ::fsync(fd) != 0) status = disk_error("written");
  ::close(fd);
  if (status.ok() && std::rename(fresh.c_str(), path.c_str()) != 0) status = disk_error("written");
  if (!status.ok()) ::unlink(fresh.c_str());
  return status;
}

Result<json::object> read_object(const fs::path& path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path.string()));
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) return data_loss("{} is no JSON object", path.filename().string());
  return std::move(value.get_object());
}

std::string text_at(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(std::string_view(value->get_string())) : "";
}

int64_t number_at(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

}  // namespace

Result<std::string> read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("A file of the batch folder is gone.");
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

json::object StoredFile::object() const {
  return {{"id", id},
          {"object", "file"},
          {"bytes", bytes},
          {"created_at", created_at},
          {"expires_at", nullptr},
          {"filename", filename},
          {"purpose", purpose},
          {"status", "processed"},
          {"status_details", nullptr}};
}

Result<std::unique_ptr<BatchFolder>> BatchFolder::open(const std::string& path, int64_t max_bytes,
                                                       std::vector<std::string> owners,
                                                       const std::vector<double>& weights) {
  std::error_code error;
  fs::create_directories(fs::path(path) / "files", error);
  if (!error) fs::create_directories(fs::path(path) / "batches", error);
  if (error) return unavailable("--batch-folder {}: {}", path, error.message());
  const int lock = ::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return unavailable("--batch-folder {}: {}", path, std::strerror(errno));
  std::unique_ptr<BatchFolder> folder(new BatchFolder(path, max_bytes, std::move(owners), weights, lock));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return unavailable("--batch-folder {}: another server uses it; give each its own", path);
  }
  QUIRE_RETURN_IF_ERROR(folder->load_files());
  return folder;
}

BatchFolder::~BatchFolder() {
  ::close(lock_);
}

Status BatchFolder::load_files() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_ + "/files", error)) {
    if (entry.path().extension() != ".json") continue;
    auto record = read_object(entry.path());
    if (!record.ok()) {
      log_warning("batch folder: {}", record.status().message());
      continue;
    }
    StoredFile file{.id = entry.path().stem().string(),
                    .owner = text_at(*record, "owner"),
                    .filename = text_at(*record, "filename"),
                    .purpose = text_at(*record, "purpose"),
                    .bytes = number_at(*record, "bytes"),
                    .created_at = number_at(*record, "created_at")};
    HeldBytes room = place(file.owner);
    room.set_anyway(taken_by(file.bytes));
    std::string id = file.id;
    files_.emplace(std::move(id), Known{std::move(file), std::move(room)});
  }
  if (error) return unavailable("--batch-folder {}: {}", path_, error.message());
  return {};
}

HeldBytes BatchFolder::place(std::string_view owner) {
  const auto found = std::ranges::find(owners_, owner);
  return room_->place(found == owners_.end() ? -1 : static_cast<int32_t>(found - owners_.begin()));
}

Status BatchFolder::full() const {
  return resource_exhausted(
      "There is no room for it: files and answers of batches take {} of {} bytes (--max-batch-folder-bytes), of which "
      "each API key has a share. Delete files that are not needed any more.",
      room_->total(), room_->most());
}

std::string BatchFolder::content_path(const std::string& id) const {
  return path_ + "/files/" + id;
}

Status BatchFolder::write_file_record(const StoredFile& file) {
  json::object record = file.object();
  record["owner"] = file.owner;
  return write_atomically(content_path(file.id) + ".json", json::serialize(record));
}

Result<StoredFile> BatchFolder::add_file(std::string owner, std::string filename, std::string purpose,
                                         std::string_view content) {
  StoredFile file{.id = random_id("file-"),
                  .owner = std::move(owner),
                  .filename = std::move(filename),
                  .purpose = std::move(purpose),
                  .bytes = static_cast<int64_t>(content.size()),
                  .created_at = static_cast<int64_t>(std::time(nullptr))};
  HeldBytes room = place(file.owner);  // taken before it is written, so that uploads at once do not share it
  if (!room.set(taken_by(file.bytes))) return full();
  QUIRE_RETURN_IF_ERROR(write_atomically(content_path(file.id), content));
  if (Status status = write_file_record(file); !status.ok()) {
    ::unlink(content_path(file.id).c_str());
    return status;
  }
  const std::lock_guard lock(mutex_);
  files_.emplace(file.id, Known{file, std::move(room)});
  return file;
}

Status BatchFolder::adopt_file(StoredFile file) {
  QUIRE_RETURN_IF_ERROR(write_file_record(file));
  const std::lock_guard lock(mutex_);
  if (files_.contains(file.id)) return {};
  HeldBytes room = place(file.owner);
  room.set_anyway(taken_by(file.bytes));
  std::string id = file.id;
  files_.emplace(std::move(id), Known{std::move(file), std::move(room)});
  return {};
}

Result<StoredFile> BatchFolder::find_file(std::string_view id, std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.file.owner != owner) {
    return not_found("There is no file {}.", in_quotes(id)).with_param("file_id");
  }
  return found->second.file;
}

Status BatchFolder::remove_file(std::string_view id, std::string_view owner) {
  QUIRE_ASSIGN_OR_RETURN(const StoredFile file, find_file(id, owner));
  const std::lock_guard lock(mutex_);
  if (files_.erase(file.id) == 0) return {};
  ::unlink((content_path(file.id) + ".json").c_str());
  ::unlink(content_path(file.id).c_str());
  return {};
}

std::vector<StoredFile> BatchFolder::files(std::string_view owner) const {
  std::vector<StoredFile> out;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, known] : files_) {
      if (known.file.owner == owner) out.push_back(known.file);
    }
  }
  std::ranges::stable_sort(out, {}, &StoredFile::created_at);
  return out;
}

Status BatchFolder::save_batch(const Batch& batch) {
  const json::object record{
      {"owner", batch.owner}, {"output_id", batch.output_id}, {"errors_id", batch.errors_id}, {"batch", batch.body}};
  return write_atomically(path_ + "/batches/" + text_at(batch.body, "id") + ".json", json::serialize(record));
}

std::vector<Batch> BatchFolder::load_batches() const {
  std::vector<Batch> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_ + "/batches", error)) {
    if (entry.path().extension() != ".json") continue;
    const auto record = read_object(entry.path());
    const json::value* body = record.ok() ? record->if_contains("batch") : nullptr;
    if (body == nullptr || !body->is_object()) {
      log_warning("batch folder: {} is no batch", entry.path().filename().string());
      continue;
    }
    out.push_back({.owner = text_at(*record, "owner"),
                   .output_id = text_at(*record, "output_id"),
                   .errors_id = text_at(*record, "errors_id"),
                   .body = body->get_object()});
  }
  std::ranges::stable_sort(out, {}, [](const Batch& batch) { return number_at(batch.body, "created_at"); });
  return out;
}

void BatchFolder::forget_batch(const std::string& id) {
  ::unlink((path_ + "/batches/" + id + ".json").c_str());
}

}  // namespace quire::server
