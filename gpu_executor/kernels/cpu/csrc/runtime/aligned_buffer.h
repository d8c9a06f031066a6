// Memory that grows as it is asked to, and begins on a cache line.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace pagewire {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  AlignedBuffer(AlignedBuffer&& other) noexcept : data_(other.data_), num_bytes_(other.num_bytes_) {
    other.data_ = nullptr;
    other.num_bytes_ = 0;
  }

  // At least so many bytes from now on. What was in it is lost when it grows.
  void reserve(int64_t num_bytes) {
    if (num_bytes <= num_bytes_) return;
    std::free(data_);
    data_ = nullptr;
    num_bytes_ = 0;
    // Whole cache lines, and one more: vectors may read (not use) what lies beyond the last element.
    const int64_t rounded = (num_bytes + 127) / 64 * 64;
    if (posix_memalign(&data_, 64, static_cast<size_t>(rounded)) != 0) {
      data_ = nullptr;
      throw std::bad_alloc();
    }
    num_bytes_ = num_bytes;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace pagewire
