// The chunked transfer coding of RFC 9112, section 7.1, one buffer at a time. Extensions and trailers are skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::server {

class ChunkedDecoder {
 public:
  // A body may have at most `max_body_bytes`.
  explicit ChunkedDecoder(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  // Appends what `data` holds of the body and returns how many bytes of it were used: fewer than given only when
  // done(). Errors: invalid_argument (malformed; a line or the trailers are too long), resource_exhausted (more than
  // max_body_bytes). After an error the decoder must not be used.
  Result<size_t> decode(std::string_view data, std::string& body);
  bool done() const { return phase_ == Phase::kDone; }

 private:
  enum class Phase {
    kSize,
    kExtension,
    kSizeLineFeed,
    kData,
    kDataReturn,
    kDataLineFeed,
    kTrailer,
    kTrailerLineFeed,
    kDone
  };

  Status step(char byte);

  Phase phase_ = Phase::kSize;
  size_t max_body_bytes_;
  uint64_t chunk_left_ = 0;  // bytes of this chunk's data still to come
  size_t size_digits_ = 0;
  size_t line_bytes_ = 0;  // of the size line, or of all trailers
  bool trailer_line_empty_ = true;
};

}  // namespace quire::server
