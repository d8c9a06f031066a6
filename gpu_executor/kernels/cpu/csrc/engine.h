// What a C API handle stands for.
#pragma once

#include "model/single_ops.h"
#include "runtime/runtime.h"

namespace pagewire {

struct Engine {
  Engine(const KernelTable& table, int num_threads) : runtime(table, num_threads), ops(runtime) {}

  Runtime runtime;
  SingleOps ops;
};

}  // namespace pagewire
