// How products of integers are cut into blocks: what linear.inl and linear_tiles.inl share. Included by
// isa/kernel_table.inl after a vector header.

// A block of 24 groups of 4-bit weights is 15 KiB when widened: half of a small level-1 cache.
constexpr int64_t kBlockGroups = 24;
constexpr int64_t kWideGroupBytes = kPanel * (kGroup + 2 * static_cast<int64_t>(sizeof(float)));
// Rows whose totals wait in the work space between blocks.
constexpr int64_t kIntRowBlock = 128;

// The activations of a register tile, from the group on that a block starts with.
struct IntRows {
  const int8_t* values;
  const float* scales;
  const float* sums;
  const float* half_sums;
  int64_t num_groups;  // from a row to the next
};
