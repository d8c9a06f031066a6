// x86-64 with AVX-512 F, BW, DQ and VL.
#include "int_dot_avx512.h"
#include "vec_avx512.h"

#define PAGEWIRE_ISA avx512
#define PAGEWIRE_TABLE kAvx512Kernels
#include "kernel_table.inl"
