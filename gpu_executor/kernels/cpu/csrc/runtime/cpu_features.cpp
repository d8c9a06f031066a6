#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace pagewire {

#if defined(__x86_64__)

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool cpu_has_avx512_vnni() { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool cpu_has_amx() {
#if defined(__linux__)
  // The names of these bits reached compilers' __builtin_cpu_supports late: leaf 7, EDX 24 (tiles) and 25 (int8).
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  unsigned eax, ebx, ecx, edx;
  if (!cpu_has_avx512_vnni() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & kAmxTile) || !(edx & kAmxInt8)) return false;
  // A tile register is 8 KiB for each task: Linux keeps them only for processes that ask.
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
#else
  return false;
#endif
}

bool cpu_has_neon_dot() { return false; }

#else

bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512_vnni() { return false; }
bool cpu_has_amx() { return false; }

bool cpu_has_neon_dot() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;  // every Apple processor that runs macOS has them
#else
  return false;
#endif
}

#endif

}  // namespace pagewire
