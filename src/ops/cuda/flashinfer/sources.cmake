# FlashInfer's attention, one source a dtype and head size, a dtype's together in units. Its headers are no header of ours: no warnings of theirs, and
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

quire_kernel_units(kernels NAME quire_flashinfer FOLDER ${folder} KINDS fa2_bf16_* fa2_f16_* fa2_f8_* latent_*16)
quire_flashinfer_kernels(quire_flashinfer_fa2 ${folder}/plan.cu ${kernels})
# Hopper's own instructions, for a program that is built for Hopper.
if("90a-real" IN_LIST QUIRE_CUDA_ARCHITECTURES OR "90a" IN_LIST QUIRE_CUDA_ARCHITECTURES)
  quire_kernel_units(kernels NAME quire_flashinfer FOLDER ${folder} KINDS fa3_*_128 fa3_latent_*)
  quire_flashinfer_kernels(quire_flashinfer_fa3 ${kernels})
  set_target_properties(quire_flashinfer_fa3 PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_definitions(quire_ops_cuda PRIVATE QUIRE_HAS_FA3)
endif()
