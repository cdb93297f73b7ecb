# FlashInfer's FA2 and latent attention on the emulated device: its own headers with stand-ins for those that are
# written in a card's machine language. FA3 has none.
set(flashinfer_sources ${CMAKE_SOURCE_DIR}/src/ops/cuda/flashinfer)
list(GET quire_flashinfer_includes 0 flashinfer_headers)
# g++ wants the word `template` in places where nvcc does without. Where latent attention trusts the lanes of a warp to be
# together between what they write to shared memory and read, they meet.
foreach(header attention/prefill attention/mla vec_dtypes)
  file(READ ${flashinfer_headers}/flashinfer/${header}.cuh text)
  string(REGEX REPLACE "(smem[_a-z]*)\\.(get_permuted_offset|load_[a-z0-9_]*)<" "\\1.template \\2<" text "${text}")
  string(REPLACE ">::cast<" ">::template cast<" text "${text}")
  string(REPLACE "// step 1. smem to gmem" "__syncwarp();" text "${text}")
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/flashinfer/flashinfer/${header}.cuh CONTENT "${text}" @ONLY)
endforeach()

quire_kernel_units(flashinfer_kernels NAME quire_flashinfer_on_host FOLDER ${flashinfer_sources}
                   KINDS fa2_bf16_* fa2_f16_* fa2_f8_* latent_*16)
list(APPEND flashinfer_kernels ${flashinfer_sources}/plan.cu)
set(own_kernels ${flashinfer_sources}/rows.cu ${flashinfer_sources}/short_runs.cu ${flashinfer_sources}/latent_plan.cu)
set_source_files_properties(${flashinfer_kernels} ${own_kernels} PROPERTIES
                            LANGUAGE CXX COMPILE_OPTIONS "-x;c++;-Wno-unknown-pragmas")
add_library(quire_flashinfer_on_host OBJECT ${flashinfer_kernels})
# The card that its headers shall be read for.
target_compile_definitions(quire_flashinfer_on_host PRIVATE __CUDA_ARCH__=800)
target_compile_options(quire_flashinfer_on_host PRIVATE -include flashinfer_on_host.h -w -fno-strict-aliasing
                       $<$<CONFIG:Release>:-O2> $<$<BOOL:${QUIRE_HOST_HAS_FMA}>:-mfma>
                       -fno-sanitize=undefined)  # what it finds there is not ours
target_include_directories(quire_flashinfer_on_host PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/flashinfer
                           ${CMAKE_CURRENT_SOURCE_DIR}/include)
target_include_directories(quire_flashinfer_on_host SYSTEM PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/flashinfer
                           ${flashinfer_headers} ${flashinfer_headers}/flashinfer/attention)
target_link_libraries(quire_flashinfer_on_host PRIVATE quire_ops)
target_sources(quire_ops_cuda_on_host PRIVATE $<TARGET_OBJECTS:quire_flashinfer_on_host> ${own_kernels}
               ${flashinfer_sources}/flashinfer_attention.cpp ${flashinfer_sources}/kernels.cpp)
target_compile_definitions(quire_ops_cuda_on_host PRIVATE QUIRE_HAS_FLASHINFER)
