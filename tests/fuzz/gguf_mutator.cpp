// libFuzzer's mutations, and beside them those of a GGUF file whose lengths and counts stay right: a pair or a tensor
// removed, repeated, another's value, a string or a number changed.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);

namespace {

struct Pair {
  std::string key;
  uint32_t type = 0;
  std::string value;  // as encoded
};

struct TensorEntry {
  std::string name;
  std::string about;  // rank, dimensions, type, offset
};

struct File {
  uint32_t version = 3;
  std::vector<Pair> pairs;
  std::vector<TensorEntry> tensors;
  std::string data;
};

class Reader {
 public:
  explicit Reader(std::string_view left) : left_(left) {}
  bool ok() const { return ok_; }
  size_t left() const { return left_.size(); }
  std::string take(uint64_t count) {
    ok_ = ok_ && count <= left_.size();
    if (!ok_) return {};
    const std::string taken(left_.substr(0, static_cast<size_t>(count)));
    left_.remove_prefix(taken.size());
    return taken;
  }
  template <typename T>
  T number() {
    T value = 0;
    const std::string bytes = take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text() { return take(number<uint64_t>()); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
std::string text_of(const std::string& text) {
  return bytes_of<uint64_t>(text.size()) + text;
}

size_t size_of(uint32_t type) {
  constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kSizes) ? kSizes[type] : 0;
}

std::string read_value(Reader& reader, uint32_t type) {
  if (type == 8) return text_of(reader.text());
  if (type != 9) return reader.take(size_of(type));
  const auto element = reader.number<uint32_t>();
  const auto count = reader.number<uint64_t>();
  std::string value = bytes_of(element) + bytes_of(count);
  if (element != 8) return value + reader.take(count > reader.left() ? ~uint64_t{0} : count * size_of(element));
  for (uint64_t i = 0; i < count && reader.ok(); ++i) value += text_of(reader.text());
  return value;
}

bool read(std::string_view bytes, File& file) {
  Reader reader(bytes);
  if (reader.take(4) != "GGUF") return false;
  file.version = reader.number<uint32_t>();
  const auto num_tensors = reader.number<uint64_t>();
  const auto num_pairs = reader.number<uint64_t>();
  for (uint64_t i = 0; i < num_pairs && reader.ok(); ++i) {
    Pair pair{.key = reader.text()};
    pair.type = reader.number<uint32_t>();
    pair.value = read_value(reader, pair.type);
    file.pairs.push_back(std::move(pair));
  }
  for (uint64_t i = 0; i < num_tensors && reader.ok(); ++i) {
    TensorEntry tensor{.name = reader.text()};
    const auto rank = reader.number<uint32_t>();
    if (rank > 8) return false;
    tensor.about = bytes_of(rank) + reader.take(uint64_t{rank} * 8 + 12);
    file.tensors.push_back(std::move(tensor));
  }
  if (!reader.ok()) return false;
  reader.take(std::min<uint64_t>((32 - (bytes.size() - reader.left()) % 32) % 32, reader.left()));
  file.data = reader.take(reader.left());
  return true;
}

std::string written(const File& file) {
  std::string out =
      "GGUF" + bytes_of(file.version) + bytes_of<uint64_t>(file.tensors.size()) + bytes_of<uint64_t>(file.pairs.size());
  for (const Pair& pair : file.pairs) out += text_of(pair.key) + bytes_of(pair.type) + pair.value;
  for (const TensorEntry& tensor : file.tensors) out += text_of(tensor.name) + tensor.about;
  out.resize((out.size() + 31) / 32 * 32, '\0');
  return out + file.data;
}

class Mutation {
 public:
  Mutation(File& file, std::mt19937& random) : file_(file), random_(random) {}

  void apply() {
    if (file_.tensors.empty() || random_() % 4 != 0) {
      if (!file_.pairs.empty()) change_pairs();
    } else {
      change_tensors();
    }
  }

 private:
  size_t below(size_t bound) { return random_() % bound; }

  template <typename T>
  T extreme() {
    constexpr uint64_t kExtremes[] = {0,
                                      1,
                                      2,
                                      3,
                                      8,
                                      64,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      1 << 24,
                                      1 << 16,
                                      0x7fffffffffffffff,
                                      ~uint64_t{0},
                                      uint64_t{1} << 63,
                                      uint64_t{1} << 32};
    const uint64_t bits = below(3) == 0 ? random_() % 512 : kExtremes[below(std::size(kExtremes))];
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }

  void mutate(std::string& text, size_t room) {
    const size_t size = text.size();
    text.resize(size + room);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
  }

  void change_value(Pair& pair) {
    if (pair.type == 8) {
      std::string text = pair.value.substr(8);
      mutate(text, 32);
      pair.value = text_of(text);
    } else if (pair.type == 9) {
      change_array(pair);
    } else if (pair.type == 6) {
      const float kFloats[] = {0, -1, 1, 1e-30f, 1e30f, __builtin_nanf(""), __builtin_inff(), -0.0f, 0.5f};
      pair.value = bytes_of(kFloats[below(std::size(kFloats))]);
    } else {
      pair.value = bytes_of(extreme<uint64_t>()).substr(0, pair.value.size());
    }
  }

  // An array of numbers gets others or fewer, one of strings fewer, more or another string.
  void change_array(Pair& pair) {
    Reader reader(pair.value);
    const auto element = reader.number<uint32_t>();
    const auto count = reader.number<uint64_t>();
    std::vector<std::string> items;
    for (uint64_t i = 0; i < count && reader.ok(); ++i)
      items.push_back(element == 8 ? reader.text() : reader.take(size_of(element)));
    if (items.empty()) return;
    std::string& item = items[below(items.size())];
    switch (below(4)) {
      case 0:
        items.resize(below(items.size()) + 1);
        break;
      case 1:
        items.push_back(std::string(item));
        break;
      default:
        if (element == 8) {
          mutate(item, 16);
        } else {
          item = bytes_of(extreme<uint64_t>()).substr(0, item.size());
        }
        break;
    }
    pair.value = bytes_of(element) + bytes_of<uint64_t>(items.size());
    for (const std::string& one : items) pair.value += element == 8 ? text_of(one) : one;
  }

  void change_pairs() {
    Pair& pair = file_.pairs[below(file_.pairs.size())];
    const Pair other = file_.pairs[below(file_.pairs.size())];
    switch (below(8)) {
      case 0:
        file_.pairs.erase(file_.pairs.begin() + (&pair - file_.pairs.data()));
        break;
      case 1:
        mutate(pair.key, 16);
        break;
      case 2:
        pair.type = other.type;
        pair.value = other.value;
        break;
      case 3:
        pair.type = 11;
        pair.value = bytes_of(extreme<uint64_t>());
        break;
      default:
        change_value(pair);
        break;
    }
  }

  void change_tensors() {
    TensorEntry& tensor = file_.tensors[below(file_.tensors.size())];
    const TensorEntry other = file_.tensors[below(file_.tensors.size())];
    switch (below(5)) {
      case 0:
        file_.tensors.erase(file_.tensors.begin() + (&tensor - file_.tensors.data()));
        break;
      case 1:
        mutate(tensor.name, 16);
        break;
      case 2:
        tensor.about = other.about;
        break;
      case 3:
        tensor.about.replace(below(tensor.about.size() / 4) * 4, 4, bytes_of(extreme<uint32_t>()));
        break;
      default:
        file_.tensors.push_back(other);
        break;
    }
  }

  File& file_;
  std::mt19937& random_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937 random(seed);
  File file;
  if (random() % 4 == 0 || !read({reinterpret_cast<const char*>(data), size}, file)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  for (size_t i = 1 + random() % 3; i > 0; --i) Mutation(file, random).apply();
  const std::string mutated = written(file);
  if (mutated.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, mutated.data(), mutated.size());
  return mutated.size();
}
