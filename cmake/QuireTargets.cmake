# One static library a folder, one test program a folder: the sources are whatever lies there.

# quire_units(out NAME units-of-a-library FROM folder SOURCES ... [BYTES n])  ->  what to compile for these sources. With
# QUIRE_UNITY some units that include several of them each: most of a source's time goes into headers, which a unit reads
# once. So a name in an unnamed namespace stands for one thing in a folder. Units name their sources as seen from FROM,
# an include folder of the target, so that a compiler cache knows them again in another checkout. They are sources of the
# language of EXTENSION, C++'s unless it is given.
function(quire_units out)
  cmake_parse_arguments(ARG "" "NAME;FROM;BYTES;EXTENSION" "SOURCES" ${ARGN})
  list(LENGTH ARG_SOURCES count)
  if(NOT QUIRE_UNITY OR count LESS 2)
    set(${out} ${ARG_SOURCES} PARENT_SCOPE)
    return()
  endif()
  if(NOT ARG_EXTENSION)
    set(ARG_EXTENSION cpp)
  endif()
  if(NOT ARG_BYTES)
    set(ARG_BYTES 130000)  # some tens of seconds of a compiler: enough of them for every core
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    if(cores LESS 4 AND ARG_EXTENSION STREQUAL "cpp")
      set(ARG_BYTES 400000)  # few cores are busy all the time, and headers are read less often
    endif()
  endif()
  set(units "")
  set(number 0)
  set(bytes 0)
  set(text "")
  foreach(source ${ARG_SOURCES})
    file(SIZE ${source} size)
    if(text AND bytes GREATER 0)
      math(EXPR together "${bytes} + ${size}")
      if(together GREATER ARG_BYTES)
        list(APPEND units ${number})
        set(text_${number} "${text}")
        math(EXPR number "${number} + 1")
        set(bytes 0)
        set(text "")
      endif()
    endif()
    file(RELATIVE_PATH name ${ARG_FROM} ${source})
    string(APPEND text "#include \"${name}\"\n")
    math(EXPR bytes "${bytes} + ${size}")
  endforeach()
  list(APPEND units ${number})
  set(text_${number} "${text}")
  set(files "")
  foreach(unit ${units})
    set(file ${CMAKE_BINARY_DIR}/units/${ARG_NAME}_${unit}.${ARG_EXTENSION})
    file(CONFIGURE OUTPUT ${file} CONTENT "${text_${unit}}" @ONLY)  # leaves a file as it is that would not change
    list(APPEND files ${file})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND ARG_EXTENSION STREQUAL "cpp")
    # It takes the sources of a unit for headers, whose types must not have members from unnamed namespaces.
    set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS -Wno-subobject-linkage)
  endif()
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# quire_kernel_units(out NAME quire_ops_cuda FOLDER folder KINDS "fa2_bf16_*" "elementwise|moe" ... [OTHERS])  ->  as quire_units, of
# kernels of cards: those of the folder that one of KINDS names are together in units. Their headers take nvcc several seconds.
# OTHERS: and all else that the folder has, each by itself.
function(quire_kernel_units out)
  cmake_parse_arguments(ARG "OTHERS" "NAME;FOLDER" "KINDS" ${ARGN})
  set(all "")
  set(of_a_kind "")
  foreach(kind ${ARG_KINDS})
    string(REPLACE "|" ";" patterns ${kind})
    list(TRANSFORM patterns REPLACE "(.+)" "${ARG_FOLDER}/\\1.cu")
    file(GLOB kernels CONFIGURE_DEPENDS ${patterns})
    list(APPEND of_a_kind ${kernels})
    string(MAKE_C_IDENTIFIER ${kind} name)
    quire_units(units NAME ${ARG_NAME}_${name} FROM ${CMAKE_SOURCE_DIR}/src EXTENSION cu SOURCES ${kernels})
    list(APPEND all ${units})
  endforeach()
  if(ARG_OTHERS)
    file(GLOB others CONFIGURE_DEPENDS ${ARG_FOLDER}/*.cu)
    list(REMOVE_ITEM others ${of_a_kind})
    list(APPEND all ${others})
  endif()
  set(${out} ${all} PARENT_SCOPE)
endfunction()

# quire_card_kernels(out NAME quire_ops_cuda)  ->  the kernels of src/ops/cuda. In units those that are compiled soon.
function(quire_card_kernels out)
  cmake_parse_arguments(ARG "" "NAME" "" ${ARGN})
  quire_kernel_units(kernels NAME ${ARG_NAME} FOLDER ${CMAKE_SOURCE_DIR}/src/ops/cuda
                     KINDS grouped_tiles* elementwise|few_rows|kv_cache|launch|moe OTHERS)
  set(${out} ${kernels} PARENT_SCOPE)
endfunction()

# quire_library(ops/cpu DEPS quire_ops ... [EXCLUDE regex] [TYPE STATIC])  ->  target quire_ops_cpu
function(quire_library folder)
  cmake_parse_arguments(ARG "" "EXCLUDE;TYPE" "DEPS" ${ARGN})
  if(NOT ARG_TYPE)
    set(ARG_TYPE STATIC)
  endif()
  string(REPLACE "/" "_" name ${folder})
  set(target quire_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${ARG_EXCLUDE})
  endif()
  if(sources)
    quire_units(units NAME ${target} FROM ${CMAKE_SOURCE_DIR}/src SOURCES ${sources})
    add_library(${target} ${ARG_TYPE} ${units})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${target} PUBLIC ${ARG_DEPS})
  else()  # headers only
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# What a compiler may spend on code that is run once, as that of tests and of command lines: at -O3 it would take a third
# longer, and what it calls is in the libraries. LEVEL: -O1 unless it is given; -O0 takes a third less than that.
function(quire_compile_quickly target)
  cmake_parse_arguments(ARG "" "LEVEL" "" ${ARGN})
  if(NOT ARG_LEVEL)
    set(ARG_LEVEL -O1)
  endif()
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${ARG_LEVEL}>)
endfunction()

# quire_test_suites(test_kv PREFIX kv. [CONTAINS cuda] [CASES 100] [TIMEOUT 600] [COST 1])  ->  a test of ctest for each suite of
# the program: a process for each case would spend its time on starting. Suites of more cases than CASES are cut, so that
# every core has work to the end. CONTAINS: only cases with this in their name. COST: about how many seconds the longest of
# them takes; those of more begin first, so that none is left over when all others have ended.
function(quire_test_suites target)
  cmake_parse_arguments(ARG "" "PREFIX;CONTAINS;CASES;TIMEOUT;COST;ARGUMENT" "" ${ARGN})
  if(NOT ARG_CASES)
    set(ARG_CASES 150)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 1)
  endif()
  string(MAKE_C_IDENTIFIER "${target}${ARG_ARGUMENT}" name)
  set(tests ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  set(script ${CMAKE_SOURCE_DIR}/cmake/ListSuites.cmake)
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${tests}
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${target}> -DPREFIX=${ARG_PREFIX} "-DCONTAINS=${ARG_CONTAINS}"
            -DARGUMENT=${ARG_ARGUMENT} -DCASES=${ARG_CASES} -DTIMEOUT=${ARG_TIMEOUT} -DCOST=${ARG_COST} -DSKIPPED=${CMAKE_BINARY_DIR}/skipped -DOUTPUT=${tests} -P ${script}
    VERBATIM)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
  # Before the program is built there is nothing to list.
  file(CONFIGURE OUTPUT ${tests}.in CONTENT "if(EXISTS \"${tests}\")\n  include(\"${tests}\")\nelse()\n  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)\nendif()\n" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${tests}.in)
endfunction()

# quire_test(kv DEPS quire_kv [COST 1])  ->  program test_kv from tests/kv/*_test.cpp (and helpers *.cpp beside them)
# With CARDS the sources are objects by themselves, test_kv_objects: another program links them with another card.
# APART: sources that are compiled by themselves, for names that others of the folder have too. COMPUTES: its own code runs for
# long, and is to be optimised. SERIALISES: its engines' steps pass through bytes in a second run of all suites.
function(quire_test folder)
  cmake_parse_arguments(ARG "CARDS;COMPUTES;SERIALISES" "COST" "DEPS;APART" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  set(apart ${ARG_APART})
  list(TRANSFORM apart PREPEND ${CMAKE_SOURCE_DIR}/tests/${folder}/)
  list(REMOVE_ITEM sources ${apart} "")
  quire_units(units NAME test_${name} FROM ${CMAKE_SOURCE_DIR} SOURCES ${sources})
  list(APPEND units ${apart})
  set(compiled test_${name})
  if(ARG_CARDS)
    set(compiled test_${name}_objects)
    add_library(${compiled} OBJECT ${units})
    add_executable(test_${name} ${CMAKE_SOURCE_DIR}/tests/cards/card.cpp)
    target_link_libraries(test_${name} PRIVATE ${compiled})
  else()
    add_executable(test_${name} ${units})
  endif()
  target_include_directories(${compiled} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${compiled} PRIVATE QUIRE_TEST_DATA="${QUIRE_TEST_DATA}")
  target_link_libraries(${compiled} PUBLIC ${ARG_DEPS} quire_test_main)
  quire_compile_quickly(${compiled} LEVEL $<IF:$<BOOL:${ARG_COMPUTES}>,-O1,-O0>)
  quire_test_suites(test_${name} PREFIX ${name}. COST ${ARG_COST})
  if(ARG_SERIALISES)
    quire_test_suites(test_${name} PREFIX ${name}.serialising. COST ${ARG_COST} ARGUMENT --executor=serialising)
  endif()
endfunction()
