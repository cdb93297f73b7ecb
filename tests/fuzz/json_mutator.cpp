// libFuzzer's mutations, and beside them those of a JSON text that stays one: a value replaced, moved, removed,
// repeated. QUIRE_FUZZ_JSON says where in an input the text lies: "whole", "after_byte" (which steers the target),
// "after_bytes" (three of them), "after_length" (safetensors), "before_nul" and "after_nul".
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);

namespace {

namespace json = boost::json;

struct Frame {
  std::string before, text, after;
};

Frame split(std::string_view input) {
  constexpr std::string_view kWhere = QUIRE_FUZZ_JSON;
  const size_t nul = std::min(input.find('\0'), input.size());
  const auto at = [&](size_t begin, size_t end) {
    begin = std::min(begin, input.size());
    end = std::max(begin, std::min(end, input.size()));
    return Frame{std::string(input.substr(0, begin)), std::string(input.substr(begin, end - begin)),
                 std::string(input.substr(end))};
  };
  if (kWhere == "after_byte") return at(1, input.size());
  if (kWhere == "after_bytes") return at(3, input.size());
  if (kWhere == "before_nul") return at(0, nul);
  if (kWhere == "after_nul") return at(nul + 1, input.size());
  if (kWhere == "after_length") {
    uint64_t length = 0;
    if (input.size() >= sizeof(length)) std::memcpy(&length, input.data(), sizeof(length));
    return at(sizeof(length), sizeof(length) + static_cast<size_t>(std::min<uint64_t>(length, input.size())));
  }
  return at(0, input.size());
}

std::string join(Frame frame) {
  if (std::string_view(QUIRE_FUZZ_JSON) == "after_length") {
    const uint64_t length = frame.text.size();
    frame.before.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  }
  return frame.before + frame.text + frame.after;
}

class Mutation {
 public:
  Mutation(json::value& root, std::mt19937& random) : random_(random) { collect(root); }

  void apply() {
    json::value& target = *values_[below(values_.size())];
    switch (below(8)) {
      case 0:
        target = scalar();
        break;
      case 1:
        change_number(target);
        break;
      case 2:
        remove_from(target);
        break;
      case 3:
        repeat_in(target);
        break;
      case 4:
        target = json::value(*values_[below(values_.size())]);
        break;
      case 5:
        rename_in(target);
        break;
      case 6:
        change_string(target);
        break;
      default:
        target = below(2) == 0 ? json::value(json::array{target}) : json::value(json::object{{key(), target}});
        break;
    }
  }

 private:
  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void collect(json::value& value) {
    if (values_.size() > 2000) return;
    values_.push_back(&value);
    if (auto* array = value.if_array()) {
      for (json::value& item : *array) collect(item);
    } else if (auto* object = value.if_object()) {
      for (auto& member : *object) {
        keys_.emplace_back(member.key());
        collect(member.value());
      }
    }
  }

  std::string key() { return keys_.empty() ? "k" : keys_[below(keys_.size())]; }

  json::value scalar() {
    const json::value kScalars[] = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    -1,
                                    2,
                                    7,
                                    64,
                                    4096,
                                    65536,
                                    1 << 24,
                                    (1 << 24) - 2,
                                    std::numeric_limits<int32_t>::max(),
                                    std::numeric_limits<int32_t>::min(),
                                    int64_t{1} << 30,
                                    int64_t{1} << 32,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<uint64_t>::max(),
                                    0.5,
                                    -0.0,
                                    1e-320,
                                    1e308,
                                    -1e308,
                                    9007199254740993.0,
                                    1e18,
                                    1e19,
                                    "",
                                    "a",
                                    json::array{},
                                    json::object{}};
    return kScalars[below(std::size(kScalars))];
  }

  void change_number(json::value& value) {
    if (auto* number = value.if_int64()) {
      const int64_t kChanged[] = {static_cast<int64_t>(static_cast<uint64_t>(*number) + 1),
                                  static_cast<int64_t>(static_cast<uint64_t>(*number) - 1),
                                  static_cast<int64_t>(static_cast<uint64_t>(*number) * 2),
                                  *number / 2,
                                  static_cast<int64_t>(0 - static_cast<uint64_t>(*number)),
                                  static_cast<int64_t>(random_() % 256)};
      value = kChanged[below(std::size(kChanged))];
    } else if (auto* real = value.if_double()) {
      const double kChanged[] = {*real * 2, *real / 2, -*real, *real + 1, 1 / (*real + 1e-300), *real * 1e100};
      value = kChanged[below(std::size(kChanged))];
    } else {
      value = scalar();
    }
  }

  void remove_from(json::value& value) {
    if (auto* array = value.if_array(); array != nullptr && !array->empty()) {
      array->erase(array->begin() + static_cast<std::ptrdiff_t>(below(array->size())));
    } else if (auto* object = value.if_object(); object != nullptr && !object->empty()) {
      object->erase(object->begin() + static_cast<std::ptrdiff_t>(below(object->size())));
    }
  }

  void repeat_in(json::value& value) {
    if (auto* array = value.if_array(); array != nullptr && !array->empty()) {
      const json::value item = (*array)[below(array->size())];
      for (size_t i = 1 + below(4); i > 0; --i)
        array->insert(array->begin() + static_cast<std::ptrdiff_t>(below(array->size())), item);
    } else if (auto* object = value.if_object()) {
      (*object)[key()] = scalar();
    }
  }

  void rename_in(json::value& value) {
    auto* object = value.if_object();
    if (object == nullptr || object->empty()) return;
    const auto at = object->begin() + static_cast<std::ptrdiff_t>(below(object->size()));
    const json::value moved = at->value();
    object->erase(at);
    (*object)[key()] = moved;
  }

  void change_string(json::value& value) {
    auto* string = value.if_string();
    if (string == nullptr) return;
    std::string text(string->data(), string->size());
    const size_t size = text.size();
    text.resize(size + 64);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
    value = text;
  }

  std::mt19937& random_;
  std::vector<json::value*> values_;
  std::vector<std::string> keys_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937 random(seed);
  if (random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  Frame frame = split({reinterpret_cast<const char*>(data), size});
  json::parse_options options;
  options.max_depth = 64;
  boost::system::error_code error;
  json::value root = json::parse(frame.text, error, {}, options);
  if (error) return LLVMFuzzerMutate(data, size, max_size);
  for (size_t i = 1 + random() % 3; i > 0; --i) Mutation(root, random).apply();
  frame.text = json::serialize(root);
  const std::string mutated = join(std::move(frame));
  if (mutated.empty() || mutated.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, mutated.data(), mutated.size());
  return mutated.size();
}
