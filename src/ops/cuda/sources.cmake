# The card's backend. Needs the CUDA toolkit to compile and no card; the program loads the driver and cuBLASLt when it
# uses one, so that it starts where there is neither.
if(QUIRE_CUDA)
  quire_library(ops/cuda DEPS quire_ops CUDA::cudart_static)
  quire_card_kernels(kernels NAME quire_ops_cuda)
  target_sources(quire_ops_cuda PRIVATE ${kernels})
  # Headers of C++ that kernels share call constexpr functions; those are fine on a card.
  target_compile_options(quire_ops_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xfatbin=-compress-all>")
  target_link_libraries(quire_ops_cuda PRIVATE ${CMAKE_DL_LIBS})
  if(quire_flashinfer_includes)
    include(ops/cuda/flashinfer/sources.cmake)
  endif()
endif()
