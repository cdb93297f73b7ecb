// For the emulated device: what FlashInfer uses of this is in cuda_runtime.h.
#pragma once

#include <cuda_runtime.h>
