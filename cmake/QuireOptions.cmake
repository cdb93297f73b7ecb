# What a user may choose when configuring.
option(QUIRE_BUILD_TESTS "Build the tests" ON)
option(QUIRE_BUILD_BENCHMARKS "Build the kernel micro-benchmarks" ON)
option(QUIRE_BUILD_EXAMPLES "Build the example programs" ON)
option(QUIRE_BUILD_LIBRARY "Build libquire.so, for C and whatever speaks C" ON)
set(QUIRE_PYTHON OFF CACHE STRING
    "Build the Python package's extension: ON fetches nanobind (0.3 MB), OFF, or AUTO, where Python's headers are found")
option(QUIRE_WERROR "Warnings are errors (CI)" OFF)
set(QUIRE_TEST_DATA ${CMAKE_SOURCE_DIR}/tests/data CACHE STRING "Where test programs find their files, as they are run")
set(QUIRE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
option(QUIRE_COVERAGE "Instrument for gcov" OFF)
set(QUIRE_CUDA AUTO CACHE STRING "Build for NVIDIA's cards too: ON, OFF, or AUTO, where the CUDA toolkit is found")
option(QUIRE_CUDA_SHARED "The kernels of cards as a shared library" OFF)
set(QUIRE_CUDA_ARCHITECTURES "80-real;89-real;90a-real;100-real;80-virtual" CACHE STRING
    "Cards to build for, as CMAKE_CUDA_ARCHITECTURES; later ones translate the virtual one when they start")
set(QUIRE_FLASHINFER AUTO CACHE STRING
    "FlashInfer's attention on NVIDIA's cards: ON fetches its headers (62 MB), OFF, or AUTO, where they were fetched before")
set(QUIRE_MPI AUTO CACHE STRING "One model over several hosts by MPI: ON, OFF, or AUTO, where MPI is found")
set(QUIRE_RAY AUTO CACHE STRING
    "One model over the nodes of a Ray cluster: ON fetches Ray's C++ headers (30 MB), OFF, or AUTO, where they were fetched before")
option(QUIRE_UNITY "Compile several sources of a folder at once: a clean build takes a third, one after a change in one source longer" OFF)
set(QUIRE_ISAS all CACHE STRING
    "Instruction sets of the CPU's kernels: all, for a program that travels; runnable, those that this machine runs; native, the best of these; or names (portable;avx2;avx512)")
option(QUIRE_FUZZ "Build tests/fuzz as libFuzzer programs (clang)" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(QUIRE_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  set(QUIRE_CUDA ${CMAKE_CUDA_COMPILER})
  if(QUIRE_SANITIZE OR QUIRE_FUZZ OR QUIRE_COVERAGE OR NOT QUIRE_CUDA)
    set(QUIRE_CUDA OFF)
  endif()
endif()
if(QUIRE_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${QUIRE_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit 12.9 REQUIRED)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: also for NVIDIA's cards (QUIRE_CUDA_ARCHITECTURES: ${QUIRE_CUDA_ARCHITECTURES})")
else()
  message(STATUS "No CUDA: for the CPU alone")
endif()

if(QUIRE_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # its C calls alone
  if(QUIRE_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS CXX)
    set(QUIRE_MPI ${MPI_CXX_FOUND})
    if(QUIRE_FUZZ)
      set(QUIRE_MPI OFF)
    endif()
  else()
    find_package(MPI REQUIRED COMPONENTS CXX)
  endif()
endif()
if(QUIRE_MPI)
  message(STATUS "MPI: one model over several hosts (${MPI_CXX_LIBRARIES})")
else()
  message(STATUS "No MPI: one model over one host alone")
endif()

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What was compiled in one checkout is found from another: files are named from here, and no object names the folder it
  # was made in (-ffile-prefix-map below).
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${QUIRE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
find_program(QUIRE_MOLD mold)
if(QUIRE_MOLD AND NOT QUIRE_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Below 1 GB it leaves its garbage where it is: a tenth of its time.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>")
endif()

# -Wrestrict of g++ 12 finds overlaps in the strings of the standard library that are none (GCC bug 105329).
# Results must not depend on how the compiler contracts or reorders sums: kernels say FMA where they mean it.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wno-missing-field-initializers;-Wno-restrict;-ffp-contract=off;-fno-math-errno>")
# Files are named as a reader of the repository knows them, in logs and in assertions; ccache gives the compiler their
# names as seen from the build folder.
file(RELATIVE_PATH source_from_build ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
foreach(folder ${CMAKE_SOURCE_DIR} ${source_from_build})
  string(REGEX REPLACE "/$" "" folder ${folder})
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${folder}/=>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${folder}/=>")
endforeach()
if(QUIRE_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>" "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
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
