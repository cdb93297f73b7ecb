// Captures that the emulated device refuses, as a card may for reasons of its own.
#pragma once

namespace quire::cuda_on_host {

// Of all calls that are captured from here on, the one with this number, from 0: it and the rest of its capture fail.
// -1: none.
void refuse_captured_call(int number);

}  // namespace quire::cuda_on_host
