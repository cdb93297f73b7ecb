# The card's backend. Needs the CUDA toolkit to compile and no card; the program loads the driver and cuBLASLt when it
# uses one, so that it starts where there is neither.
if(QUIRE_CUDA)
  set(type STATIC)
  if(QUIRE_CUDA_SHARED)  # by several programs of one folder (scripts/cuda_check.sh)
    set(type SHARED)
  endif()
  quire_library(ops/cuda TYPE ${type} DEPS quire_ops CUDA::cudart_static)
  set_target_properties(quire_ops_cuda PROPERTIES DEFINE_SYMBOL "")  # so that objects are the same
  if(QUIRE_CUDA_SHARED)  # Debian's archive of it is of no use to a shared library
    target_sources(quire_ops_cuda PRIVATE $<TARGET_OBJECTS:dep_boost_json_shared>)
  endif()
  quire_card_kernels(kernels NAME quire_ops_cuda)
  target_sources(quire_ops_cuda PRIVATE ${kernels})
  # Headers of C++ that kernels share call constexpr functions; those are fine on a card.
  target_compile_options(quire_ops_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xfatbin=-compress-all>")
  if(QUIRE_CUDA_ARCHITECTURES MATCHES "(^|;)90a")
    target_compile_definitions(quire_ops_cuda PRIVATE QUIRE_BUILT_FOR_HOPPER)
  endif()
  target_link_libraries(quire_ops_cuda PRIVATE ${CMAKE_DL_LIBS})
  if(quire_flashinfer_includes)
    include(ops/cuda/flashinfer/sources.cmake)
  endif()
endif()
