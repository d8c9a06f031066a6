// What every native call runs on: kernels of one instruction set, one pool of threads, and the clock of a profile.
#pragma once

#include "../kernels/kernel_table.h"
#include "profile.h"
#include "thread_pool.h"

namespace pagewire {

struct Runtime {
  Runtime(const KernelTable& table, int num_threads) : kernels(table), pool(num_threads) {}

  const KernelTable& kernels;
  ThreadPool pool;
  Profile profile;
};

}  // namespace pagewire
