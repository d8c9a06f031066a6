// The kernels of one instruction set, and their table. A file of this folder includes its vector headers, says
// PAGEWIRE_ISA (its namespace and the table's name) and PAGEWIRE_TABLE (the table), and includes this. One whose
// int_dot_<name>.h has whole tiles says PAGEWIRE_LINEAR_TILE too.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../kernels/attention.h"
#include "../kernels/attention_plan.h"
#include "../kernels/kernel_table.h"
#include "../kernels/sampling.h"
#include "../weights/packed_matrix.h"

namespace pagewire {

#define PAGEWIRE_TEXT_OF(name) #name
#define PAGEWIRE_TEXT(name) PAGEWIRE_TEXT_OF(name)

namespace PAGEWIRE_ISA {

#include "../kernels/elementwise.inl"
#include "../kernels/quantize.inl"
#include "../kernels/linear_dense.inl"
#include "../kernels/linear.inl"
#ifdef PAGEWIRE_LINEAR_TILE
#include "../kernels/linear_tiles.inl"
#else
#define PAGEWIRE_LINEAR_TILE linear_tile
#endif
#include "../kernels/unpack_row.inl"
#include "../kernels/limits.inl"
#include "../kernels/attention.inl"
#include "../kernels/sampling.inl"

}  // namespace PAGEWIRE_ISA

extern const KernelTable PAGEWIRE_TABLE;
const KernelTable PAGEWIRE_TABLE = {
    .name = PAGEWIRE_TEXT(PAGEWIRE_ISA),
    .quantize_row = PAGEWIRE_ISA::quantize_row,
    .linear_tile = PAGEWIRE_ISA::PAGEWIRE_LINEAR_TILE,
    .linear_work_bytes = PAGEWIRE_ISA::linear_work_bytes,
    .rms_norm_row = PAGEWIRE_ISA::rms_norm_row,
    .add_row = PAGEWIRE_ISA::add_row,
    .silu_and_mul_row = PAGEWIRE_ISA::silu_and_mul_row,
    .rotate_head = PAGEWIRE_ISA::rotate_head,
    .store_elements = PAGEWIRE_ISA::store_elements,
    .load_elements = PAGEWIRE_ISA::load_elements,
    .unpack_row = PAGEWIRE_ISA::unpack_row,
    .store_key = PAGEWIRE_ISA::store_key,
    .store_value = PAGEWIRE_ISA::store_value,
    .attention_task = PAGEWIRE_ISA::attention_task,
    .attention_merge = PAGEWIRE_ISA::attention_merge,
    .argmax_row = PAGEWIRE_ISA::argmax_row,
    .make_scores = PAGEWIRE_ISA::make_scores,
    .exp_row = PAGEWIRE_ISA::exp_row,
    .sum_of_exp = PAGEWIRE_ISA::sum_of_exp,
    .rank_in_row = PAGEWIRE_ISA::rank_in_row,
    .draw_row = PAGEWIRE_ISA::draw_row,
    .multiply_floats = PAGEWIRE_ISA::multiply_floats,
    .multiply_integers = PAGEWIRE_ISA::multiply_integers,
};

}  // namespace pagewire
