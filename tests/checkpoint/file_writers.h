// Writers of small checkpoint files, right ones and, field by field, wrong ones.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/gguf_types.h"

namespace quire::checkpoint {

// A directory of its own for one test, removed with it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_checkpoint_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string out;
  for (const T value : values) put(out, value);
  return out;
}

class GgufWriter {
 public:
  // What the header says, where it is not the truth.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> pair_count;
  uint64_t alignment = 32;  // of the offsets and the data written here; `general.alignment` is a pair like any other

  static std::string text(std::string_view characters) {
    std::string out;
    put<uint64_t>(out, characters.size());
    return out + std::string(characters);
  }
  // `encoded`: the value's bytes, whatever they are.
  GgufWriter& pair(std::string_view key, uint32_t type, std::string_view encoded) {
    std::string out = text(key);
    put(out, type);
    pairs_.push_back({std::string(key), out + std::string(encoded)});
    return *this;
  }
  template <typename T>
  GgufWriter& number(std::string_view key, GgufValueType type, T value) {
    return pair(key, static_cast<uint32_t>(type), bytes_of<T>({value}));
  }
  GgufWriter& u32(std::string_view key, uint32_t value) { return number(key, GgufValueType::kUint32, value); }
  GgufWriter& f32(std::string_view key, float value) { return number(key, GgufValueType::kFloat32, value); }
  GgufWriter& boolean(std::string_view key, uint8_t value) { return number(key, GgufValueType::kBool, value); }
  GgufWriter& string(std::string_view key, std::string_view value) {
    return pair(key, static_cast<uint32_t>(GgufValueType::kString), text(value));
  }
  GgufWriter& array(std::string_view key, GgufValueType element, uint64_t count, std::string_view encoded) {
    std::string out;
    put(out, static_cast<uint32_t>(element));
    put(out, count);
    return pair(key, static_cast<uint32_t>(GgufValueType::kArray), out + std::string(encoded));
  }
  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    std::string encoded;
    for (const std::string& value : values) encoded += text(value);
    return array(key, GgufValueType::kString, values.size(), encoded);
  }
  template <typename T>
  GgufWriter& numbers(std::string_view key, GgufValueType type, std::initializer_list<T> values) {
    return array(key, type, values.size(), bytes_of(values));
  }
  GgufWriter& remove(std::string_view key) {
    std::erase_if(pairs_, [&](const auto& pair) { return pair.first == key; });
    return *this;
  }
  // dims: innermost first, as the file has them. The data follows the tensor before it, unless an offset is given.
  GgufWriter& tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, std::string_view data,
                     std::optional<uint64_t> offset = {}, std::optional<uint32_t> rank = {}) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    directory_ += text(name);
    put(directory_, rank.value_or(static_cast<uint32_t>(dims.size())));
    for (const uint64_t dim : dims) put(directory_, dim);
    put(directory_, type);
    put<uint64_t>(directory_, offset.value_or(data_.size()));
    data_ += data;
    ++num_tensors_;
    return *this;
  }
  GgufWriter& without_tensors() {
    directory_.clear();
    data_.clear();
    num_tensors_ = 0;
    return *this;
  }

  std::string build() const {
    std::string out = magic;
    put(out, version);
    put<uint64_t>(out, tensor_count.value_or(num_tensors_));
    put<uint64_t>(out, pair_count.value_or(pairs_.size()));
    for (const auto& [key, encoded] : pairs_) out += encoded;
    out += directory_;
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data_;
  }

 private:
  std::vector<std::pair<std::string, std::string>> pairs_;
  std::string directory_;
  std::string data_;
  uint64_t num_tensors_ = 0;
};

// A llama of one layer with a vocabulary of four tokens; the smallest file with something of everything.
inline GgufWriter small_gguf() {
  GgufWriter writer;
  writer.string("general.architecture", "llama");
  writer.u32("llama.block_count", 1).u32("llama.context_length", 128).u32("llama.embedding_length", 32);
  writer.u32("llama.feed_forward_length", 64).u32("llama.attention.head_count", 4);
  writer.u32("llama.attention.head_count_kv", 2).f32("llama.attention.layer_norm_rms_epsilon", 0.25f);
  writer.f32("llama.rope.freq_base", 500.0f);
  writer.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  writer.strings("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b"});
  writer.numbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, {3, 3, 1, 1});
  writer.strings("tokenizer.ggml.merges", {"a b"});
  writer.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 1);
  writer.boolean("tokenizer.ggml.add_bos_token", 1);
  writer.string("tokenizer.chat_template", "{{ messages }}");
  writer.tensor("token_embd.weight", {32, 4}, 0, std::string(32 * 4 * 4, '\x01'));
  writer.tensor("blk.0.attn_q.weight", {32, 32}, 2, std::string(32 * 18, '\x02'));
  writer.tensor("output_norm.weight", {32}, 0, std::string(32 * 4, '\x03'));
  return writer;
}

// A safetensors file out of its header's text and its data.
inline std::string safetensors(std::string_view header, std::string_view data) {
  std::string out;
  put<uint64_t>(out, header.size());
  return out + std::string(header) + std::string(data);
}

// One header entry.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, uint64_t begin,
                         uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

inline constexpr std::string_view kSmallConfig =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2})";

// One tensor of two float32, and config.json.
inline void write_small_directory(const std::filesystem::path& directory) {
  write_file(directory / "config.json", kSmallConfig);
  write_file(directory / "model.safetensors",
             safetensors("{" + entry("a", "F32", "[2]", 0, 8) + "}", bytes_of<float>({1.5f, -2.0f})));
}

// Two shards of one tensor each, their index, and config.json.
inline void write_sharded_directory(const std::filesystem::path& directory) {
  write_file(directory / "config.json", kSmallConfig);
  write_file(directory / "one.safetensors",
             safetensors("{" + entry("a", "F32", "[2]", 0, 8) + "}", bytes_of<float>({1.5f, -2.0f})));
  write_file(directory / "two.safetensors",
             safetensors("{" + entry("b", "F32", "[1,1]", 0, 4) + "}", bytes_of<float>({8.0f})));
  write_file(directory / "model.safetensors.index.json",
             R"({"metadata":{"total_size":12},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
}

}  // namespace quire::checkpoint
