// Whether the emulated cards reach each other's memory.
#pragma once

namespace quire::cuda_on_host {

void let_cards_reach_each_other(bool reach);  // they do, unless told otherwise
int meetings_of_cards();                      // that have been, of all groups together: sums out of each other's memory

}  // namespace quire::cuda_on_host
