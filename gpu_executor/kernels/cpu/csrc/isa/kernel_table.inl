// The kernels of one instruction set, and their table. A file of this folder includes its vector headers, defines these
// names, and includes this:
//
//   PAGEWIRE_ISA       its namespace, and the table's name
//   PAGEWIRE_TABLE     the table
//   PAGEWIRE_FLOATS    if it has no vectors of floats of its own: the set whose kernels it shares, all but the products
//                      of integers. They are compiled once, by that set's flags.
//   PAGEWIRE_INTEGERS  if its int_dot_<name>.h multiplies whole tiles: the set that takes what is less than a tile

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "../kernels/attention.h"
#include "../kernels/kernel_table.h"
#include "../kernels/sampling.h"
#include "../weights/packed_matrix.h"

namespace pagewire {

#define PAGEWIRE_TEXT_OF(name) #name
#define PAGEWIRE_TEXT(name) PAGEWIRE_TEXT_OF(name)
// For what is called from many places, or exists for many numbers of rows: copies of it within its callers would gain
// nothing, and take the compiler twice the time.
#define PAGEWIRE_NOINLINE static __attribute__((noinline))
// A function that an entry of the table can point to.
#define PAGEWIRE_DECLARE_AS(entry, name) std::remove_pointer_t<decltype(KernelTable::entry)> name;
#define PAGEWIRE_DECLARE(entry) PAGEWIRE_DECLARE_AS(entry, entry)

namespace PAGEWIRE_ISA {
#include "../kernels/linear_finish.inl"
}

#ifdef PAGEWIRE_FLOATS
namespace PAGEWIRE_FLOATS {
PAGEWIRE_DECLARE(quantize_row)
PAGEWIRE_DECLARE(rms_norm_row)
PAGEWIRE_DECLARE(add_row)
PAGEWIRE_DECLARE(scale_row)
PAGEWIRE_DECLARE(silu_and_mul_row)
PAGEWIRE_DECLARE(gelu_tanh_and_mul_row)
PAGEWIRE_DECLARE(rotate_head)
PAGEWIRE_DECLARE(store_elements)
PAGEWIRE_DECLARE(load_elements)
PAGEWIRE_DECLARE(unpack_row)
PAGEWIRE_DECLARE(store_key)
PAGEWIRE_DECLARE(store_value)
PAGEWIRE_DECLARE(attention_task)
PAGEWIRE_DECLARE(attention_merge)
PAGEWIRE_DECLARE(argmax_row)
PAGEWIRE_DECLARE(make_scores)
PAGEWIRE_DECLARE(exp_row)
PAGEWIRE_DECLARE(sum_of_exp)
PAGEWIRE_DECLARE(rank_in_row)
PAGEWIRE_DECLARE(draw_row)
PAGEWIRE_DECLARE(multiply_floats)
PAGEWIRE_DECLARE_AS(linear_tile, linear_dense_tile)
PAGEWIRE_DECLARE_AS(linear_work_bytes, linear_dense_work_bytes)
}  // namespace PAGEWIRE_FLOATS
#else
namespace PAGEWIRE_ISA {
#include "../kernels/elementwise.inl"
#include "../kernels/quantize.inl"
#include "../kernels/linear_dense.inl"
#include "../kernels/unpack_row.inl"
#include "../kernels/store_kv.inl"
#include "../kernels/attention.inl"
#include "../kernels/sampling.inl"
#include "../kernels/limits_floats.inl"
}  // namespace PAGEWIRE_ISA
#endif

#ifdef PAGEWIRE_INTEGERS
namespace PAGEWIRE_INTEGERS {
PAGEWIRE_DECLARE(linear_tile)
PAGEWIRE_DECLARE(linear_work_bytes)
PAGEWIRE_DECLARE(multiply_integers)
}  // namespace PAGEWIRE_INTEGERS
#endif

namespace PAGEWIRE_ISA {
#include "../kernels/linear_blocks.inl"
#ifdef PAGEWIRE_INTEGERS
#include "../kernels/linear_tiles.inl"
#else
#include "../kernels/linear.inl"
#include "../kernels/limits_integers.inl"
#endif
}  // namespace PAGEWIRE_ISA

extern const KernelTable PAGEWIRE_TABLE;
// The namespace sees the functions of those that it uses. Constants all: nothing of this file runs when the library is
// loaded, on a CPU that may not have its instructions.
const KernelTable PAGEWIRE_TABLE = {
    .name = PAGEWIRE_TEXT(PAGEWIRE_ISA),
    .quantize_row = PAGEWIRE_ISA::quantize_row,
    .linear_tile = PAGEWIRE_ISA::linear_tile,
    .linear_work_bytes = PAGEWIRE_ISA::linear_work_bytes,
    .rms_norm_row = PAGEWIRE_ISA::rms_norm_row,
    .add_row = PAGEWIRE_ISA::add_row,
    .scale_row = PAGEWIRE_ISA::scale_row,
    .silu_and_mul_row = PAGEWIRE_ISA::silu_and_mul_row,
    .gelu_tanh_and_mul_row = PAGEWIRE_ISA::gelu_tanh_and_mul_row,
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
