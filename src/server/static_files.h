// The page at / and /dashboard: the files of web/, part of the program.
//
// They are open to everybody, since they hold no secret: what the page asks the server for carries the key that its
// user enters. A policy lets the page load from, and talk to, this server alone, and keeps it out of frames.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/routes.h"

namespace quire::server {

struct StaticFile {
  std::string_view name;          // "chat.js"
  std::string_view content_type;  // "text/javascript; charset=utf-8"
  std::string_view etag;          // of its bytes, quoted
  std::string_view bytes;
};

// In the order of their names. Made while building, by cmake/EmbedFiles.cmake.
std::span<const StaticFile> static_files();

// The file, or 304 without it where the request's If-None-Match names it. Clients may keep it, and ask each time.
HttpResponse static_response(const StaticFile& file, std::string_view if_none_match);

// "/" for index.html, "/dashboard" for dashboard.html, "/page/NAME" for the others; all open.
std::vector<Route> page_routes();

}  // namespace quire::server
