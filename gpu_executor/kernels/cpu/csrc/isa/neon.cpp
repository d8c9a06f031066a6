// 64-bit ARM, any.
#include "int_dot_neon.h"
#include "vec_neon.h"

#define PAGEWIRE_ISA neon
#define PAGEWIRE_TABLE kNeonKernels
#include "kernel_table.inl"
