// Under which executor the suites of engines run: their own, or, with --executor=serialising, that behind bytes.
#pragma once

#include <memory>
#include <utility>

#include "runner/serialising_executor.h"
#include "tests/suites/serialises_steps.h"

namespace quire::suites {

inline std::unique_ptr<runner::Executor> chosen(std::unique_ptr<runner::Executor> executor) {
  return serialises_steps ? runner::make_serialising_executor(std::move(executor)) : std::move(executor);
}

}  // namespace quire::suites
