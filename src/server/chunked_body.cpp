#include "server/chunked_body.h"

#include <algorithm>

#include "base/hex.h"

namespace quire::server {
namespace {

constexpr size_t kMaxSizeLine = 256;   // digits and extensions
constexpr size_t kMaxTrailers = 8192;  // all of them
constexpr size_t kMaxSizeDigits = 15;  // never overflows 64 bits

}  // namespace

Result<size_t> ChunkedDecoder::decode(std::string_view data, std::string& body) {
  size_t used = 0;
  while (used < data.size() && !done()) {
    if (phase_ == Phase::kData) {
      const size_t take = static_cast<size_t>(std::min<uint64_t>(chunk_left_, data.size() - used));
      body.append(data.substr(used, take));
      used += take;
      chunk_left_ -= take;
      if (chunk_left_ == 0) phase_ = Phase::kDataReturn;
      continue;
    }
    QUIRE_RETURN_IF_ERROR(step(data[used]));
    ++used;
    if (phase_ == Phase::kData && chunk_left_ > max_body_bytes_ - std::min(max_body_bytes_, body.size())) {
      return resource_exhausted("The request's body is larger than the {} bytes this server takes.", max_body_bytes_);
    }
  }
  return used;
}

Status ChunkedDecoder::step(char byte) {
  switch (phase_) {
    case Phase::kSize:
    case Phase::kExtension: {
      if (++line_bytes_ > kMaxSizeLine) return invalid_argument("The size line of a chunk of the body is too long.");
      if (const int digit = hex_digit(byte); phase_ == Phase::kSize && digit >= 0) {
        if (++size_digits_ > kMaxSizeDigits) return invalid_argument("The size of a chunk of the body is too large.");
        chunk_left_ = chunk_left_ * 16 + static_cast<uint64_t>(digit);
        return {};
      }
      if (size_digits_ == 0) break;
      if (byte == '\r') {
        phase_ = Phase::kSizeLineFeed;
        return {};
      }
      if (phase_ == Phase::kSize && byte != ';' && byte != ' ' && byte != '\t') break;
      if (byte == '\n' || byte == '\0') break;
      phase_ = Phase::kExtension;
      return {};
    }
    case Phase::kSizeLineFeed:
      if (byte != '\n') break;
      phase_ = chunk_left_ > 0 ? Phase::kData : Phase::kTrailer;
      size_digits_ = 0;
      line_bytes_ = 0;
      return {};
    case Phase::kDataReturn:
      if (byte != '\r') break;
      phase_ = Phase::kDataLineFeed;
      return {};
    case Phase::kDataLineFeed:
      if (byte != '\n') break;
      phase_ = Phase::kSize;
      return {};
    case Phase::kTrailer:
      if (++line_bytes_ > kMaxTrailers) return invalid_argument("The trailers after the body are too long.");
      if (byte == '\n' || byte == '\0') break;
      if (byte == '\r') {
        phase_ = Phase::kTrailerLineFeed;
      } else {
        trailer_line_empty_ = false;
      }
      return {};
    case Phase::kTrailerLineFeed:
      if (byte != '\n') break;
      phase_ = trailer_line_empty_ ? Phase::kDone : Phase::kTrailer;
      trailer_line_empty_ = true;
      return {};
    case Phase::kData:
    case Phase::kDone:
      break;
  }
  return invalid_argument("The body's chunked transfer coding is malformed.");
}

}  // namespace quire::server
