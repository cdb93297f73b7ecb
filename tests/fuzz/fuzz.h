// What the fuzz targets share. A target is a file NAME_fuzz.cpp with one function LLVMFuzzerTestOneInput; what must
// hold is a QUIRE_CHECK, which ends the process. With clang and -DQUIRE_FUZZ=ON it is a libFuzzer program, else a test
// that gives it the files of corpus/NAME (replay.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/status.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace quire::fuzz {

// Ends the process where an input took more processor time than it may: a clock on the wall would blame the input for
// what else runs on the machine. One second; ten where the build is slow.
class CpuLimit {
 public:
  CpuLimit();
  ~CpuLimit();
  CpuLimit(const CpuLimit&) = delete;
  CpuLimit& operator=(const CpuLimit&) = delete;

 private:
  double started_;
};

// In a campaign (clang's libFuzzer), ends the process where an input took more of a processor than work in proportion
// to its size would: so that what is quadratic shows where a clock would not yet. In the replay it does nothing.
class TimePerByte {
 public:
  explicit TimePerByte(size_t bytes);
  ~TimePerByte();
  TimePerByte(const TimePerByte&) = delete;
  TimePerByte& operator=(const TimePerByte&) = delete;

 private:
  double most_;
  double started_;
};

// The JSON with one of its values, which `where` chooses, repeated until the text has about 2^(10 + size / 5) bytes, 4
// MiB at most: a text, an array's items, an object's members under new names. What is none, and with a size of 0, stays
// as it is.
std::string grown(std::string_view json, uint8_t where, uint8_t size);

// Takes what steers a target off the front of an input; 0 and "" when there is nothing left.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}
  uint8_t byte();
  // Up to the separator, which is dropped, or to the end.
  std::string_view until(std::string_view separator);
  std::string_view rest() { return std::exchange(left_, {}); }

 private:
  std::string_view left_;
};

// The input in memory of exactly its size, where a sanitizer sees every read past the end, aligned as mapped files are.
class AlignedCopy {
 public:
  explicit AlignedCopy(std::string_view content);
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

// An error is one, says something, and in characters that may go into JSON and to a terminal.
void check_error(const Status& status);

// Reads all of it, so that a sanitizer sees what is not there.
void touch(const void* data, int64_t size);

// What holds of every tokenizer, whatever file it is from.
void check_tokenizer(const text::Tokenizer& tokenizer);
// And for one text.
void check_tokenizer(const text::Tokenizer& tokenizer, std::string_view text, size_t step);

}  // namespace quire::fuzz
