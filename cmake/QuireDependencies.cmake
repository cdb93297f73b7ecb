# Every third-party library, found once. Versions: dependencies.txt. Static archives are preferred, so that the
# binary travels.
set(Boost_USE_STATIC_LIBS ON)
set(Boost_NO_WARN_NEW_VERSIONS ON)  # 1.81 is newer than what this CMake knows; the components used have no others
find_package(Boost 1.81 EXACT REQUIRED COMPONENTS json)
find_package(Threads REQUIRED)
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(OpenSSL REQUIRED)
find_package(CLI11 REQUIRED)

function(quire_static_dependency target header archive)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  find_library(${target}_ARCHIVE NAMES ${archive} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
  target_link_libraries(${target} INTERFACE ${${target}_ARCHIVE})
endfunction()

# Debian has fmt as a shared library or as headers alone, which every source would compile again: made here, once.
find_path(dep_fmt_INCLUDE fmt/format-inl.h REQUIRED)
add_library(dep_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_library.cpp)
target_include_directories(dep_fmt SYSTEM PUBLIC ${dep_fmt_INCLUDE})
find_path(dep_spdlog_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(dep_spdlog INTERFACE)
target_include_directories(dep_spdlog SYSTEM INTERFACE ${dep_spdlog_INCLUDE})
target_compile_definitions(dep_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(dep_spdlog INTERFACE dep_fmt)

quire_static_dependency(dep_pcre2 pcre2.h libpcre2-8.a)
quire_static_dependency(dep_utf8proc utf8proc.h libutf8proc.a)
target_compile_definitions(dep_utf8proc INTERFACE UTF8PROC_STATIC)
quire_static_dependency(dep_xxhash xxhash.h libxxhash.a)
quire_static_dependency(dep_prometheus prometheus/registry.h libprometheus-cpp-core.so)
# libedit has a static archive, but its terminal database is better the host's own.
quire_static_dependency(dep_edit histedit.h libedit.so)

# Source packages: fetched once into the user's cache folder, compiled with our flags but without our warnings.
set(QUIRE_XGRAMMAR_SOURCE "" CACHE PATH "xgrammar's source; empty: what scripts/fetch_sources.sh fetches")
set(xgrammar_source ${QUIRE_XGRAMMAR_SOURCE})
if(NOT xgrammar_source)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch_sources.sh xgrammar
                  OUTPUT_VARIABLE xgrammar_source OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
file(GLOB xgrammar_sources ${xgrammar_source}/cpp/*.cc ${xgrammar_source}/cpp/support/*.cc ${xgrammar_source}/cpp/converter_ext/*.cc)
if(NOT xgrammar_sources)
  message(FATAL_ERROR "No xgrammar in '${xgrammar_source}': leave QUIRE_XGRAMMAR_SOURCE empty, or name its unpacked source package.")
endif()
# It is kept beside its sources, once compiled, for the next build with the same compiler and options.
set(xgrammar_archive "")
if(NOT QUIRE_XGRAMMAR_SOURCE)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  get_directory_property(options COMPILE_OPTIONS)
  list(FILTER options EXCLUDE REGEX Werror)  # its warnings are off
  file(SHA256 ${CMAKE_CURRENT_LIST_FILE} recipe)
  string(REPLACE "${CMAKE_SOURCE_DIR}" "" made_with
         "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}} ${CMAKE_BUILD_TYPE} ${options} ${recipe}")
  string(SHA256 made_with "${made_with}")
  string(SUBSTRING ${made_with} 0 12 made_with)
  get_filename_component(name ${xgrammar_source} NAME)
  get_filename_component(cache ${xgrammar_source}/../../archives ABSOLUTE)
  set(xgrammar_archive ${cache}/${name}-${made_with}.a)
endif()
if(xgrammar_archive AND EXISTS ${xgrammar_archive})
  message(STATUS "xgrammar: compiled before, ${xgrammar_archive}")
  add_library(dep_xgrammar STATIC IMPORTED GLOBAL)
  set_target_properties(dep_xgrammar PROPERTIES IMPORTED_LOCATION ${xgrammar_archive})
  set(kind INTERFACE)
else()
  # Few and large units: its headers take longest.
  quire_units(xgrammar_units NAME dep_xgrammar FROM ${xgrammar_source} SOURCES ${xgrammar_sources} BYTES 400000)
  add_library(dep_xgrammar STATIC ${xgrammar_units})
  set(kind PUBLIC)
  target_include_directories(dep_xgrammar PRIVATE ${xgrammar_source}/3rdparty/picojson ${xgrammar_source})
  target_compile_options(dep_xgrammar PRIVATE -w -ffile-prefix-map=${xgrammar_source}/= $<$<CONFIG:Release>:-O2>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # In C++20 its vectors' members are constexpr, and clang wants their types whole where xgrammar has only named them.
    set_target_properties(dep_xgrammar PROPERTIES CXX_STANDARD 17)
  endif()
  if(xgrammar_archive)
    add_custom_command(TARGET dep_xgrammar POST_BUILD VERBATIM
      COMMAND ${CMAKE_COMMAND} -DARCHIVE=$<TARGET_FILE:dep_xgrammar> -DKEPT=${xgrammar_archive}
              -P ${CMAKE_CURRENT_LIST_DIR}/KeepArchive.cmake)
  endif()
endif()
target_include_directories(dep_xgrammar SYSTEM ${kind} ${xgrammar_source}/include ${xgrammar_source}/3rdparty/dlpack/include)
target_compile_definitions(dep_xgrammar ${kind} XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
target_link_libraries(dep_xgrammar ${kind} Threads::Threads)

# FlashInfer's headers, and those of CUTLASS that come with them: quire_flashinfer_includes, empty without.
set(QUIRE_FLASHINFER_SOURCE "" CACHE PATH "FlashInfer's unpacked wheel; empty: what scripts/fetch_sources.sh fetches")
set(quire_flashinfer_includes "")
if(QUIRE_FLASHINFER AND (QUIRE_CUDA OR QUIRE_BUILD_TESTS))
  set(flashinfer_source ${QUIRE_FLASHINFER_SOURCE})
  if(NOT flashinfer_source)
    set(if_there "")
    if(QUIRE_FLASHINFER STREQUAL "AUTO")
      set(if_there --if-there)
    endif()
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch_sources.sh flashinfer-python ${if_there}
                    OUTPUT_VARIABLE flashinfer_source OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  endif()
  set(flashinfer_data ${flashinfer_source}/flashinfer/data)
  if(EXISTS ${flashinfer_data}/include/flashinfer/attention/prefill.cuh)
    set(quire_flashinfer_includes ${flashinfer_data}/include ${flashinfer_data}/cutlass/include
                                  ${flashinfer_data}/cutlass/tools/util/include)
    message(STATUS "FlashInfer: ${flashinfer_source}")
  elseif(NOT QUIRE_FLASHINFER STREQUAL "AUTO")
    message(FATAL_ERROR "No FlashInfer in '${flashinfer_source}': leave QUIRE_FLASHINFER_SOURCE empty, or name its unpacked wheel.")
  endif()
endif()

if(QUIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(QUIRE_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
