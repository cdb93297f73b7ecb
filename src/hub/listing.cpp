#include "hub/listing.h"

#include <algorithm>

#include <boost/json.hpp>

#include "base/hex.h"
#include "hub/model_name.h"

namespace quire::hub {
namespace {

namespace json = boost::json;

Result<json::value> parse(std::string_view text) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 32;
  json::value value = json::parse({text.data(), text.size()}, error, {}, options);
  if (error) return data_loss("the Hub's answer is no JSON: {}", error.message());
  return value;
}

std::string_view text_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}

int64_t size_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return -1;
  json::error_code error;
  const auto size = value->to_number<int64_t>(error);
  return error || size < 0 ? -1 : size;
}

const json::object* object_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

// Lower case; empty where `text` is not so many hexadecimal digits.
std::string digits(std::string_view text, size_t count) {
  std::string out(text);
  if (out.size() != count) return {};
  for (char& c : out) {
    if (hex_digit(c) < 0) return {};
    if (c >= 'A') c = static_cast<char>(c | 0x20);
  }
  return out;
}

// A file of which the Hub gives git's name and, if it is a large one, LFS's.
RemoteFile remote_file(std::string_view git_hash, int64_t size, const json::object* lfs) {
  if (lfs == nullptr) return {.size = size, .hash = digits(git_hash, 40)};
  const std::string_view named = text_in(*lfs, "oid").empty() ? text_in(*lfs, "sha256") : text_in(*lfs, "oid");
  const int64_t lfs_size = size_in(*lfs, "size");
  return {.size = lfs_size >= 0 ? lfs_size : size, .hash = digits(named, 64)};
}

// For a message: at most 100 characters, none that a terminal would obey.
std::string shown_name(std::string_view name) {
  std::string out(name.substr(0, 100));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return out;
}

Status add(std::string_view path, RemoteFile file, Listing& listing) {
  if (!is_safe_path(path)) {
    return data_loss(
        "the repository lists a file named \"{}\", which leads out of its folder or is no file's name. Nothing of it "
        "is taken",
        shown_name(path));
  }
  if (listing.size() >= kMostListedFiles) {
    return resource_exhausted("the repository lists more than {} files", kMostListedFiles);
  }
  listing.insert_or_assign(std::string(path), std::move(file));
  return {};
}

}  // namespace

Result<RevisionInfo> parse_revision_info(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const json::value value, parse(text));
  const json::object* object = value.if_object();
  if (object == nullptr) return data_loss("the Hub's answer about a revision is no JSON object");
  RevisionInfo info;
  info.commit = digits(text_in(*object, "sha"), 40);
  if (info.commit.empty()) return data_loss("the Hub's answer about a revision names no commit (\"sha\")");
  const json::value* siblings = object->if_contains("siblings");
  if (siblings == nullptr || !siblings->is_array()) return info;
  for (const json::value& sibling : siblings->get_array()) {
    const json::object* file = sibling.if_object();
    if (file == nullptr) return data_loss("the Hub's list of files (\"siblings\") holds what is no object");
    QUIRE_RETURN_IF_ERROR(add(text_in(*file, "rfilename"),
                              remote_file(text_in(*file, "blobId"), size_in(*file, "size"), object_in(*file, "lfs")),
                              info.files));
  }
  return info;
}

Status add_tree_page(std::string_view text, Listing& listing) {
  QUIRE_ASSIGN_OR_RETURN(const json::value value, parse(text));
  const json::array* entries = value.if_array();
  if (entries == nullptr) return data_loss("the Hub's list of files is no JSON array");
  for (const json::value& entry : *entries) {
    const json::object* file = entry.if_object();
    if (file == nullptr) return data_loss("the Hub's list of files holds what is no object");
    if (text_in(*file, "type") == "directory") continue;
    QUIRE_RETURN_IF_ERROR(add(text_in(*file, "path"),
                              remote_file(text_in(*file, "oid"), size_in(*file, "size"), object_in(*file, "lfs")),
                              listing));
  }
  return {};
}

std::optional<std::string> next_link(std::string_view field) {
  while (true) {
    const size_t open = field.find('<');
    const size_t close = open == field.npos ? open : field.find('>', open);
    if (close == field.npos) return std::nullopt;
    const std::string_view address = field.substr(open + 1, close - open - 1);
    field.remove_prefix(close + 1);
    std::string parameters(field.substr(0, std::min(field.find('<'), field.size())));
    std::erase_if(parameters, [](char c) { return c == ' ' || c == '"' || c == '\t'; });
    std::transform(parameters.begin(), parameters.end(), parameters.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    for (size_t at = parameters.find(";rel=next"); at != parameters.npos; at = parameters.find(";rel=next", at + 1)) {
      const char after = at + 9 < parameters.size() ? parameters[at + 9] : ';';
      if (after == ';' || after == ',') return std::string(address);
    }
  }
}

std::string listing_json(const Listing& listing) {
  json::object files;
  for (const auto& [path, file] : listing) {
    json::object entry;
    entry["size"] = file.size;
    if (file.hash.size() == 64) {
      entry["lfs_sha256"] = file.hash;
      entry["lfs_size"] = file.size;
    } else {
      entry["blob_id"] = file.hash;
    }
    files[path] = std::move(entry);
  }
  return json::serialize(json::object{{"format_version", 1}, {"files", std::move(files)}});
}

Result<Listing> parse_listing_json(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const json::value value, parse(text));
  const json::object* object = value.if_object();
  const json::object* files = object == nullptr ? nullptr : object_in(*object, "files");
  if (files == nullptr || size_in(*object, "format_version") != 1) return data_loss("not a listing of version 1");
  Listing listing;
  for (const auto& [path, entry] : *files) {
    const json::object* file = entry.if_object();
    if (file == nullptr) return data_loss("a listing holds what is no object");
    const std::string sha256 = digits(text_in(*file, "lfs_sha256"), 64);
    const std::string git = digits(text_in(*file, "blob_id"), 40);
    QUIRE_RETURN_IF_ERROR(
        add(std::string_view(path), {.size = size_in(*file, "size"), .hash = sha256.empty() ? git : sha256}, listing));
  }
  return listing;
}

std::string hash_of_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  const std::string sha256 = digits(etag, 64);
  return sha256.empty() ? digits(etag, 40) : sha256;
}

}  // namespace quire::hub
