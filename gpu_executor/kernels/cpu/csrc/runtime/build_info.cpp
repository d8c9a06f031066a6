// The only file that setup.py tells what it builds: PAGEWIRE_SOURCE_DIGEST, PAGEWIRE_HAS_<instruction set>.
#include "build_info.h"

#include "cpu_features.h"

namespace pagewire {

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512VnniKernels;
extern const KernelTable kAmxKernels;
extern const KernelTable kNeonKernels;
extern const KernelTable kNeonDotKernels;

const char* source_digest() { return PAGEWIRE_SOURCE_DIGEST; }

const BuiltKernels* built_kernels() {
  static const BuiltKernels kBuilt[] = {
#if PAGEWIRE_HAS_AMX
      {&kAmxKernels, cpu_has_amx},
#endif
#if PAGEWIRE_HAS_AVX512_VNNI
      {&kAvx512VnniKernels, cpu_has_avx512_vnni},
#endif
#if PAGEWIRE_HAS_AVX512
      {&kAvx512Kernels, cpu_has_avx512},
#endif
#if PAGEWIRE_HAS_AVX2
      {&kAvx2Kernels, cpu_has_avx2},
#endif
#if PAGEWIRE_HAS_NEON_DOT
      {&kNeonDotKernels, cpu_has_neon_dot},
#endif
#if PAGEWIRE_HAS_NEON
      {&kNeonKernels, [] { return true; }},  // part of 64-bit ARM
#endif
      {&kPortableKernels, [] { return true; }},
      {nullptr, nullptr},
  };
  return kBuilt;
}

}  // namespace pagewire
