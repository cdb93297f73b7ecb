// For a host that plays the card: what FlashInfer uses of this is in cuda_runtime.h.
#pragma once

#include <cuda_runtime.h>
