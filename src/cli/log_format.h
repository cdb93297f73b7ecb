// How log lines look on standard error.
#pragma once

namespace quire::cli {

// Once, before the first line: "2026-11-22 07:00:00.000 info message name=value"
void log_to_standard_error();
// One JSON object a line: "time" (UTC), "level", "message", and the line's fields.
void log_as_json();

}  // namespace quire::cli
