// Decoding of one new token per sequence, whose keys are in pages.
constexpr bool kPaged = true;
#include "attend.cuh"
