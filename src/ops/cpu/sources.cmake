# Kernels are one source each, compiled once for every instruction set: *.kernels.cpp. Everything else is plain.
quire_library(ops/cpu DEPS quire_ops EXCLUDE "\\.kernels\\.cpp$")

# quire_cpu_kernels(avx2 -mavx2 ...): the kernels once more, in namespace avx2, with these flags.
function(quire_cpu_kernels isa)
  set(objects quire_ops_cpu_${isa})
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cpu/*.kernels.cpp)
  add_library(${objects} OBJECT ${kernels})
  target_include_directories(${objects} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(${objects} PRIVATE QUIRE_ISA=${isa})
  # Vectors wider than the set's registers are internal to a kernel: no calling convention is concerned.
  target_compile_options(${objects} PRIVATE -Wno-psabi ${ARGN})
  target_sources(quire_ops_cpu PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Hardly a machine of this kind runs them, and at -O3 they take a compiler longest.
  quire_cpu_kernels(portable $<$<CONFIG:Release>:-O2>)
  quire_cpu_kernels(avx2 -mavx2 -mfma -mf16c -mbmi2)
  quire_cpu_kernels(avx512 -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
else()
  quire_cpu_kernels(portable)
endif()
