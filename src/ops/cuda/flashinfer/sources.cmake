# FlashInfer's attention, one source a dtype and head size. Its headers are no header of ours: no warnings of theirs, and
# the flags that they are made for.
set(folder ${CMAKE_SOURCE_DIR}/src/ops/cuda/flashinfer)
target_sources(quire_ops_cuda PRIVATE ${folder}/flashinfer_attention.cpp ${folder}/kernels.cpp ${folder}/rows.cu
               ${folder}/short_runs.cu ${folder}/latent_plan.cu)
target_compile_definitions(quire_ops_cuda PRIVATE QUIRE_HAS_FLASHINFER)

function(quire_flashinfer_kernels target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(${target} SYSTEM PRIVATE ${quire_flashinfer_includes})
  target_link_libraries(${target} PRIVATE quire_ops CUDA::cudart_static)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -use_fast_math -static-global-template-stub=false
                                           -Xfatbin=-compress-all -w)
  target_sources(quire_ops_cuda PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

file(GLOB kernels CONFIGURE_DEPENDS ${folder}/fa2_*.cu ${folder}/latent_*16.cu)
quire_flashinfer_kernels(quire_flashinfer_fa2 ${folder}/plan.cu ${kernels})
# Hopper's own instructions, for a program that is built for Hopper.
if("90a-real" IN_LIST QUIRE_CUDA_ARCHITECTURES OR "90a" IN_LIST QUIRE_CUDA_ARCHITECTURES)
  file(GLOB kernels CONFIGURE_DEPENDS ${folder}/fa3_*.cu)
  quire_flashinfer_kernels(quire_flashinfer_fa3 ${kernels})
  set_target_properties(quire_flashinfer_fa3 PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_definitions(quire_flashinfer_fa3 PRIVATE CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED)
  target_compile_definitions(quire_ops_cuda PRIVATE QUIRE_HAS_FA3)
endif()
