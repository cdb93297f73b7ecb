// Tiny checkpoints of float32 with tensors in BF16.
#pragma once

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "tests/runner/tiny_model.h"

namespace quire::runner {

// The tiny checkpoint with those of its float32 tensors in BF16 for which `is_rounded` of name and rank says so;
// returns its folder.
inline std::string in_bf16(const std::string& family, const std::string& folder_name,
                           const std::function<bool(std::string_view name, size_t rank)>& is_rounded) {
  const std::string folder = testing::TempDir() + folder_name + "_" + family;
  std::filesystem::create_directories(folder);
  for (const char* name : {"config.json", "golden.json"}) {
    std::filesystem::copy_file(tiny_path(family) + "/" + name, folder + "/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::ifstream file(tiny_path(family) + "/model.safetensors", std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  uint64_t header_size = 0;
  std::memcpy(&header_size, all.data(), sizeof(header_size));
  boost::json::object header =
      boost::json::parse(std::string_view(all).substr(sizeof(header_size), header_size)).as_object();
  const std::string_view stored = std::string_view(all).substr(sizeof(header_size) + header_size);
  std::string data;
  for (auto& [name, value] : header) {
    if (name == "__metadata__") continue;
    boost::json::object& tensor = value.as_object();
    const auto begin = tensor.at("data_offsets").at(0).to_number<size_t>();
    const auto end = tensor.at("data_offsets").at(1).to_number<size_t>();
    const size_t first = data.size();
    EXPECT_EQ(tensor.at("dtype").as_string(), "F32");
    if (!is_rounded(std::string_view(name), tensor.at("shape").as_array().size())) {
      data.append(stored.substr(begin, end - begin));
      tensor["data_offsets"] = boost::json::array{first, data.size()};
      continue;
    }
    for (size_t at = begin; at < end; at += sizeof(uint32_t)) {
      uint32_t bits = 0;
      std::memcpy(&bits, stored.data() + at, sizeof(bits));
      bits += 0x7fff + (bits >> 16 & 1);  // to the nearest, of two to the even one
      data.append(reinterpret_cast<const char*>(&bits) + 2, 2);
    }
    tensor["dtype"] = "BF16";
    tensor["data_offsets"] = boost::json::array{first, data.size()};
  }
  static_assert(std::endian::native == std::endian::little);
  const std::string text = boost::json::serialize(header);
  header_size = text.size();
  std::ofstream out(folder + "/model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_size), sizeof(header_size)) << text << data;
  return folder;
}

// All of them.
inline std::string in_bf16(const std::string& family) {
  return in_bf16(family, "bf16", [](std::string_view, size_t) { return true; });
}

}  // namespace quire::runner
