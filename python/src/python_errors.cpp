#include "python_errors.h"

#include <nanobind/stl/string.h>

#include <cctype>

namespace quire::python {
namespace nb = nanobind;

PyObject* kind_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return PyExc_ValueError;
    case StatusCode::kNotFound:
      return PyExc_FileNotFoundError;
    case StatusCode::kResourceExhausted:
      return PyExc_MemoryError;
    case StatusCode::kUnimplemented:
      return PyExc_NotImplementedError;
    case StatusCode::kDataLoss:
      return PyExc_OSError;
    case StatusCode::kDeadlineExceeded:
      return PyExc_TimeoutError;
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kUnavailable:
    case StatusCode::kInternal:
      break;
  }
  return PyExc_RuntimeError;
}

nb::object exception_of(const Status& status) {
  nb::object exception = nb::handle(kind_of(status.code()))(in_pythons_spelling(status.message()));
  exception.attr("param") = status.param().empty() ? nb::none() : nb::object(nb::str(status.param().c_str()));
  return exception;
}

void raise(const Status& status) {
  const nb::object exception = exception_of(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void raise(PyObject* kind, const std::string& message) {
  PyErr_SetString(kind, message.c_str());
  throw nb::python_error();
}

std::string in_pythons_spelling(std::string message) {
  size_t at = 0;
  while ((at = message.find("--", at)) != std::string::npos) {
    const bool begins = at == 0 || message[at - 1] == ' ' || message[at - 1] == '(' || message[at - 1] == '"';
    size_t end = at + 2;
    const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; };
    while (end < message.size() && is_part(message[end])) ++end;
    if (!begins || end - at < 4) {
      at += 2;
      continue;
    }
    for (size_t i = at + 2; i < end; ++i) {
      if (message[i] == '-') message[i] = '_';
    }
    message.erase(at, 2);
    at = end - 2;
  }
  return message;
}

}  // namespace quire::python
