// How many cards there are.
#pragma once

namespace quire::cuda_on_host {

// From here on; 1 at first. They share one memory, and take turns as the streams of one card do.
void have_cards(int count);

}  // namespace quire::cuda_on_host
