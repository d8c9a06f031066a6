// What the build was made from.
#pragma once

#include "../kernels/kernel_table.h"

namespace pagewire {

// The digest of all sources, see setup.py.
const char* source_digest();

struct BuiltKernels {
  const KernelTable* table;
  bool (*runs_here)();  // whether this CPU, and the operating system, can run it
};

// What was built for this architecture, the best first; ends with a null table.
const BuiltKernels* built_kernels();

}  // namespace pagewire
