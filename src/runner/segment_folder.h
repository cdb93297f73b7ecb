// Blocks of keys and values in files, so that they outlive the process (docs/offload.md). A folder for each fingerprint
// holds segments, which only grow; a segment is a header and records of one size; a record is a header, with the text
// that the block is of, and the block's bytes. Header and bytes have checksums of their own: what a crash, a full disk
// or a flipped bit has left of a record is not used, and nothing else is lost with it.
//
//   FOLDER/<fingerprint>/lock                the one who writes holds it
//                        segment-<number>.kv
//
// Several processes may read a folder, one writes. Readers know what was there when they opened it; a segment that the
// writer deletes stays readable to who has it open. Everything is readable by its owner alone, and what others could
// write to is not read.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "runner/read_queue.h"
#include "types/kv_offload.h"

namespace quire::runner {

// Not for several threads at once.
class SegmentFolder {
 public:
  struct Config {
    std::string folder;
    std::string fingerprint;  // of all that keys and values depend on; plain letters and digits
    int64_t block_bytes = 0;  // what a record holds
    int32_t block_size = 0;   // tokens
    int32_t num_groups = 1;
    int64_t most_bytes = 0;        // of all segments together
    int64_t most_age_seconds = 0;  // a segment that nobody used for so long goes; 0: it stays
    int64_t segment_bytes = 64 << 20;
  };

  // Makes the folder if need be and reads all headers. Errors: invalid_argument, when the folder cannot be used.
  static Result<std::unique_ptr<SegmentFolder>> open(const Config& config);
  ~SegmentFolder();
  SegmentFolder(const SegmentFolder&) = delete;
  SegmentFolder& operator=(const SegmentFolder&) = delete;

  bool writes() const { return writes_; }  // this process has the lock
  bool reads_several_at_once() const { return queue_.is_deep(); }
  // What was there at open(), a text behind the one that it goes on from. Once.
  std::vector<StoredBlock> take_found() { return std::exchange(found_, {}); }

  // parts: block_bytes together. False: there is no room, or the file system fails. REQUIRES: writes().
  bool write(const StoredBlock& block, std::span<const iovec> parts);
  struct Wanted {
    StoredBlockId id = 0;
    std::vector<iovec> parts;  // block_bytes together
  };
  // Of each whether it was read. If not, its parts hold anything: the block is gone or not what was written, and then
  // it is forgotten. Several are read at once where the kernel lets us (read_queue.h).
  std::vector<bool> read(std::span<const Wanted> wanted);

  // Deletes every segment. REQUIRES: writes().
  void clear();
  // Deletes segments that nobody used for too long.
  void drop_old();
  // Of blocks that went with their segments since the last call; clear() does not count.
  std::vector<StoredBlockId> take_dropped() { return std::exchange(dropped_, {}); }

  int64_t num_blocks() const { return static_cast<int64_t>(places_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Uid {  // of a text, for ever: the session that gave it, and its number there
    uint64_t session = 0;
    uint64_t node = 0;
    auto operator<=>(const Uid&) const = default;
  };
  struct Segment {
    int descriptor = -1;
    int64_t bytes = 0;
    int64_t last_used = 0;  // seconds of the wall clock
    std::vector<StoredBlockId> blocks;
  };
  struct Place {
    uint64_t segment = 0;
    int64_t offset = 0;
    uint64_t checksum = 0;  // of the bytes
  };
  struct Found;
  struct Record;

  explicit SegmentFolder(const Config& config);
  Status lock();
  Status scan();
  bool scan_segment(uint64_t number, const std::string& name, std::vector<Found>& found);
  bool read_record(const Segment& segment, uint64_t number, int64_t offset, std::string& buffer, Found& record) const;
  void link(std::vector<Found> found);
  Uid uid_of(uint64_t node) const;
  bool begin_segment();
  bool make_room(int64_t bytes);
  bool drop_least_used();
  void drop(std::map<uint64_t, Segment>::iterator segment, bool tell);
  void touch(Segment& segment);
  bool append(const std::string& header, std::span<const iovec> parts);
  std::string name_of(uint64_t number) const;

  const Config config_;
  const int64_t header_bytes_;
  const int64_t record_bytes_;
  int folder_ = -1;  // descriptors
  int lock_ = -1;
  ReadQueue queue_;
  bool writes_ = false;
  uint64_t session_ = 0;
  std::map<uint64_t, Segment> segments_;  // by number
  uint64_t current_ = 0;                  // segment that is written to; 0: none
  int64_t bytes_ = 0;
  std::unordered_map<StoredBlockId, Place> places_;
  std::vector<Uid> uids_;  // of the texts found at open(), by number
  std::vector<StoredBlock> found_;
  std::vector<StoredBlockId> dropped_;
};

}  // namespace quire::runner
