// How messages between processes are written and read: see plan_codec.h for the form. What is written of a struct is a
// function template fields(), found by the struct's type in this namespace; both directions run the same one.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "runner/plan_codec.h"
#include "types/dry_breakers.h"
#include "types/token_set.h"

namespace quire::runner::wire {

static_assert(std::endian::native == std::endian::little, "the messages are little-endian");

inline constexpr char kLetters[] = {'Q', 'U', 'I', 'R'};
enum class Kind : uint16_t {
  kPlan = 1,
  kStep = 2,
  kQuestion = 3,
  kAnswer = 4,
  kOrders = 5,
  kReports = 6,
  kWorkerOrder = 7,
  kWorkerReport = 8,
  kWorkerHello = 9,
  kAdapterOrder = 10,
  kAdapterReport = 11,
};

template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// The last of an enum's values, which begin with 0.
template <typename T>
inline constexpr T kLast = T();
template <>
inline constexpr StatusCode kLast<StatusCode> = StatusCode::kInternal;

class Writer {
 public:
  template <typename T>
  using Of = const T&;

  explicit Writer(Kind kind) {
    out_.append(kLetters, sizeof(kLetters));
    write(kPlanCodecVersion);
    write(static_cast<uint16_t>(kind));
  }
  std::string take() { return std::move(out_); }

  template <typename... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }

  void count(size_t size) {
    QUIRE_CHECK(size <= UINT32_MAX);
    write(static_cast<uint32_t>(size));
  }

 private:
  template <Number T>
  void write(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void write(bool value) { out_.push_back(value ? 1 : 0); }
  template <typename T>
  requires std::is_enum_v<T>
  void write(T value) { out_.push_back(static_cast<char>(value)); }
  void write(const std::string& text) {
    count(text.size());
    out_.append(text);
  }
  void write(const TokenSet& set) {
    count(set.size());
    out_.append(reinterpret_cast<const char*>(set.ids().data()), set.size() * sizeof(TokenId));
  }
  template <typename T>
  void write(const std::vector<T>& list) {
    count(list.size());
    if constexpr (Number<T>) {
      out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    } else {
      for (const T& one : list) write(one);
    }
  }
  template <typename T>
  void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <typename A, typename B>
  void write(const std::pair<A, B>& pair) {
    write(pair.first);
    write(pair.second);
  }
  void write(const std::shared_ptr<const DryBreakers>& breakers) {
    write(breakers != nullptr);
    if (breakers == nullptr) return;
    write(breakers->words());
    write(breakers->longer());
  }
  void write(const Status& status) {
    write(status.code());
    if (status.ok()) return;
    write(status.message());
    write(status.param());
  }
  template <typename T>
  requires(std::is_class_v<T>) void write(const T& value) { fields(*this, value); }

  std::string out_;
};

// After the first thing that cannot be read everything reads as nothing.
class Reader {
 public:
  template <typename T>
  using Of = T&;

  Reader(std::string_view message, Kind kind) : left_(message), size_(message.size()) {
    char letters[sizeof(kLetters)] = {};
    for (char& letter : letters) read(letter);
    if (ok() && !std::ranges::equal(letters, kLetters)) fail("does not begin as a message does");
    uint16_t version = 0;
    uint16_t found = 0;
    (*this)(version, found);
    if (ok() && version != kPlanCodecVersion) {
      error_ = invalid_argument(
          "a message of version {} came to a quire that speaks version {}: run the same program on both sides", version,
          kPlanCodecVersion);
    } else if (ok() && found != static_cast<uint16_t>(kind)) {
      error_ = data_loss("a message of kind {} came where kind {} was expected", found, static_cast<int>(kind));
    }
  }

  bool ok() const { return error_.ok(); }
  void fail(std::string_view what) {
    if (ok()) error_ = data_loss("a message of {} bytes {} at byte {}", size_, what, size_ - left_.size());
    left_ = {};
  }
  // When all is read.
  Status finish() {
    if (!left_.empty()) fail("goes on behind its end");
    return error_;
  }

  template <typename... T>
  void operator()(T&... values) {
    (read(values), ...);
  }

  // Of things that take at least `least` bytes each.
  size_t count(size_t least) {
    uint32_t size = 0;
    read(size);
    if (size > left_.size() / least) {
      fail("has a list that is longer than itself");
      return 0;
    }
    return size;
  }

 private:
  template <Number T>
  void read(T& value) {
    if (left_.size() < sizeof(T)) return fail("ends too early");
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
  }
  void read(bool& value) {
    uint8_t byte = 0;
    read(byte);
    if (byte > 1) fail("has a flag that is neither 0 nor 1");
    value = byte == 1;
  }
  template <typename T>
  requires std::is_enum_v<T>
  void read(T& value) {
    uint8_t byte = 0;
    read(byte);
    if (byte > static_cast<uint8_t>(kLast<T>)) return fail("has a choice that does not exist");
    value = static_cast<T>(byte);
  }
  void read(std::string& text) {
    const size_t size = count(1);
    text.assign(left_.substr(0, size));
    left_.remove_prefix(size);
  }
  void read(TokenSet& set) {
    std::vector<TokenId> ids;
    read(ids);
    set = TokenSet(std::move(ids));
  }
  template <typename T>
  void read(std::vector<T>& list) {
    if constexpr (Number<T>) {
      list.resize(count(sizeof(T)));
      if (list.empty()) return;
      std::memcpy(list.data(), left_.data(), list.size() * sizeof(T));
      left_.remove_prefix(list.size() * sizeof(T));
    } else {
      const size_t size = count(1);
      list.clear();
      // As many as could be there; what is larger in memory than here grows with what is read.
      list.reserve(std::min(size, left_.size() / sizeof(T) + 1));
      for (size_t i = 0; i < size && ok(); ++i) read(list.emplace_back());
    }
  }
  template <typename T>
  void read(std::optional<T>& value) {
    bool has = false;
    read(has);
    value.reset();
    if (has) read(value.emplace());
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& pair) {
    read(pair.first);
    read(pair.second);
  }
  void read(std::shared_ptr<const DryBreakers>& breakers) {
    bool has = false;
    read(has);
    if (!has) return;
    std::vector<uint64_t> words;
    std::vector<std::vector<TokenId>> longer;
    (*this)(words, longer);
    // One of a single token is a bit of the words, which take as much memory as the message has of them.
    const auto is_long = [](const auto& one) { return one.size() > 1 && one.size() <= DryBreakers::kMostTokens; };
    if (!std::ranges::all_of(longer, is_long)) return fail("has a breaker of too few or too many tokens");
    if (ok()) breakers = std::make_shared<const DryBreakers>(std::move(words), longer);
  }
  void read(Status& status) {
    StatusCode code = StatusCode::kOk;
    read(code);
    if (code == StatusCode::kOk) return;
    std::string message;
    std::string param;
    (*this)(message, param);
    status = Status(code, std::move(message)).with_param(std::move(param));
  }
  template <typename T>
  requires(std::is_class_v<T>) void read(T& value) { fields(*this, value); }

  std::string_view left_;
  size_t size_;
  Status error_;
};

template <typename T>
std::string encode_fields(Kind kind, const T& value) {
  Writer writer(kind);
  writer(value);
  return writer.take();
}

template <typename T>
Result<T> decode_fields(Kind kind, std::string_view message) {
  Reader reader(message, kind);
  T value;
  if (reader.ok()) reader(value);
  QUIRE_RETURN_IF_ERROR(reader.finish());
  return value;
}

}  // namespace quire::runner::wire
