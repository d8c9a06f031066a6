// Which kernels run.
#include <cstring>

#include "build_info.h"

namespace pagewire {

const KernelTable* find_kernels(const char* name_or_auto) {
  const bool any = std::strcmp(name_or_auto, "auto") == 0;
  for (const BuiltKernels* built = built_kernels(); built->table != nullptr; ++built) {
    if ((any || std::strcmp(name_or_auto, built->table->name) == 0) && built->runs_here()) return built->table;
  }
  return nullptr;
}

}  // namespace pagewire
