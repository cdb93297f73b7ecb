// The schemas of /openapi.json, as JSON: what bodies look like. server/openapi.cpp says where each is used.
#pragma once

namespace quire::server {

// {"Name": {...}, ...}
extern const char* const kRequestSchemas;
extern const char* const kAnswerSchemas;

}  // namespace quire::server
