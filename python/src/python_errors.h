// quire's errors as Python's own kinds of exceptions, and what every call checks first.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/status.h"

namespace quire::python {

// The kind of exception that says what a code says.
PyObject* kind_of(StatusCode code);
// The exception itself, with the status's sentence; its `param` names the argument at fault, or is None.
nanobind::object exception_of(const Status& status);
[[noreturn]] void raise(const Status& status);
[[noreturn]] void raise(PyObject* kind, const std::string& message);

inline void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}

// "--max-model-len 9: too long" -> "max_model_len 9: too long": arguments as Python spells them.
std::string in_pythons_spelling(std::string message);

}  // namespace quire::python
