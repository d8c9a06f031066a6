// x86-64 with AVX2, FMA and F16C.
#include "int_dot_avx2.h"
#include "vec_avx2.h"

#define PAGEWIRE_ISA avx2
#define PAGEWIRE_TABLE kAvx2Kernels
#include "kernel_table.inl"
