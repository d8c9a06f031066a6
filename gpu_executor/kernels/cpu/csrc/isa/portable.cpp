// Any CPU: plain C++, which the compiler turns into the vectors that all CPUs of an architecture have.
#include "int_dot_portable.h"
#include "vec_portable.h"

#define PAGEWIRE_ISA portable
#define PAGEWIRE_TABLE kPortableKernels
#include "kernel_table.inl"
