// The intrinsics that the AVX-512, VNNI and AMX kernels use, in plain C++ after Intel's manual: lane by lane, so that
// those kernels can be checked on machines without the instructions.
//
// It stands before the compiler's own <immintrin.h> in the include path, which it replaces.
#pragma once

#include "lanes.h"

struct __m128 {
  float v[4];
};
struct __m128i {
  uint8_t v[16];
};
struct __m256 {
  float v[8];
};
struct __m256i {
  uint8_t v[32];
};
struct __m512 {
  float v[16];
};
struct __m512i {
  uint8_t v[64];
};
using __mmask16 = uint16_t;
using __mmask64 = uint64_t;

#define _MM_HINT_T0 3
#define _MM_FROUND_TO_NEAREST_INT 0
#define _MM_FROUND_NO_EXC 8
#define _CMP_LT_OQ 0x11
#define _CMP_UNORD_Q 0x03

namespace emulated {

inline int32_t to_int(float x) {  // out of range and NaN: the "integer indefinite"
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(std::nearbyint(x)) : INT32_MIN;
}
inline int16_t saturate(int32_t x) { return static_cast<int16_t>(x < -32768 ? -32768 : x > 32767 ? 32767 : x); }

}  // namespace emulated

// --- floats ---------------------------------------------------------------------------------------------------------

inline __m512 _mm512_setzero_ps() { return {}; }
inline __m512 _mm512_set1_ps(float x) { return emulated::make<__m512, float>([&](int) { return x; }); }
inline __m512 _mm512_loadu_ps(const void* p) { return emulated::read<__m512>(p); }
inline void _mm512_storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, sizeof(a)); }
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {
  return emulated::make<__m512, float>(
      [&](int i) { return mask >> i & 1 ? static_cast<const float*>(p)[i] : 0.0f; });
}
inline void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 a) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) static_cast<float*>(p)[i] = a.v[i];
  }
}

#define PAGEWIRE_EMULATE(name, expression) \
  inline __m512 name(__m512 a, __m512 b) { \
    return emulated::make<__m512, float>([&](int i) { return expression; }); \
  }
PAGEWIRE_EMULATE(_mm512_add_ps, a.v[i] + b.v[i])
PAGEWIRE_EMULATE(_mm512_sub_ps, a.v[i] - b.v[i])
PAGEWIRE_EMULATE(_mm512_mul_ps, a.v[i] * b.v[i])
PAGEWIRE_EMULATE(_mm512_div_ps, a.v[i] / b.v[i])
PAGEWIRE_EMULATE(_mm512_max_ps, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
PAGEWIRE_EMULATE(_mm512_min_ps, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
#undef PAGEWIRE_EMULATE

inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return emulated::make<__m512, float>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline __m512 _mm512_sqrt_ps(__m512 a) {
  return emulated::make<__m512, float>([&](int i) { return std::sqrt(a.v[i]); });
}
inline __m512 _mm512_roundscale_ps(__m512 a, int) {
  return emulated::make<__m512, float>([&](int i) { return std::nearbyint(a.v[i]); });
}
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool unordered = std::isnan(a.v[i]) || std::isnan(b.v[i]);
    mask |= static_cast<unsigned>(predicate == _CMP_UNORD_Q ? unordered : a.v[i] < b.v[i]) << i;
  }
  return static_cast<__mmask16>(mask);
}
inline __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return emulated::make<__m512, float>([&](int i) { return mask >> i & 1 ? b.v[i] : a.v[i]; });
}

// --- narrower floats, as reductions use them ------------------------------------------------------------------------

inline __m256 _mm512_castps512_ps256(__m512 a) { return emulated::cast<__m256>(a); }
inline __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
  return emulated::make<__m256, float>([&](int i) { return a.v[8 * half + i]; });
}
inline __m256 _mm256_add_ps(__m256 a, __m256 b) {
  return emulated::make<__m256, float>([&](int i) { return a.v[i] + b.v[i]; });
}
inline __m256 _mm256_max_ps(__m256 a, __m256 b) {
  return emulated::make<__m256, float>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline __m128 _mm256_castps256_ps128(__m256 a) { return emulated::cast<__m128>(a); }
inline __m128 _mm256_extractf128_ps(__m256 a, int half) {
  return emulated::make<__m128, float>([&](int i) { return a.v[4 * half + i]; });
}
inline __m128 _mm_add_ps(__m128 a, __m128 b) {
  return emulated::make<__m128, float>([&](int i) { return a.v[i] + b.v[i]; });
}
inline __m128 _mm_max_ps(__m128 a, __m128 b) {
  return emulated::make<__m128, float>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline __m128 _mm_add_ss(__m128 a, __m128 b) { return {{a.v[0] + b.v[0], a.v[1], a.v[2], a.v[3]}}; }
inline __m128 _mm_max_ss(__m128 a, __m128 b) {
  return {{a.v[0] > b.v[0] ? a.v[0] : b.v[0], a.v[1], a.v[2], a.v[3]}};
}
inline __m128 _mm_movehl_ps(__m128 a, __m128 b) { return {{b.v[2], b.v[3], a.v[2], a.v[3]}}; }
inline __m128 _mm_movehdup_ps(__m128 a) { return {{a.v[1], a.v[1], a.v[3], a.v[3]}}; }
inline float _mm_cvtss_f32(__m128 a) { return a.v[0]; }

// --- integers -------------------------------------------------------------------------------------------------------

inline __m512i _mm512_setzero_si512() { return {}; }
inline __m512i _mm512_loadu_si512(const void* p) { return emulated::read<__m512i>(p); }
inline void _mm512_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, sizeof(a)); }
inline __m256i _mm256_loadu_si256(const __m256i* p) { return emulated::read<__m256i>(p); }
inline void _mm256_storeu_si256(__m256i* p, __m256i a) { std::memcpy(p, &a, sizeof(a)); }
inline void _mm_storeu_si128(__m128i* p, __m128i a) { std::memcpy(p, &a, sizeof(a)); }

// Lane, and an expression of x and y: the lanes of a and b.
#define PAGEWIRE_EMULATE(name, Lane, expression) \
  inline __m512i name(__m512i a, __m512i b) { \
    return emulated::make<__m512i, Lane>([&](int i) { \
      const Lane x = emulated::lane<Lane>(a, i), y = emulated::lane<Lane>(b, i); \
      return expression; \
    }); \
  }
PAGEWIRE_EMULATE(_mm512_add_epi16, uint16_t, x + y)
PAGEWIRE_EMULATE(_mm512_add_epi32, uint32_t, x + y)
PAGEWIRE_EMULATE(_mm512_and_si512, uint64_t, x & y)
PAGEWIRE_EMULATE(_mm512_or_si512, uint64_t, x | y)
PAGEWIRE_EMULATE(_mm512_max_epi32, int32_t, x > y ? x : y)
#undef PAGEWIRE_EMULATE

inline __m512i _mm512_set1_epi8(char x) { return emulated::make<__m512i, char>([&](int) { return x; }); }
inline __m512i _mm512_set1_epi16(short x) { return emulated::make<__m512i, short>([&](int) { return x; }); }
inline __m512i _mm512_set1_epi32(int x) { return emulated::make<__m512i, int>([&](int) { return x; }); }
inline __m512i _mm512_slli_epi32(__m512i a, unsigned by) {
  return emulated::make<__m512i, uint32_t>([&](int i) { return emulated::lane<uint32_t>(a, i) << by; });
}
inline __m512i _mm512_srli_epi32(__m512i a, unsigned by) {
  return emulated::make<__m512i, uint32_t>([&](int i) { return emulated::lane<uint32_t>(a, i) >> by; });
}
inline __m512i _mm512_srli_epi16(__m512i a, unsigned by) {
  return emulated::make<__m512i, uint16_t>([&](int i) { return emulated::lane<uint16_t>(a, i) >> by; });
}
inline __m512i _mm512_abs_epi8(__m512i a) {
  return emulated::make<__m512i, uint8_t>([&](int i) {
    const int x = emulated::lane<int8_t>(a, i);
    return x < 0 ? -x : x;
  });
}
inline __mmask64 _mm512_movepi8_mask(__m512i a) {
  __mmask64 mask = 0;
  for (int i = 0; i < 64; ++i) mask |= static_cast<__mmask64>(a.v[i] >> 7) << i;
  return mask;
}
inline __m512i _mm512_mask_sub_epi8(__m512i source, __mmask64 mask, __m512i a, __m512i b) {
  return emulated::make<__m512i, uint8_t>([&](int i) { return mask >> i & 1 ? a.v[i] - b.v[i] : source.v[i]; });
}
inline __m512i _mm512_mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
  return emulated::make<__m512i, int32_t>([&](int i) { return emulated::lane<int32_t>(mask >> i & 1 ? b : a, i); });
}
inline int _mm512_reduce_add_epi32(__m512i a) {
  uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += emulated::lane<uint32_t>(a, i);
  return static_cast<int>(sum);
}
inline int _mm512_reduce_max_epi32(__m512i a) {
  int most = INT32_MIN;
  for (int i = 0; i < 16; ++i) most = emulated::lane<int>(a, i) > most ? emulated::lane<int>(a, i) : most;
  return most;
}

// --- dot products ---------------------------------------------------------------------------------------------------

// Unsigned bytes of a times signed bytes of b; two neighbours added, saturated to 16 bits.
inline __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
  return emulated::make<__m512i, int16_t>([&](int i) {
    const int first = a.v[2 * i] * emulated::lane<int8_t>(b, 2 * i);
    return emulated::saturate(first + a.v[2 * i + 1] * emulated::lane<int8_t>(b, 2 * i + 1));
  });
}
inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
  return emulated::make<__m512i, int32_t>([&](int i) {
    const int first = emulated::lane<int16_t>(a, 2 * i) * emulated::lane<int16_t>(b, 2 * i);
    return first + emulated::lane<int16_t>(a, 2 * i + 1) * emulated::lane<int16_t>(b, 2 * i + 1);
  });
}
// Unsigned bytes of a times signed bytes of b, four neighbours added to 32 bits.
inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  return emulated::make<__m512i, int32_t>([&](int i) {
    int32_t total = emulated::lane<int32_t>(sum, i);
    for (int j = 4 * i; j < 4 * i + 4; ++j) total += a.v[j] * emulated::lane<int8_t>(b, j);
    return total;
  });
}

// --- conversions ----------------------------------------------------------------------------------------------------

inline __m512i _mm512_castps_si512(__m512 a) { return emulated::cast<__m512i>(a); }
inline __m512 _mm512_castsi512_ps(__m512i a) { return emulated::cast<__m512>(a); }
inline __m512i _mm512_cvtps_epi32(__m512 a) {
  return emulated::make<__m512i, int32_t>([&](int i) { return emulated::to_int(a.v[i]); });
}
inline __m512 _mm512_cvtepi32_ps(__m512i a) {
  return emulated::make<__m512, float>([&](int i) { return emulated::lane<int32_t>(a, i); });
}
inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return emulated::make<__m512i, uint32_t>([&](int i) { return emulated::lane<uint16_t>(a, i); });
}
inline __m256i _mm512_cvtepi32_epi16(__m512i a) {  // truncates
  return emulated::make<__m256i, uint16_t>([&](int i) { return emulated::lane<uint32_t>(a, i); });
}
inline __m128i _mm512_cvtepi32_epi8(__m512i a) {  // truncates
  return emulated::make<__m128i, uint8_t>([&](int i) { return emulated::lane<uint32_t>(a, i); });
}
inline __m512 _mm512_cvtph_ps(__m256i a) {
  return emulated::make<__m512, float>([&](int i) { return emulated::half_to_float(emulated::lane<uint16_t>(a, i)); });
}
inline __m256i _mm512_cvtps_ph(__m512 a, int) {
  return emulated::make<__m256i, uint16_t>([&](int i) { return emulated::float_to_half(a.v[i]); });
}

inline void _mm_prefetch(const void*, int) {}

// --- tiles ----------------------------------------------------------------------------------------------------------

namespace emulated {

struct Tile {
  uint8_t rows[16][64];
};
struct TileState {  // one thread's
  bool configured = false;
  uint8_t num_rows[8], row_bytes[8];
  Tile tiles[8];
};
inline thread_local TileState tiles;

// The layout of LDTILECFG's 64 bytes: palette, start row, 14 reserved, bytes of a row of each tile, rows of each tile.
inline void load_config(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  tiles = {};
  tiles.configured = bytes[0] == 1;
  for (int i = 0; i < 8; ++i) {
    tiles.row_bytes[i] = bytes[16 + 2 * i];
    tiles.num_rows[i] = bytes[48 + i];
  }
}
inline void check(bool holds) {
  if (!holds) __builtin_trap();  // the processor would raise an exception
}
inline void load_tile(int tile, const void* from, int64_t stride) {
  check(tiles.configured && tiles.num_rows[tile] > 0);
  tiles.tiles[tile] = {};
  for (int row = 0; row < tiles.num_rows[tile]; ++row) {
    std::memcpy(tiles.tiles[tile].rows[row], static_cast<const char*>(from) + row * stride, tiles.row_bytes[tile]);
  }
}
inline void store_tile(int tile, void* to, int64_t stride) {
  check(tiles.configured && tiles.num_rows[tile] > 0);
  for (int row = 0; row < tiles.num_rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles.tiles[tile].rows[row], tiles.row_bytes[tile]);
  }
}
// c[m][n] += a[m][k] * b[k / 4][4n + k % 4], signed bytes all.
inline void multiply_tiles(int c, int a, int b) {
  check(tiles.num_rows[c] == tiles.num_rows[a] && tiles.row_bytes[c] == tiles.row_bytes[b] &&
        tiles.row_bytes[a] == 4 * tiles.num_rows[b]);
  for (int m = 0; m < tiles.num_rows[c]; ++m) {
    for (int n = 0; n < tiles.row_bytes[c] / 4; ++n) {
      int32_t sum = lane<int32_t>(tiles.tiles[c].rows[m], n);
      for (int k = 0; k < tiles.row_bytes[a]; ++k) {
        sum += lane<int8_t>(tiles.tiles[a].rows[m], k) * lane<int8_t>(tiles.tiles[b].rows[k / 4], 4 * n + k % 4);
      }
      std::memcpy(tiles.tiles[c].rows[m] + 4 * n, &sum, sizeof(sum));
    }
  }
}

}  // namespace emulated

inline void _tile_loadconfig(const void* config) { emulated::load_config(config); }
inline void _tile_release() { emulated::tiles = {}; }
inline void _tile_zero(int tile) { emulated::tiles.tiles[tile] = {}; }
inline void _tile_loadd(int tile, const void* from, int64_t stride) { emulated::load_tile(tile, from, stride); }
inline void _tile_stored(int tile, void* to, int64_t stride) { emulated::store_tile(tile, to, stride); }
inline void _tile_dpbssd(int c, int a, int b) { emulated::multiply_tiles(c, a, b); }
