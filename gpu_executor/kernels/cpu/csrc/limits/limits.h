// What the machine can do, measured beside kernels: all threads of a pool, the kernels' own instruction set.
//
// Each call does a fixed amount of work and returns how much; the caller takes the time.
#pragma once

#include <cstdint>

#include "../runtime/runtime.h"

namespace pagewire {

// Read all whole pieces of 128 KiB, `passes` times, each thread its share in order; returns bytes.
int64_t read_memory(Runtime& runtime, const void* data, int64_t num_bytes, int64_t passes);

// Products in registers, and sums of 8-bit products from the level-1 cache; return operations, two a product.
int64_t multiply_floats(Runtime& runtime, int64_t rounds);
int64_t multiply_integers(Runtime& runtime, int64_t rounds);

}  // namespace pagewire
