// What stands for NCCL on the emulated device: ranks that are threads of one process.
#pragma once

namespace quire::ops::cuda {

// Whether it is found from here on; at first it is not.
void offer_nccl(bool offers);
// On these ranks alone its communicators do not begin (bit r: rank r).
void refuse_nccl_on(unsigned ranks);
// Sums and messages that were done, on all ranks, since the process began.
int nccl_sums();
int nccl_messages();

}  // namespace quire::ops::cuda
