# Kernels are one source each, compiled once for every instruction set: *.kernels.cpp. Everything else is plain.
quire_library(ops/cpu DEPS quire_ops EXCLUDE "\\.kernels\\.cpp$")
