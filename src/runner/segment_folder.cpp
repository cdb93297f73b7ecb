#include "runner/segment_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/hashing.h"
#include "base/log.h"

namespace quire::runner {
namespace {

constexpr int64_t kSegmentHeaderBytes = 4096;
constexpr int64_t kRecordAlignment = 512;
constexpr uint64_t kSegmentLetters = 0x31564B4552495551;  // "QUIREKV1"
constexpr uint64_t kRecordLetters = 0x31434552564B5551;   // "QUKVREC1"
constexpr size_t kMostSegments = 512;                     // each is an open file
constexpr int64_t kTouchEvery = 60;                       // seconds

struct SegmentHeader {
  uint64_t letters = kSegmentLetters;
  int64_t record_bytes = 0;
  int64_t block_bytes = 0;
  uint64_t number = 0;
  char fingerprint[64] = {};
  uint64_t checksum = 0;  // of what stands before
};

constexpr int64_t rounded_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

int64_t wall_seconds() {
  return static_cast<int64_t>(std::time(nullptr));
}

uint64_t checksum_of(const SegmentHeader& header) {
  return hash_bytes(&header, offsetof(SegmentHeader, checksum), kSegmentLetters);
}

// Over all parts, one after the other. seed: what the bytes are of, so that another block's are not taken for them.
uint64_t checksum_of(std::span<const iovec> parts, uint64_t seed) {
  for (const iovec& part : parts) seed = hash_bytes(part.iov_base, part.iov_len, seed);
  return seed;
}

// Of a record's checksums: a record that is moved does not fit its place.
uint64_t seed_of(uint64_t segment, int64_t offset) {
  return segment * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(offset);
}

bool read_all(int descriptor, void* data, size_t bytes, int64_t offset) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor, at, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    offset += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

// Whoever else could write to it could put any keys and values there.
bool is_ours(const struct stat& info) {
  return info.st_uid == ::geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

// As it lies in the file, before the tokens and the salt.
struct SegmentFolder::Record {
  uint64_t letters = kRecordLetters;
  Uid node;
  Uid parent;  // session 0: there is none
  int32_t group = 0;
  uint32_t num_tokens = 0;
  uint32_t salt_bytes = 0;
  uint32_t is_long = 0;
  uint64_t data_checksum = 0;
  uint64_t checksum = 0;  // of the header with 0 here
};

struct SegmentFolder::Found {
  Uid node;
  Uid parent;
  StoredText text;
  Place place;
};

SegmentFolder::SegmentFolder(const Config& config)
    : config_(config),
      header_bytes_(rounded_up(static_cast<int64_t>(sizeof(Record)) +
                                   config.block_size * static_cast<int64_t>(sizeof(TokenId)) +
                                   static_cast<int64_t>(kLongestStoredSalt),
                               64)),
      record_bytes_(rounded_up(header_bytes_ + config.block_bytes, kRecordAlignment)) {
  QUIRE_CHECK(config.fingerprint.size() < sizeof(SegmentHeader::fingerprint) && config.block_bytes > 0);
  std::random_device random;
  while (session_ == 0) session_ = (uint64_t{random()} << 32) | random();
}

SegmentFolder::~SegmentFolder() {
  for (auto& [number, segment] : segments_) ::close(segment.descriptor);
  if (lock_ >= 0) ::close(lock_);
  if (folder_ >= 0) ::close(folder_);
}

Result<std::unique_ptr<SegmentFolder>> SegmentFolder::open(const Config& config) {
  auto folder = std::unique_ptr<SegmentFolder>(new SegmentFolder(config));
  QUIRE_RETURN_IF_ERROR(folder->lock());
  QUIRE_RETURN_IF_ERROR(folder->scan());
  return folder;
}

Status SegmentFolder::lock() {
  const std::string path = config_.folder + "/" + config_.fingerprint;
  for (const std::string& one : {config_.folder, path}) {
    if (::mkdir(one.c_str(), 0700) == 0 || errno == EEXIST) continue;
    return invalid_argument("kv_offload_dir: cannot make \"{}\": {}", one, std::strerror(errno));
  }
  folder_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) return invalid_argument("kv_offload_dir: cannot open \"{}\": {}", path, std::strerror(errno));
  struct stat info = {};
  if (::fstat(folder_, &info) != 0 || !is_ours(info)) {
    return invalid_argument(
        "kv_offload_dir: others can write to \"{}\", who could put any keys and values there: make it this user's own "
        "(chmod 700)",
        path);
  }
  lock_ = ::openat(folder_, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return invalid_argument("kv_offload_dir: cannot open \"{}/lock\": {}", path, std::strerror(errno));
  writes_ = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
  return {};
}

std::string SegmentFolder::name_of(uint64_t number) const {
  return fmt::format("segment-{:016x}.kv", number);
}

Status SegmentFolder::scan() {
  std::vector<std::pair<uint64_t, std::string>> names;
  std::error_code error;
  const std::string path = config_.folder + "/" + config_.fingerprint;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    uint64_t number = 0;
    constexpr std::string_view kPrefix = "segment-";
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number, 16);
    if (number != 0 && name == name_of(number)) names.emplace_back(number, name);
  }
  if (error) return invalid_argument("kv_offload_dir: cannot read \"{}\": {}", path, error.message());
  std::ranges::sort(names);
  std::vector<Found> found;
  for (const auto& [number, name] : names) {
    if (scan_segment(number, name, found)) continue;
    log_warning("kv offload: {} is not what this model writes, or damaged: {}", name,
                writes_ ? "deleted" : "left alone");
    if (writes_) ::unlinkat(folder_, name.c_str(), 0);
  }
  if (writes_) {
    drop_old();
    if (!segments_.empty()) current_ = segments_.rbegin()->first;
    make_room(0);
    std::erase_if(found, [this](const Found& one) { return !segments_.contains(one.place.segment); });
  }
  link(std::move(found));
  return {};
}

bool SegmentFolder::scan_segment(uint64_t number, const std::string& name, std::vector<Found>& found) {
  Segment segment;
  const int mode = writes_ ? O_RDWR : O_RDONLY;
  segment.descriptor = ::openat(folder_, name.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (segment.descriptor < 0) return false;
  struct stat info = {};
  SegmentHeader header;
  const bool usable = ::fstat(segment.descriptor, &info) == 0 && S_ISREG(info.st_mode) && is_ours(info) &&
                      read_all(segment.descriptor, &header, sizeof(header), 0) && header.letters == kSegmentLetters &&
                      header.checksum == checksum_of(header) && header.number == number &&
                      header.record_bytes == record_bytes_ && header.block_bytes == config_.block_bytes &&
                      std::strncmp(header.fingerprint, config_.fingerprint.c_str(), sizeof(header.fingerprint)) == 0;
  if (!usable) {
    ::close(segment.descriptor);
    return false;
  }
  const int64_t num_records = (info.st_size - kSegmentHeaderBytes) / record_bytes_;
  segment.bytes = kSegmentHeaderBytes + std::max<int64_t>(num_records, 0) * record_bytes_;
  segment.last_used = info.st_mtime;
  std::string buffer(static_cast<size_t>(header_bytes_), '\0');
  for (int64_t offset = kSegmentHeaderBytes; offset < segment.bytes; offset += record_bytes_) {
    Found record;
    if (read_record(segment, number, offset, buffer, record)) found.push_back(std::move(record));
  }
  bytes_ += segment.bytes;
  segments_.emplace(number, std::move(segment));
  return true;
}

bool SegmentFolder::read_record(const Segment& segment, uint64_t number, int64_t offset, std::string& buffer,
                                Found& found) const {
  if (!read_all(segment.descriptor, buffer.data(), buffer.size(), offset)) return false;
  Record record;
  std::memcpy(&record, buffer.data(), sizeof(record));
  if (record.letters != kRecordLetters) return false;
  std::memset(buffer.data() + offsetof(Record, checksum), 0, sizeof(record.checksum));
  if (record.checksum != hash_bytes(buffer.data(), buffer.size(), seed_of(number, offset))) return false;
  if (record.num_tokens != static_cast<uint32_t>(config_.block_size) || record.salt_bytes > kLongestStoredSalt ||
      record.group < 0 || record.group >= config_.num_groups) {
    return false;
  }
  found.node = record.node;
  found.parent = record.parent;
  found.text.group = record.group;
  found.text.is_long = record.is_long != 0;
  found.text.tokens.resize(record.num_tokens);
  const char* tokens = buffer.data() + sizeof(record);
  std::memcpy(found.text.tokens.data(), tokens, record.num_tokens * sizeof(TokenId));
  found.text.salt.assign(tokens + record.num_tokens * sizeof(TokenId), record.salt_bytes);
  found.place = {.segment = number, .offset = offset, .checksum = record.data_checksum};
  return true;
}

// Texts are numbered from the beginnings on. What goes on from a text that is not there any more cannot be found, and
// is left to go with its segment.
void SegmentFolder::link(std::vector<Found> found) {
  std::map<Uid, std::vector<size_t>> of_node;
  std::map<Uid, std::vector<Uid>> children;
  for (size_t i = 0; i < found.size(); ++i) {
    std::vector<size_t>& records = of_node[found[i].node];
    if (!records.empty()) {
      const Found& first = found[records.front()];
      const bool same = first.parent == found[i].parent && first.text.tokens == found[i].text.tokens &&
                        first.text.salt == found[i].text.salt && first.text.is_long == found[i].text.is_long;
      if (!same) continue;
    } else {
      children[found[i].parent].push_back(found[i].node);
    }
    records.push_back(i);
  }
  uids_.assign(1, {});
  std::map<Uid, uint64_t> numbers;
  std::vector<Uid> open = children[Uid()];
  StoredBlockId last_id = 0;
  for (size_t next = 0; next < open.size(); ++next) {
    const Uid uid = open[next];
    const Found& first = found[of_node[uid].front()];
    uint64_t parent = 0;
    if (first.parent != Uid()) {
      parent = numbers.at(first.parent);
      const Found& above = found[of_node[first.parent].front()];
      if (above.text.salt != first.text.salt || above.text.is_long != first.text.is_long) continue;
    }
    const auto number = static_cast<uint64_t>(uids_.size());
    if (!numbers.emplace(uid, number).second) continue;
    uids_.push_back(uid);
    for (const size_t i : of_node[uid]) {
      StoredBlock block{.id = ++last_id, .text = std::move(found[i].text)};
      block.text.node = number;
      block.text.parent = parent;
      places_.emplace(block.id, found[i].place);
      segments_.at(found[i].place.segment).blocks.push_back(block.id);
      found[i].text = {.salt = block.text.salt, .is_long = block.text.is_long};  // its children are compared with it
      found_.push_back(std::move(block));
    }
    const std::vector<Uid>& below = children[uid];
    open.insert(open.end(), below.begin(), below.end());
  }
}

SegmentFolder::Uid SegmentFolder::uid_of(uint64_t node) const {
  if (node == 0) return {};
  return node < uids_.size() ? uids_[node] : Uid{session_, node};
}

// ---- writing ----

bool SegmentFolder::begin_segment() {
  const uint64_t number = segments_.empty() ? 1 : segments_.rbegin()->first + 1;
  Segment segment;
  segment.descriptor =
      ::openat(folder_, name_of(number).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (segment.descriptor < 0) return false;
  SegmentHeader header{.record_bytes = record_bytes_, .block_bytes = config_.block_bytes, .number = number};
  std::memcpy(header.fingerprint, config_.fingerprint.data(), config_.fingerprint.size());
  header.checksum = checksum_of(header);
  std::string page(static_cast<size_t>(kSegmentHeaderBytes), '\0');
  std::memcpy(page.data(), &header, sizeof(header));
  const iovec part{page.data(), page.size()};
  if (!move_all(segment.descriptor, std::span(&part, 1), 0, ::pwritev)) {
    ::close(segment.descriptor);
    ::unlinkat(folder_, name_of(number).c_str(), 0);
    return false;
  }
  segment.bytes = kSegmentHeaderBytes;
  segment.last_used = wall_seconds();
  bytes_ += segment.bytes;
  segments_.emplace(number, std::move(segment));
  current_ = number;
  return true;
}

// Of all that is not being written to.
bool SegmentFolder::drop_least_used() {
  auto least = segments_.end();
  for (auto one = segments_.begin(); one != segments_.end(); ++one) {
    if (one->first == current_) continue;
    if (least == segments_.end() || one->second.last_used < least->second.last_used) least = one;
  }
  if (least == segments_.end()) return false;
  drop(least, /*tell=*/true);
  return true;
}

bool SegmentFolder::make_room(int64_t bytes) {
  while (bytes_ + bytes > config_.most_bytes || segments_.size() > kMostSegments) {
    if (!drop_least_used()) return bytes_ + bytes <= config_.most_bytes;
  }
  return true;
}

void SegmentFolder::drop(std::map<uint64_t, Segment>::iterator segment, bool tell) {
  for (const StoredBlockId id : segment->second.blocks) {
    if (places_.erase(id) > 0 && tell) dropped_.push_back(id);
  }
  bytes_ -= segment->second.bytes;
  ::close(segment->second.descriptor);
  ::unlinkat(folder_, name_of(segment->first).c_str(), 0);
  if (current_ == segment->first) current_ = 0;
  segments_.erase(segment);
}

void SegmentFolder::drop_old() {
  if (!writes_ || config_.most_age_seconds == 0) return;
  const int64_t oldest = wall_seconds() - config_.most_age_seconds;
  for (auto one = segments_.begin(); one != segments_.end();) {
    const auto next = std::next(one);
    if (one->second.last_used < oldest) drop(one, /*tell=*/true);
    one = next;
  }
}

void SegmentFolder::clear() {
  while (!segments_.empty()) drop(segments_.begin(), /*tell=*/false);
}

bool SegmentFolder::append(const std::string& header, std::span<const iovec> parts) {
  Segment& segment = segments_.at(current_);
  const iovec head{const_cast<char*>(header.data()), header.size()};
  if (move_all(segment.descriptor, parts, segment.bytes + header_bytes_, ::pwritev) &&
      move_all(segment.descriptor, std::span(&head, 1), segment.bytes, ::pwritev)) {
    // The last record ends where the next begins, so that its size tells of it.
    if (::ftruncate(segment.descriptor, segment.bytes + record_bytes_) == 0) return true;
  }
  const int error = errno;
  if (::ftruncate(segment.descriptor, segment.bytes) != 0) {
    log_warning("kv offload: cannot cut {}: {}", name_of(current_), std::strerror(errno));
  }
  errno = error;
  return false;
}

bool SegmentFolder::write(const StoredBlock& block, std::span<const iovec> parts) {
  QUIRE_CHECK(writes_);
  if (block.text.tokens.size() != static_cast<size_t>(config_.block_size) ||
      block.text.salt.size() > kLongestStoredSalt) {
    return false;
  }
  const int64_t most = std::min(config_.segment_bytes, config_.most_bytes / 4);
  if (current_ != 0 && segments_.at(current_).bytes + record_bytes_ > most) current_ = 0;
  if (!make_room(record_bytes_ + (current_ == 0 ? kSegmentHeaderBytes : 0))) return false;
  while (current_ == 0 && !begin_segment()) {
    if (errno != ENOSPC || !drop_least_used()) return false;
  }
  Segment& segment = segments_.at(current_);

  Record record{.node = uid_of(block.text.node),
                .parent = uid_of(block.text.parent),
                .group = block.text.group,
                .num_tokens = static_cast<uint32_t>(block.text.tokens.size()),
                .salt_bytes = static_cast<uint32_t>(block.text.salt.size()),
                .is_long = block.text.is_long ? 1u : 0u};
  const uint64_t seed = seed_of(current_, segment.bytes);
  record.data_checksum = checksum_of(parts, seed);
  std::string header(static_cast<size_t>(header_bytes_), '\0');
  const auto write_header = [&] { std::memcpy(header.data(), &record, sizeof(record)); };
  write_header();
  char* tokens = header.data() + sizeof(record);
  std::memcpy(tokens, block.text.tokens.data(), block.text.tokens.size() * sizeof(TokenId));
  std::memcpy(tokens + block.text.tokens.size() * sizeof(TokenId), block.text.salt.data(), block.text.salt.size());
  record.checksum = hash_bytes(header.data(), header.size(), seed);
  write_header();

  while (!append(header, parts)) {
    if (errno != ENOSPC || !drop_least_used()) return false;
  }
  places_[block.id] = {.segment = current_, .offset = segment.bytes, .checksum = record.data_checksum};
  segment.blocks.push_back(block.id);
  segment.bytes += record_bytes_;
  segment.last_used = wall_seconds();
  bytes_ += record_bytes_;
  return true;
}

// ---- reading ----

void SegmentFolder::touch(Segment& segment) {
  const int64_t time = wall_seconds();
  if (time - segment.last_used < kTouchEvery) return;
  segment.last_used = time;
  if (writes_) ::futimens(segment.descriptor, nullptr);  // where it fails, the segment goes sooner
}

std::vector<bool> SegmentFolder::read(std::span<const Wanted> wanted) {
  std::vector<bool> good(wanted.size(), false);
  std::vector<ReadQueue::Read> reads;
  std::vector<size_t> of_read;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto found = places_.find(wanted[i].id);
    if (found == places_.end()) continue;
    const Place& place = found->second;
    reads.push_back({segments_.at(place.segment).descriptor, place.offset + header_bytes_, wanted[i].parts});
    of_read.push_back(i);
  }
  queue_.read(reads, [&](size_t index, bool was_read) {
    const Wanted& block = wanted[of_read[index]];
    const auto found = places_.find(block.id);
    if (found == places_.end()) return;  // asked for twice, and not what was written
    const Place place = found->second;
    if (was_read && checksum_of(block.parts, seed_of(place.segment, place.offset)) == place.checksum) {
      touch(segments_.at(place.segment));
      good[of_read[index]] = true;
    } else {
      places_.erase(found);
    }
  });
  return good;
}

}  // namespace quire::runner
