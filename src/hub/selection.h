// Which files of a repository a model needs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/listing.h"
#include "hub/model_name.h"
#include "types/sentence_file_names.h"

namespace quire::hub {

// kText: tokenizer, chat template and config alone, where they are files of their own (beside safetensors).
enum class Need { kAll, kText };

// A GGUF model: one file, or all of its parts.
struct GgufModel {
  std::string label;               // "Q4_K_M", "UD-Q4_K_XL"; the file's name where it names no type
  std::vector<std::string> files;  // paths, the first part first
  bool whole = true;               // none of its parts is missing
};

// Of any list of paths; without projectors of images (mmproj). By label.
std::vector<GgufModel> gguf_models(std::span<const std::string> paths);

struct Selection {
  std::string main;                // the GGUF file to open; empty: the folder is the model
  std::string gguf;                // its label
  std::vector<std::string> files;  // in the order in which they are fetched
  bool needs_index = false;        // and the shards that model.safetensors.index.json names
  bool needs_modules = false;      // and what lies in the folders that modules.json names
};

// Errors: not_found and unimplemented, saying what the repository has instead and what to do.
Result<Selection> select_files(const ModelName& name, std::span<const std::string> paths, Need need);

// The shards that an index names, each once. Errors: data_loss.
Result<std::vector<std::string>> shards_of_index(std::string_view index_json);

// Of sentence-transformers' modules what is read from their folders, as far as it is among `paths`. Errors: data_loss.
Result<std::vector<std::string>> files_of_modules(std::string_view modules_json, std::span<const std::string> paths);

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// One that a tokenizer may be read from, here or by transformers.
bool is_tokenizer_file(std::string_view path);

}  // namespace quire::hub
