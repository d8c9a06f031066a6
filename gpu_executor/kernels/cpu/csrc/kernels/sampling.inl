// Kernels over one row of logits: scores, sums of exponentials, draws. See sampling.h and kernel_table.h.
// Included inside an instruction set's namespace, after elementwise.inl.

void make_scores(const float* logits, int64_t size, float temperature, float* scores, float* group_max) {
  const int64_t num_groups = round_up(divide_up(size, kScoreGroup), kGroupPadding);
  const Vec divisor = broadcast(temperature), lowest = broadcast(-__builtin_inff());
  for (int64_t group = 0; group < num_groups; ++group) {
    Vec largest = lowest;
    for (int64_t i = group * kScoreGroup; i < (group + 1) * kScoreGroup; i += kVecSize) {
      Vec score = lowest;
      if (i + kVecSize <= size) {
        score = div(load(logits + i), divisor);
      } else if (i < size) {
        float padded[kVecSize];
        store(padded, lowest);
        for (int64_t lane = 0; lane < size - i; ++lane) padded[lane] = logits[i + lane];
        score = div(load(padded), divisor);
      }
      store(scores + i, score);
      largest = max(score, largest);
    }
    group_max[group] = reduce_max(largest);
  }
}

void exp_row(const float* x, int64_t n, float largest, float* out) {
  const Vec shift = broadcast(largest);
  for_vectors(
      n, [&](int64_t i) { store(out + i, exp(sub(load(x + i), shift))); },
      [&](int64_t i, int64_t count) { store_partial(out + i, exp(sub(load_partial(x + i, count), shift)), count); });
}

// Terms are made a block at a time: the loop that widens and adds them is then the compiler's to vectorize.
double sum_of_exp(const float* x, int64_t n, float largest) {
  constexpr int64_t kSums = 16;  // whatever the vector's size, so that the order of additions is one
  constexpr int64_t kBlock = 32 * kSums;
  double sums[kSums] = {};
  float terms[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    exp_row(x + i, count, largest, terms);
    for (int64_t j = count; j < round_up(count, kSums); ++j) terms[j] = 0;
    for (int64_t j = 0; j < count; j += kSums) {
      for (int64_t k = 0; k < kSums; ++k) sums[k] += static_cast<double>(terms[j + k]);
    }
  }
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

int64_t rank_in_row(const float* x, int64_t n, int64_t index) {
  const float value = x[index];
  int64_t before = 0;
  for (int64_t i = 0; i < index; ++i) before += x[i] >= value;
  for (int64_t i = index + 1; i < n; ++i) before += x[i] > value;
  return before + 1;
}

constexpr int64_t kCounters = kScoreGroup / 4;
constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxKeySteps[2] = {0x9E3779B9u, 0xBB67AE85u};

// The words of one group's tokens: words[j][i] is word j of counter first + i.
struct GroupWords {
  alignas(64) uint32_t words[4][kCounters];
};

// Fill `out` and say whether any word is at least `least`.
#if defined(__AVX2__)
PAGEWIRE_INLINE bool philox_words(uint32_t first, const NoiseKey& key, uint32_t least, GroupWords* out) {
  // A counter is a lane of 64 bits, so that a 32 x 32 bit product is one instruction. It reads the lower half of a lane
  // alone: what the upper half holds beyond a word is never looked at. Two vectors hold the even and the odd counters.
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxMultipliers[0]), m1 = _mm256_set1_epi64x(kPhiloxMultipliers[1]);
  const __m256i even = _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 2, 4, 6));
  __m256i c0[2] = {even, _mm256_add_epi64(even, _mm256_set1_epi64x(1))};
  __m256i c1[2], c2[2], c3[2];
  for (int half = 0; half < 2; ++half) {
    c1[half] = _mm256_set1_epi64x(key.position);
    c2[half] = _mm256_set1_epi64x(key.child);
    c3[half] = _mm256_setzero_si256();
  }
  uint32_t k0 = key.seed_low, k1 = key.seed_high;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int half = 0; half < 2; ++half) {
      const __m256i product0 = _mm256_mul_epu32(c0[half], m0), product1 = _mm256_mul_epu32(c2[half], m1);
      c0[half] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), key0), c1[half]);
      c2[half] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), key1), c3[half]);
      c1[half] = product1;
      c3[half] = product0;
    }
    k0 += kPhiloxKeySteps[0];
    k1 += kPhiloxKeySteps[1];
  }
  const __m256i threshold = _mm256_set1_epi32(static_cast<int32_t>(least));
  __m256i any = _mm256_setzero_si256();
  const __m256i* const words[4] = {c0, c1, c2, c3};
  for (int word = 0; word < 4; ++word) {
    const __m256i both = _mm256_blend_epi32(words[word][0], _mm256_slli_epi64(words[word][1], 32), 0xaa);
    any = _mm256_or_si256(any, _mm256_cmpeq_epi32(_mm256_max_epu32(both, threshold), both));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out->words[word]), both);
  }
  return !_mm256_testz_si256(any, any);
}
#else
PAGEWIRE_INLINE bool philox_words(uint32_t first, const NoiseKey& key, uint32_t least, GroupWords* out) {
  uint32_t any = 0;
  for (int64_t i = 0; i < kCounters; ++i) {
    uint32_t c0 = first + static_cast<uint32_t>(i), c1 = key.position, c2 = key.child, c3 = 0;
    uint32_t k0 = key.seed_low, k1 = key.seed_high;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t product0 = static_cast<uint64_t>(c0) * kPhiloxMultipliers[0];
      const uint64_t product1 = static_cast<uint64_t>(c2) * kPhiloxMultipliers[1];
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += kPhiloxKeySteps[0];
      k1 += kPhiloxKeySteps[1];
    }
    out->words[0][i] = c0;
    out->words[1][i] = c1;
    out->words[2][i] = c2;
    out->words[3][i] = c3;
    any |= (c0 >= least) | (c1 >= least) | (c2 >= least) | (c3 >= least);
  }
  return any != 0;
}
#endif

PAGEWIRE_INLINE double gumbel(uint32_t word) {
  return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

// The largest noise there is, that of word 2^32 - 1, rounded up.
constexpr float kMostNoise = 22.9f;

// The least word whose noise could lift a score to `best`, given bound >= e^(score - best); a little less to be safe.
//
// It must have -log(u) <= bound, and -log(u) > 1 - u = (2^32 - word - 0.5) / 2^32: no logarithm is needed to see that
// nearly every word is too small.
PAGEWIRE_INLINE uint32_t least_word(float bound) {
  const double room = static_cast<double>(bound) * (0x1p32 * 1.0001) + 2.0;  // the factor covers the exponential's error
  return room < 0x1p32 ? ~static_cast<uint32_t>(room) : 0;
}

int64_t draw_row(const ScoreRow& row, const Cutoff& cutoff, const NoiseKey& key) {
  GroupWords noise;
  const auto word_of = [&noise](int64_t id) { return noise.words[id & 3][id / 4 % kCounters]; };
  // The most likely token first: what can beat it is rare, and gets rarer with every better one.
  int64_t best_id = row.best_id;
  philox_words(static_cast<uint32_t>(best_id / kScoreGroup * kCounters), key, 0, &noise);
  double best = static_cast<double>(row.scores[best_id]) + gumbel(word_of(best_id));

  for (int64_t first = 0; first < row.num_groups; first += kVecSize) {
    const float floor = std::nextafter(static_cast<float>(best), -__builtin_inff());  // not above `best`
    float differences[kVecSize], bounds[kVecSize];
    const Vec difference = sub(load(row.group_max + first), broadcast(floor));
    store(differences, difference);
    store(bounds, exp(difference));
    for (int64_t lane = 0; lane < kVecSize; ++lane) {
      const int64_t group = first + lane;
      if (differences[lane] < -kMostNoise || row.group_max[group] < cutoff.score) continue;
      const uint32_t least = least_word(bounds[lane]);
      if (!philox_words(static_cast<uint32_t>(group * kCounters), key, least, &noise)) continue;
      for (int64_t id = group * kScoreGroup; id < (group + 1) * kScoreGroup; ++id) {
        if (word_of(id) < least || !cutoff.keeps(row.scores[id], id)) continue;
        const double sum = static_cast<double>(row.scores[id]) + gumbel(word_of(id));
        if (sum > best || (sum == best && id < best_id)) {
          best = sum;
          best_id = id;
        }
      }
    }
  }
  return best_id;
}
