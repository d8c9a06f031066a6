// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
#include "int_dot_avx512_vnni.h"
#include "vec_avx512.h"

#define PAGEWIRE_ISA avx512_vnni
#define PAGEWIRE_TABLE kAvx512VnniKernels
#define PAGEWIRE_FLOATS avx512
#include "kernel_table.inl"
