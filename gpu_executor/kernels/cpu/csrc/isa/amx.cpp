// x86-64 with AMX's tiles of 8-bit integers, and AVX-512 with VNNI.
#include "int_dot_amx.h"
#include "vec_avx512.h"

#define PAGEWIRE_ISA amx
#define PAGEWIRE_TABLE kAmxKernels
#define PAGEWIRE_FLOATS avx512
#define PAGEWIRE_INTEGERS avx512_vnni
#include "kernel_table.inl"
