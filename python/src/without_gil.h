#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace quire::python {

// The interpreter's lock is released while it lives. A daemon thread that wants the lock back while the interpreter ends never
// gets it: up to Python 3.13 PyEval_RestoreThread() ends the thread there by unwinding its stack, which in a destructor, or in
// nanobind's frames further out, ends the process instead (nb::gil_scoped_release has this fault). So the thread stops here and
// sleeps until the process is gone, as from Python 3.14 on it does by itself.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();  // it must not leave this block, which would go on unwinding
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace quire::python
