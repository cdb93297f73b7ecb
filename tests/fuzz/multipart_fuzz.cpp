// Forms: whatever is taken for one can be written again, and is the same then. The first line is the Content-Type.
#include <string>

#include "server/multipart.h"
#include "tests/fuzz/fuzz.h"

namespace {

using quire::server::FormPart;
using quire::server::parse_multipart;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + '"';
}

bool has_line_break(std::string_view text) {
  return text.find_first_of("\r\n") != std::string_view::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::fuzz::CpuLimit limit;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t line = all.find('\n');
  if (line == std::string_view::npos) return 0;
  const std::string_view body = all.substr(line + 1);
  const auto parts = parse_multipart(all.substr(0, line), body);
  if (!parts.ok()) {
    quire::fuzz::check_error(parts.status());
    return 0;
  }
  const std::string boundary = "a boundary that no input happens to hold 7f3a";
  std::string again;
  for (const FormPart& part : *parts) {
    QUIRE_CHECK(part.body.empty() ||
                (part.body.data() >= body.data() && part.body.data() + part.body.size() <= body.data() + body.size()));
    if (has_line_break(part.name) || has_line_break(part.filename)) return 0;
    again += "--" + boundary + "\r\nContent-Disposition: form-data; name=" + quoted(part.name);
    if (!part.filename.empty()) again += "; filename=" + quoted(part.filename);
    again += "\r\n\r\n" + std::string(part.body) + "\r\n";
  }
  again += "--" + boundary + "--";
  const auto same = parse_multipart("multipart/form-data; boundary=" + quoted(boundary), again);
  QUIRE_CHECK(same.ok() && same->size() == parts->size());
  for (size_t i = 0; i < parts->size(); ++i) {
    QUIRE_CHECK((*same)[i].name == (*parts)[i].name && (*same)[i].filename == (*parts)[i].filename &&
                (*same)[i].body == (*parts)[i].body);
  }
  return 0;
}
