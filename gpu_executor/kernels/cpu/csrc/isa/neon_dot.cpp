// 64-bit ARM with the dot product instructions of ARMv8.2.
#include "int_dot_neon_dot.h"
#include "vec_neon.h"

#define PAGEWIRE_ISA neon_dot
#define PAGEWIRE_TABLE kNeonDotKernels
#define PAGEWIRE_FLOATS neon
#include "kernel_table.inl"
