# Every third-party library, found once. Versions: dependencies.txt. Static archives are preferred, so that the
# binary travels.
set(Boost_USE_STATIC_LIBS ON)
set(Boost_NO_WARN_NEW_VERSIONS ON)  # 1.81 is newer than what this CMake knows; the components used have no others
find_package(Boost 1.81 EXACT REQUIRED COMPONENTS json)
find_package(Threads REQUIRED)
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(OpenSSL REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)

function(quire_static_dependency target header archive)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  find_library(${target}_ARCHIVE NAMES ${archive} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
  target_link_libraries(${target} INTERFACE ${${target}_ARCHIVE})
endfunction()

quire_static_dependency(dep_pcre2 pcre2.h libpcre2-8.a)
quire_static_dependency(dep_utf8proc utf8proc.h libutf8proc.a)
target_compile_definitions(dep_utf8proc INTERFACE UTF8PROC_STATIC)
quire_static_dependency(dep_xxhash xxhash.h libxxhash.a)
quire_static_dependency(dep_prometheus prometheus/registry.h libprometheus-cpp-core.so)
# libedit has a static archive, but its terminal database is better the host's own.
quire_static_dependency(dep_edit histedit.h libedit.so)

if(QUIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(QUIRE_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
