// How a C interface says that there was no memory.
#pragma once

#include <cstdint>
#include <new>

namespace pagewire {

// Run what allocates: 0, or 1 if there was no memory for it. It allocates before it starts threads.
template <typename Body>
int32_t status_of(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace pagewire
