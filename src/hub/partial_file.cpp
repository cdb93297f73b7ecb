#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>

#include <boost/json.hpp>

#include "hub/cache.h"
#include "hub/reason.h"

namespace quire::hub {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kBetweenSaves{500};
constexpr size_t kMostNoteBytes = size_t{16} << 20;
constexpr size_t kMostPieces = 1'000'000;

std::filesystem::path note_of(const std::filesystem::path& path) {
  return path.string() + ".json";
}

size_t pieces_of(int64_t size, int64_t piece_bytes) {
  return static_cast<size_t>((size + piece_bytes - 1) / piece_bytes);
}

struct Note {
  int64_t piece_bytes = 0;
  std::vector<int64_t> done;
};

// nullopt: there is none, or not of a file of that size.
std::optional<Note> read_note(const std::filesystem::path& path, int64_t size) {
  const auto text = read_small_file(note_of(path), kMostNoteBytes);
  if (!text.ok()) return std::nullopt;
  json::error_code error;
  const json::value value = json::parse(*text, error);
  const json::object* object = error ? nullptr : value.if_object();
  const auto number = [&](const char* key) -> int64_t {
    const json::value* found = object == nullptr ? nullptr : object->if_contains(key);
    return found != nullptr && found->is_int64() ? found->get_int64() : -1;
  };
  Note note{.piece_bytes = number("piece_bytes"), .done = {}};
  const json::value* done = object == nullptr ? nullptr : object->if_contains("done");
  if (number("size") != size || note.piece_bytes <= 0 || done == nullptr || !done->is_array()) return std::nullopt;
  const json::array& list = done->get_array();
  if (list.size() != pieces_of(size, note.piece_bytes)) return std::nullopt;
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t whole = std::min(note.piece_bytes, size - static_cast<int64_t>(i) * note.piece_bytes);
    if (!list[i].is_int64() || list[i].get_int64() < 0 || list[i].get_int64() > whole) return std::nullopt;
    note.done.push_back(list[i].get_int64());
  }
  return note;
}

}  // namespace

PartialFile::PartialFile(std::filesystem::path path, int fd, int64_t size, int64_t piece_bytes)
    : path_(std::move(path)),
      fd_(fd),
      size_(size),
      piece_bytes_(std::max(piece_bytes, size / static_cast<int64_t>(kMostPieces) + 1)),
      done_(pieces_of(size, piece_bytes_), 0),
      taken_(done_.size(), false) {}

PartialFile::~PartialFile() {
  ::close(fd_);
}

Result<std::unique_ptr<PartialFile>> PartialFile::open(const std::filesystem::path& path, int64_t size,
                                                       int64_t piece_bytes) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return unavailable("{} cannot be written: {}", path.string(), reason(errno));
  std::unique_ptr<PartialFile> file(new PartialFile(path, fd, size, piece_bytes));
  struct stat found {};
  const bool of_this_size = ::fstat(fd, &found) == 0 && found.st_size == size;
  if (of_this_size && file->load()) return file;
  if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, size) != 0) {
    return unavailable("{} cannot be made {} bytes long: {}", path.string(), size, reason(errno));
  }
  file->save();
  return file;
}

// False: there is no note that belongs to the file.
bool PartialFile::load() {
  auto note = read_note(path_, size_);
  if (!note) return false;
  piece_bytes_ = note->piece_bytes;
  done_ = std::move(note->done);
  taken_.assign(done_.size(), false);
  return true;
}

int64_t PartialFile::bytes_there(const std::filesystem::path& path, int64_t size) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || found.st_size != size) return 0;
  const auto note = read_note(path, size);
  return note ? std::accumulate(note->done.begin(), note->done.end(), int64_t{0}) : 0;
}

int64_t PartialFile::end_of(size_t index) const {
  return std::min(size_, (static_cast<int64_t>(index) + 1) * piece_bytes_);
}

std::optional<PartialFile::Piece> PartialFile::take() {
  const std::lock_guard guard(mutex_);
  for (size_t i = 0; i < done_.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * piece_bytes_ + done_[i];
    if (taken_[i] || begin == end_of(i)) continue;
    taken_[i] = true;
    return Piece{.index = i, .begin = begin, .end = end_of(i)};
  }
  return std::nullopt;
}

void PartialFile::give_back(const Piece& piece) {
  const std::lock_guard guard(mutex_);
  taken_[piece.index] = false;
  save_locked();
}

Status PartialFile::append(Piece& piece, const char* data, size_t size) {
  QUIRE_CHECK(piece.begin + static_cast<int64_t>(size) <= piece.end);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd_, data, size, piece.begin);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return resource_exhausted("{} cannot be written: {}", path_.string(), reason(written < 0 ? errno : ENOSPC));
    }
    piece.begin += written;
    data += written;
    size -= static_cast<size_t>(written);
    const std::lock_guard guard(mutex_);
    done_[piece.index] += written;
    if (piece.begin == piece.end || std::chrono::steady_clock::now() - saved_ >= kBetweenSaves) save_locked();
  }
  return {};
}

int64_t PartialFile::done_bytes() const {
  const std::lock_guard guard(mutex_);
  int64_t sum = 0;
  for (const int64_t done : done_) sum += done;
  return sum;
}

size_t PartialFile::num_pieces_left() const {
  const std::lock_guard guard(mutex_);
  size_t left = 0;
  for (size_t i = 0; i < done_.size(); ++i) {
    if (static_cast<int64_t>(i) * piece_bytes_ + done_[i] != end_of(i)) ++left;
  }
  return left;
}

void PartialFile::begin_anew() {
  const std::lock_guard guard(mutex_);
  piece_bytes_ = std::max<int64_t>(size_, 1);
  done_.assign(pieces_of(size_, piece_bytes_), 0);
  taken_.assign(done_.size(), false);
  save_locked();
}

void PartialFile::save() const {
  const std::lock_guard guard(mutex_);
  save_locked();
}

// A note that cannot be written only costs what another process would have gone on with.
void PartialFile::save_locked() const {
  saved_ = std::chrono::steady_clock::now();
  const json::object note{
      {"size", size_}, {"piece_bytes", piece_bytes_}, {"done", json::array(done_.begin(), done_.end())}};
  (void)write_whole_file(note_of(path_), json::serialize(note));
}

Status PartialFile::finish(const std::filesystem::path& name) {
  if (::fdatasync(fd_) != 0 || ::rename(path_.c_str(), name.c_str()) != 0) {
    return unavailable("{} cannot be put in its place: {}", name.string(), reason(errno));
  }
  ::unlink(note_of(path_).c_str());
  return {};
}

void PartialFile::discard() {
  ::unlink(path_.c_str());
  ::unlink(note_of(path_).c_str());
}

}  // namespace quire::hub
