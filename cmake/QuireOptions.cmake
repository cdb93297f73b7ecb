# What a user may choose when configuring.
option(QUIRE_BUILD_TESTS "Build the tests" ON)
option(QUIRE_BUILD_BENCHMARKS "Build the kernel micro-benchmarks" ON)
option(QUIRE_BUILD_EXAMPLES "Build the example programs" ON)
option(QUIRE_WERROR "Warnings are errors (CI)" OFF)
set(QUIRE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
option(QUIRE_COVERAGE "Instrument for gcov" OFF)
option(QUIRE_FUZZ "Build tests/fuzz as libFuzzer programs (clang)" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QUIRE_CCACHE})
endif()
find_program(QUIRE_MOLD mold)
if(QUIRE_MOLD AND NOT QUIRE_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

# -Wrestrict of g++ 12 finds overlaps in the strings of the standard library that are none (GCC bug 105329).
# Results must not depend on how the compiler contracts or reorders sums: kernels say FMA where they mean it.
add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers -Wno-restrict -ffp-contract=off
                    -fno-math-errno)
# Files are named as a reader of the repository knows them, in logs and in assertions.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
if(QUIRE_WERROR)
  add_compile_options(-Werror)
endif()
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  if(QUIRE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
if(QUIRE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "QUIRE_FUZZ needs clang with libFuzzer, found ${CMAKE_CXX_COMPILER_ID}: cmake --preset fuzz")
  endif()
  # clang's "undefined" leaves out conversions of numbers that do not fit; libstdc++'s own checks find what stays inside
  # an allocation.
  add_compile_options(-gline-tables-only -fsanitize=fuzzer-no-link,float-cast-overflow -fno-sanitize-recover=float-cast-overflow
                      -Wno-unknown-warning-option)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()
if(QUIRE_COVERAGE)
  add_compile_options(--coverage -O1)
  add_link_options(--coverage)
endif()
