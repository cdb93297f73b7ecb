#include "server/multipart.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "server/api_error.h"
#include "server/utf8.h"

namespace quire::server {

namespace {

constexpr size_t kMostParts = 16;
constexpr size_t kMostHeadBytes = 4096;
constexpr size_t kMostBoundary = 70;  // RFC 2046
constexpr size_t kMostName = 255;

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool starts_with_ignoring_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char a, char b) { return a == lower(b); });
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The value of a parameter in 'form-data; name="a"; filename="b"'; nullopt where it is not.
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  while (true) {
    const size_t semicolon = header.find(';');
    if (semicolon == std::string_view::npos) return std::nullopt;
    header = trimmed(header.substr(semicolon + 1));
    const size_t equals = header.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const bool wanted = header.substr(0, equals).size() == name.size() && starts_with_ignoring_case(header, name);
    header.remove_prefix(equals + 1);
    std::string value;
    if (header.starts_with('"')) {
      size_t i = 1;
      for (; i < header.size() && header[i] != '"'; ++i) {
        if (header[i] == '\\' && i + 1 < header.size()) ++i;
        value.push_back(header[i]);
      }
      if (i == header.size()) return std::nullopt;  // the quotes are not closed
      header.remove_prefix(i + 1);
    } else {
      const std::string_view token = header.substr(0, header.find(';'));
      value = trimmed(token);
      header.remove_prefix(token.size());
    }
    if (wanted) return value;
  }
}

Result<FormPart> parse_part(std::string_view text) {
  const size_t end = text.substr(0, kMostHeadBytes).find("\r\n\r\n");
  if (end == std::string_view::npos) return invalid_argument("A part of the form has no header, or one too long.");
  std::string_view head = text.substr(0, end);
  FormPart part;
  part.body = text.substr(end + 4);
  constexpr std::string_view kDisposition = "content-disposition:";
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    if (!starts_with_ignoring_case(line, kDisposition)) continue;
    part.name = parameter(line, "name").value_or("");
    part.filename = parameter(line, "filename").value_or("");
  }
  if (part.name.empty()) return invalid_argument("A part of the form has no name.");
  if (part.name.size() > kMostName || part.filename.size() > kMostName || !is_utf8(part.name) ||
      !is_utf8(part.filename)) {
    return invalid_argument("A part's name or file name is longer than {} bytes or not UTF-8.", kMostName);
  }
  return part;
}

}  // namespace

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body) {
  if (!starts_with_ignoring_case(content_type, "multipart/form-data")) {
    return invalid_argument("Send the file as a form: 'Content-Type: multipart/form-data'.");
  }
  const std::string boundary = parameter(content_type, "boundary").value_or("");
  if (boundary.empty() || boundary.size() > kMostBoundary) {
    return invalid_argument("The Content-Type needs a boundary of 1 to {} characters.", kMostBoundary);
  }
  const std::string delimiter = "\r\n--" + boundary;
  // The first delimiter needs no line before it.
  if (!body.starts_with(std::string_view(delimiter).substr(2))) {
    return invalid_argument("The form does not begin with its boundary.");
  }
  body.remove_prefix(delimiter.size() - 2);
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (!body.starts_with("\r\n")) return invalid_argument("The form's boundary is followed by something else.");
    const size_t end = body.find(delimiter, 2);
    if (end == std::string_view::npos) return invalid_argument("The form has no end.");
    if (parts.size() == kMostParts) return invalid_argument("The form has more than {} parts.", kMostParts);
    QUIRE_ASSIGN_OR_RETURN(FormPart part, parse_part(body.substr(2, end - 2)));
    if (std::any_of(parts.begin(), parts.end(), [&](const FormPart& other) { return other.name == part.name; })) {
      return invalid_argument("The form has {} twice.", in_quotes(part.name, 40));
    }
    parts.push_back(std::move(part));
    body.remove_prefix(end + delimiter.size());
  }
  return parts;
}

}  // namespace quire::server
