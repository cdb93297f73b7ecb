// The document at /openapi.json (OpenAPI 3.1): what each route takes and answers.
#pragma once

#include <string>
#include <vector>

#include <boost/json.hpp>

#include "server/routes.h"

namespace quire::server {

// Of these routes and no others, which lie under `root_path`. REQUIRES: each is described, which a test holds.
boost::json::object openapi_document(const std::vector<Route>& routes, const std::string& version,
                                     const std::string& root_path = "");

// "GET /v1/models" for each route that is described, in the order of the description.
std::vector<std::string> described_routes();

}  // namespace quire::server
