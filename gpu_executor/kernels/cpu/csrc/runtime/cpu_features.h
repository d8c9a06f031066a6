// What this CPU can do, as far as kernels ask. An instruction set counts only if the operating system keeps its
// registers over a task switch.
#pragma once

namespace pagewire {

bool cpu_has_avx2();         // with FMA and F16C
bool cpu_has_avx512();       // F, BW, DQ and VL
bool cpu_has_avx512_vnni();  // and the above
bool cpu_has_amx();          // tiles of 8-bit integers, and the above. Asks Linux for their use.
bool cpu_has_neon_dot();     // 8-bit dot products

}  // namespace pagewire
