#include "hub/selection.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include <boost/json.hpp>

namespace quire::hub {
namespace {

namespace json = boost::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kUsualType = "Q4_K_M";  // of a repository with several, where none is named; llama.cpp's choice

// What a model is read from beside its weights: config and text by quire, the rest by transformers, so that both have
// all that they ask for.
constexpr auto kTextFiles = std::to_array<std::string_view>(
    {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
     "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model",
     "chat_template.jinja", "chat_template.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json"});
constexpr auto kTokenizerFiles =
    std::to_array<std::string_view>({"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"});
constexpr auto kPickleEndings = std::to_array<std::string_view>({".bin", ".pt", ".pth", ".ckpt", ".pickle", ".pkl"});

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

struct SplitName {
  std::string_view stem;    // without the ending and the part's number
  int part = 0, parts = 0;  // from 1; 0: a model in one file
};

// "folder/name-00001-of-00003.gguf"
SplitName split_name(std::string_view path) {
  SplitName name{.stem = path.substr(0, path.size() - 5)};
  constexpr size_t kEnding = 15;  // "-00001-of-00003"
  if (name.stem.size() <= kEnding) return name;
  const std::string_view ending = name.stem.substr(name.stem.size() - kEnding);
  const std::string_view part = ending.substr(1, 5), parts = ending.substr(10, 5);
  if (ending[0] != '-' || ending.substr(6, 4) != "-of-" || !is_digits(part) || !is_digits(parts)) return name;
  name.part = std::stoi(std::string(part));
  name.parts = std::stoi(std::string(parts));
  name.stem.remove_suffix(kEnding);
  return name;
}

// "Q4_K_M", "IQ2_XXS", "TQ1_0", "BF16", "MXFP4_MOE" and their like, in whatever case.
bool is_type(std::string_view text) {
  const std::string word = upper(text);
  for (const std::string_view start : {"BF16", "FP16", "FP32", "F16", "F32", "MXFP4", "NVFP4"}) {
    if (word == start || word.starts_with(std::string(start) + "_")) return true;
  }
  size_t at = word.starts_with("IQ") || word.starts_with("TQ") ? 2 : word.starts_with("Q") ? 1 : 0;
  return at > 0 && at < word.size() && word[at] >= '1' && word[at] <= '9';
}

// The last word of the file's name that is a type.
std::string label_of(std::string_view stem) {
  const std::string_view name = base_name(stem);
  for (size_t end = name.size();;) {
    const size_t cut = name.find_last_of("-.", end - 1);
    const size_t begin = cut == name.npos ? 0 : cut + 1;
    const std::string_view word = name.substr(begin, end - begin);
    if (is_type(word)) {
      const std::string label = upper(word);
      return begin >= 3 && upper(name.substr(begin - 3, 3)) == "UD-" ? "UD-" + label : label;
    }
    if (begin == 0) return std::string(name);
    end = cut;
    if (end == 0) return std::string(name);
  }
}

// `type` stands in the path as a word of its own: not Q4_K in Q4_K_M.
bool names_type(std::string_view path, const std::string& type) {
  const std::string where = upper(path);
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = where.find(type); at != where.npos; at = where.find(type, at + 1)) {
    const size_t end = at + type.size();
    if ((at == 0 || !is_word(where[at - 1])) && (end == where.size() || !is_word(where[end]))) return true;
  }
  return false;
}

std::string list_of(std::span<const GgufModel> models) {
  std::string out;
  for (size_t i = 0; i < models.size() && i < 40; ++i) {
    out += (i > 0 ? ", " : "") + models[i].label;
  }
  return models.size() > 40 ? out + ", ..." : out;
}

std::string paths_of(std::span<const GgufModel> models) {
  std::string out;
  for (size_t i = 0; i < models.size() && i < 20; ++i) {
    out += (i > 0 ? ", " : "") + models[i].files.front();
  }
  return out;
}

Result<GgufModel> choose_gguf(const ModelName& name, const std::vector<GgufModel>& models) {
  if (models.empty()) {
    return not_found("{} has no GGUF file; leave \":{}\" away to take its safetensors", name.repository, name.gguf);
  }
  std::vector<GgufModel> found;
  if (name.gguf.ends_with(".gguf")) {
    for (const GgufModel& model : models) {
      if (std::find(model.files.begin(), model.files.end(), name.gguf) != model.files.end()) found.push_back(model);
    }
    if (found.empty()) return not_found("{} has no file {}; it has {}", name.repository, name.gguf, paths_of(models));
  } else {
    const std::string wanted = name.gguf.empty() ? kUsualType : upper(name.gguf);
    if (name.gguf.empty() && models.size() == 1) found = models;
    for (const GgufModel& model : models) {
      if (found.empty() && model.label == wanted) found.push_back(model);
    }
    for (size_t i = 0; found.empty() && i < models.size(); ++i) {
      if (names_type(models[i].files.front(), wanted)) found.push_back(models[i]);
    }
    // Several of that label (in folders of their own): which one, only a path says.
    const auto same = std::count_if(models.begin(), models.end(), [&](const GgufModel& model) {
      return !found.empty() && model.label == found.front().label;
    });
    if (same > 1 && models.size() > 1) {
      std::vector<GgufModel> alike;
      for (const GgufModel& model : models) {
        if (model.label == found.front().label) alike.push_back(model);
      }
      return invalid_argument("{} has several GGUF models of the type {}: name one by its file, as {}:FILE: {}",
                              name.repository, found.front().label, name.repository, paths_of(alike));
    }
  }
  if (found.empty()) {
    return name.gguf.empty()
               ? invalid_argument("{} has GGUF models of several types: name one, as {}:{}. There are: {}",
                                  name.repository, name.repository, models.front().label, list_of(models))
               : not_found("{} has no GGUF model of the type {}; there are: {}", name.repository, name.gguf,
                           list_of(models));
  }
  if (!found.front().whole) {
    return not_found("{}: parts of {} are missing: there are {} of them", name.repository, found.front().files.front(),
                     found.front().files.size());
  }
  return found.front();
}

// There are no weights that are read here: says what there is.
Status nothing_to_serve(const ModelName& name, std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    for (const std::string_view ending : kPickleEndings) {
      if (!path.ends_with(ending)) continue;
      return unimplemented(
          "{} has its weights only as Python pickles ({}), which are refused because reading one runs the code in it. "
          "Look for a repository with safetensors or GGUF of the same model, or convert it",
          name.repository, path);
    }
  }
  return not_found("{} has neither safetensors nor GGUF files: it is no model that quire can serve", name.repository);
}

}  // namespace

std::vector<GgufModel> gguf_models(std::span<const std::string> paths) {
  struct Parts {
    std::map<int, std::string> files;
    int expected = 1;
  };
  std::map<std::pair<std::string, int>, Parts> groups;  // by stem and number of parts
  for (const std::string& path : paths) {
    if (!path.ends_with(".gguf") || base_name(path).find("mmproj") != std::string_view::npos) continue;
    const SplitName name = split_name(path);
    Parts& parts = groups[{std::string(name.stem), name.parts}];
    parts.expected = std::max(1, name.parts);
    parts.files[name.part] = path;
  }
  std::vector<GgufModel> models;
  for (auto& [key, parts] : groups) {
    GgufModel model{.label = label_of(key.first), .files = {}};
    for (auto& [number, path] : parts.files) model.files.push_back(std::move(path));
    model.whole = static_cast<int>(model.files.size()) == parts.expected &&
                  (key.second == 0 || (parts.files.begin()->first == 1 && parts.files.rbegin()->first == key.second));
    models.push_back(std::move(model));
  }
  std::stable_sort(models.begin(), models.end(),
                   [](const GgufModel& a, const GgufModel& b) { return a.label < b.label; });
  return models;
}

Result<Selection> select_files(const ModelName& name, std::span<const std::string> paths, Need need) {
  const auto has = [&](std::string_view path) { return std::find(paths.begin(), paths.end(), path) != paths.end(); };
  std::vector<std::string> safetensors;
  for (const std::string& path : paths) {
    if (path.ends_with(".safetensors") && path.find('/') == path.npos) safetensors.push_back(path);
  }
  const std::vector<GgufModel> gguf = gguf_models(paths);
  if (!name.gguf.empty() || (safetensors.empty() && !gguf.empty())) {
    QUIRE_ASSIGN_OR_RETURN(const GgufModel model, choose_gguf(name, gguf));
    return Selection{.main = model.files.front(), .gguf = model.label, .files = model.files};
  }
  Selection selection;
  const auto take_present = [&](std::span<const std::string_view> files) {
    for (const std::string_view file : files) {
      if (has(file)) selection.files.emplace_back(file);
    }
  };
  take_present(kTextFiles);
  take_present(std::array{kModulesFile, kSentenceModelFile});
  take_present(kSentenceTransformerFiles);
  selection.needs_modules = has(kModulesFile);
  const bool text_suffices = need == Need::kText && std::any_of(paths.begin(), paths.end(), is_tokenizer_file);
  if (safetensors.empty() && !text_suffices) return nothing_to_serve(name, paths);
  if (!has("config.json")) {
    return not_found("{} has no config.json{}", name.repository,
                     has("adapter_config.json") ? ": it is an adapter (LoRA), which is not supported yet"
                                                : ", which says what model it is");
  }
  if (need == Need::kText) return selection;
  if (has(kSingleFile)) {
    selection.files.emplace_back(kSingleFile);
  } else if (has(kIndexFile)) {
    selection.files.emplace_back(kIndexFile);
    selection.needs_index = true;
  } else if (safetensors.size() == 1) {
    selection.files.push_back(safetensors.front());
  } else {
    return not_found("{} has {} safetensors files but no {} to say which tensor lies where", name.repository,
                     safetensors.size(), kIndexFile);
  }
  return selection;
}

Result<std::vector<std::string>> shards_of_index(std::string_view index_json) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 32;
  const json::value value = json::parse({index_json.data(), index_json.size()}, error, {}, options);
  if (error) return data_loss("{} is no JSON: {}", kIndexFile, error.message());
  const json::object* index = value.if_object();
  const json::value* map = index == nullptr ? nullptr : index->if_contains("weight_map");
  if (map == nullptr || !map->is_object()) return data_loss("{} has no weight_map", kIndexFile);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->get_object()) {
    const std::string_view file = shard.is_string() ? std::string_view(shard.get_string()) : std::string_view();
    if (!is_safe_path(file) || file.find('/') != file.npos || !file.ends_with(".safetensors")) {
      return data_loss("{} places a tensor in what is no safetensors file beside it", kIndexFile);
    }
    shards.emplace(file);
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

Result<std::vector<std::string>> files_of_modules(std::string_view modules_json, std::span<const std::string> paths) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 32;
  const json::value value = json::parse({modules_json.data(), modules_json.size()}, error, {}, options);
  if (error || !value.is_array()) return data_loss("{} is no list of modules in JSON", kModulesFile);
  std::set<std::string> files;
  for (const json::value& module : value.get_array()) {
    const json::object* object = module.if_object();
    const json::value* folder = object == nullptr ? nullptr : object->if_contains("path");
    if (folder == nullptr || !folder->is_string() || folder->get_string().empty()) continue;
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::string path = std::string(folder->get_string()) + "/" + name;
      if (is_safe_path(path) && std::ranges::find(paths, path) != paths.end()) files.insert(std::move(path));
    }
  }
  return std::vector<std::string>(files.begin(), files.end());
}

bool is_tokenizer_file(std::string_view path) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), path) != kTokenizerFiles.end();
}

}  // namespace quire::hub
