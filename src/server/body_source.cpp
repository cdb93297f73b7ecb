#include "server/body_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace quire::server {

std::string& TextBody::own() {
  if (last_ == nullptr) {
    last_ = std::make_shared<std::string>();
    texts_.push_back(last_);
  }
  return *last_;
}

void TextBody::add(std::string_view text) {
  if (text.empty()) return;
  own() += text;
  size_ += text.size();
}

void TextBody::add(std::string&& text) {
  size_ += text.size();
  if (own().empty()) {
    own() = std::move(text);
  } else {
    own() += text;
  }
}

void TextBody::add(const Text& text) {
  if (text->empty()) return;
  last_.reset();
  texts_.push_back(text);
  size_ += text->size();
}

size_t TextBody::held() const {
  std::set<const std::string*> seen;
  size_t bytes = 0;
  for (const Text& text : texts_) {
    if (text != nullptr && seen.insert(text.get()).second) bytes += text->capacity();
  }
  return bytes;
}

Result<std::string_view> TextBody::next() {
  if (next_ > 0) texts_[next_ - 1].reset();  // what its client has is not held any longer
  while (next_ < texts_.size()) {
    const std::string& text = *texts_[next_++];
    if (!text.empty()) return std::string_view(text);
  }
  return std::string_view();
}

std::string TextBody::text() const {
  std::string out;
  out.reserve(size_);
  for (const Text& text : texts_) {
    if (text != nullptr) out += *text;
  }
  return out;
}

namespace {

constexpr size_t kFilePiece = 64 << 10;

}  // namespace

FileBody::FileBody(int fd, size_t size) : fd_(fd), size_(size), left_(size) {
  piece_.resize(std::min(size, kFilePiece));
}

FileBody::~FileBody() {
  ::close(fd_);
}

Result<std::shared_ptr<BodySource>> FileBody::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat found {};
  if (fd < 0 || ::fstat(fd, &found) != 0) {
    if (fd >= 0) ::close(fd);
    return not_found("The file is gone.");
  }
  return std::shared_ptr<BodySource>(new FileBody(fd, static_cast<size_t>(found.st_size)));
}

Result<std::string_view> FileBody::next() {
  while (left_ > 0) {
    const ssize_t got = ::read(fd_, piece_.data(), std::min(piece_.size(), left_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return unavailable("A file ended while it was being sent.");
    left_ -= static_cast<size_t>(got);
    return std::string_view(piece_).substr(0, static_cast<size_t>(got));
  }
  return std::string_view();
}

}  // namespace quire::server
