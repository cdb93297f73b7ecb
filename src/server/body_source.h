// Bodies of answers that are made or read while their client takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::server {

// Used by one thread at a time.
class BodySource {
 public:
  virtual ~BodySource() = default;

  virtual size_t size() const = 0;  // of all of it, in bytes
  virtual size_t held() const = 0;  // bytes of memory that it takes
  // The next piece, which may be looked at until the next call; empty at the end. Errors: unavailable (the file).
  virtual Result<std::string_view> next() = 0;
};

// Texts in a row. One of them may be there several times, and is held once.
class TextBody final : public BodySource {
 public:
  using Text = std::shared_ptr<const std::string>;

  TextBody() = default;
  explicit TextBody(std::string text) { add(std::move(text)); }

  void add(std::string_view text);  // beside the one before it, where that is its own
  void add(const char* text) { add(std::string_view(text)); }
  void add(std::string&& text);
  void add(const Text& text);  // shared

  size_t size() const override { return size_; }
  size_t held() const override;
  Result<std::string_view> next() override;
  std::string text() const;  // all of it
  size_t num_texts() const { return texts_.size(); }

 private:
  std::string& own();

  std::vector<Text> texts_;
  std::shared_ptr<std::string> last_;  // texts_.back(), while it may grow
  size_t size_ = 0;
  size_t next_ = 0;
};

// A file from its beginning, read a piece at a time.
class FileBody final : public BodySource {
 public:
  // Errors: not_found.
  static Result<std::shared_ptr<BodySource>> open(const std::string& path);
  ~FileBody() override;
  FileBody(const FileBody&) = delete;
  FileBody& operator=(const FileBody&) = delete;

  size_t size() const override { return size_; }
  size_t held() const override { return piece_.size(); }
  Result<std::string_view> next() override;

 private:
  FileBody(int fd, size_t size);

  const int fd_;
  const size_t size_;
  size_t left_;
  std::string piece_;
};

}  // namespace quire::server
