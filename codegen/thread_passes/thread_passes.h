// The passes over thread IR, in pipeline order; barriers are inserted between read_early and narrow_accumulators. One
// pass, one file, named as its function.
#pragma once
#include "codegen/thread_ir/thread_ir.h"

namespace tw::codegen {

/// Drops loops of one iteration, conditions that are constants, what none reaches, and the dimensions of registers that
/// have one element.
///
///     float sum[2][1]                  float sum[2]
///     for i < 1                        sum[0] = x[ko]
///       sum[0][i] = x[i + ko]
///     if (false) sum[1][0] = 0
ThreadKernel drop_units(const ThreadKernel& kernel);

/// Joins unrolled loops, one directly inside of the other, into one, where that needs no divisions.
///
///     unroll half < 2                        unroll element < 4
///       unroll pair < 2                        sum[element] = 0
///         sum[half * 2 + pair] = 0
ThreadKernel join_loops(const ThreadKernel& kernel);

/// Rounds floats to elements of 1 byte two at a time, where these lie side by side in registers: one instruction, whose
/// result is half of a register. What is rounded is in registers, or put there first.
///
///     unroll k < 8                             unroll k < 4
///       h[k] = cast(e4m3, sums[k])               narrow_pair(&h[k * 2], &sums[k * 2])
///
///     unroll k < 2                             float q_wide[2]
///       q[k] = cast(i8, round(x[k] / s))       unroll k < 2
///                                                q_wide[k] = x[k] / s
///                                              narrow_pair(&q[0], &q_wide[0])
ThreadKernel narrow_pairs(const ThreadKernel& kernel);

/// Names what two places are apart, in front of unrolled loops that compare them in each iteration: what is left to
/// compare is a constant. Of the comparisons that values choose by.
///
///     unroll q < 16                                     let threshold = row - step * 128
///       s[q] = select(step * 128 + q <= row, t[q], 0)   unroll q < 16
///                                                         s[q] = select(q <= threshold, t[q], 0)
ThreadKernel name_thresholds(const ThreadKernel& kernel);

/// Makes f32 of whole numbers apart from what unrolled loops add to them: these are constants then, and the rest is one
/// cast for all copies. Exact, as far as f32 has all numbers.
///
///     unroll n < 16                                     unroll n < 16
///       y[n] = cast(f32, n + row * 16)                    y[n] = cast(f32, row * 16) + cast(f32, n)
ThreadKernel split_casts(const ThreadKernel& kernel);

/// Computes quotients and functions of floats that unrolled loops would compute again once in front of these, where
/// compilers do not: behind a condition, whatever that says, and of functions. They read registers that no statement of
/// the loops changes.
///
///     unroll n < 16                                     float l_reciprocal = 1 / l
///       y[n] = select(seen, x[n] * (1 / l), 0)          unroll n < 16
///                                                         y[n] = select(seen, x[n] * l_reciprocal, 0)
ThreadKernel hoist_values(const ThreadKernel& kernel);

/// Reads neighbouring elements of global memory together that are read one by one, in expressions, in statements that
/// follow each other, or by iterations of unrolled loops: records, and windows. They lie from a multiple of their
/// number on, and at least half of them are wanted. Read is what the statements read in any case, or behind the same
/// conditions, and no one writes meanwhile.
///
///     y[i] = x[i * 4] * x[i * 4 + 1] + x[i * 4 + 2]     float x_values[4]
///                                                       x_values[0] = x[i * 4], 4 wide
///                                                       y[i] = x_values[0] * x_values[1] + x_values[2]
ThreadKernel join_reads(const ThreadKernel& kernel);

/// Names the values that an expression uses more than once, in front of the statement, and parts of expressions that
/// are too deep for compilers. What reads memory, or may divide by zero, is evaluated where the expression evaluates it
/// only.
///
///     y[i] = f(x[i] * 2 + 1) * (x[i] * 2 + 1)            let e_1 = x[i] * 2 + 1
///                                                        y[i] = f(e_1) * e_1
///     y[i] = select(i < n, g(x[i + 1]) * g(x[i + 1]), 0) let needs_1 = i < n
///                                                        float e_2
///                                                        if (needs_1) e_2 = g(x[i + 1])
///                                                        y[i] = select(i < n, e_2 * e_2, 0)
ThreadKernel name_values(const ThreadKernel& kernel);

/// Computes once, in front of unrolled loops, what all of their iterations have in common: names of values that none of
/// them changes, and parts of floats that take several operations. Evaluated in any case, of constant memory and
/// registers.
///
///     unroll d < 3                                       let common_1 = exp(x[i] - y[j])
///       sum[d] = sum[d] + exp(x[i] - y[j]) * v[d]        unroll d < 3
///                                                          sum[d] = sum[d] + common_1 * v[d]
ThreadKernel hoist_common(const ThreadKernel& kernel);

/// Moves conditions out of loops that do not change them, and names address arithmetic outside of what repeats it.
///
///     for ko < 64                                        let a_row = thread / 4
///       a_s[thread / 4][v] = a[thread / 4 * 512 + ko]    let a_offset = 512 * a_row
///                                                        for ko < 64
///                                                          a_s[a_row][v] = a[a_offset + ko]
ThreadKernel hoist_invariants(const ThreadKernel& kernel);

/// Drops names that only stand for another one.
///
///     let i = thread % 32; let j = i    let i = thread % 32
///     x[j] = 0                          x[i] = 0
ThreadKernel drop_aliases(const ThreadKernel& kernel);

/// Makes loops of unrolled ones whose text would be so long that warps wait for instructions: behind each iteration,
/// the registers that the next one reads move to where this one read its own. Of arrays that are dead behind the loop.
///
///     unroll part < 4                           for part < 4
///       unroll n < 32                             unroll n < 32
///         y[part * 32 + n] = erf(c[part * 32 + n])  y[part * 32 + n] = erf(c[n])
///                                                 if (part < 3)
///                                                   unroll n < 96
///                                                     c[n] = c[n + 32]
ThreadKernel shift_registers(const ThreadKernel& kernel);

/// Reads what an iteration with a product of a warpgroup reads, and memory holds unchanged, an iteration ahead: that
/// takes its time while the product is under way. Of a few registers, which two iterations, one in the text of loops
/// of a single product, exchange. What stands behind the product and reads shared memory does so in front of it. The
/// same ahead in unrolled loops that make results of products, where a few warps have no others to wait beside them.
///
///                                                scale_next = scale_b[0]
///     for k < 64                                 for k < 64, 2 as one
///                                                  let scale = scale_next
///                                                  if (k + 1 < 64) scale_next = scale_b[k + 1]
///       wgmma(product, ..); wgmma_wait             wgmma(product, ..); wgmma_wait
///       let scale = scale_b[k]
///       sum[0] = sum[0] + product[0] * scale       sum[0] = sum[0] + product[0] * scale
ThreadKernel read_early(const ThreadKernel& kernel);

/// Holds whole numbers that are chosen, and not computed, in 32 bits where all that are chosen from have no more:
/// places of the largest elements. The largest number of 64 bits, which stands for none, is that of 32 bits then.
///
///     long long place[1]                                      int place[1]
///     place[0] = 9223372036854775807                          place[0] = 2147483647
///     place[0] = select(place[0] < other, place[0], other)    place[0] = select(place[0] < other, place[0], other)
///     y[0] = place[0]                                         y[0] = select(place[0] == 2147483647,
///                                                                           9223372036854775807, place[0])
ThreadKernel narrow_accumulators(const ThreadKernel& kernel);

/// Gives each index expression 32 bits where no part of it can overflow, and 64 bits elsewhere, by casts. The kernel's
/// variables are replaced by ones with the type that is printed, and with bounds.
///
///     a[row * stride + column]    a[cast(i64, row) * cast(i64, stride) + cast(i64, column)]
ThreadKernel narrow_indices(const ThreadKernel& kernel);

/// Has copies of 16 bytes of shared to global memory read in any case, if they stay inside of shared memory whatever
/// the mask says, and only store under it: without branches, reads of several go on side by side.
///
///     if (row < 50)                                    y[row * 64 + v] = y_shared[row][v], 8 wide where row < 50
///       y[row * 64 + v] = y_shared[row][v], 8 wide
ThreadKernel read_ahead_of_masks(const ThreadKernel& kernel);

/// Replaces functions by ones of the GPU that take fewer instructions: a sigmoid whose factor fits into constants of
/// its operand (to a rounding), an erf where branches would cost more than both ways, 1 + erf(x) in all kernels.
///
///     y[i] = sigmoid(2 * x[i])                              y[i] = logistic2(-2.885390 * x[i])
///     y[i] = x[i] * 0.5 * (1 + erf(x[i] * 0.7071067))       y[i] = x[i] * normal_cdf(x[i])
ThreadKernel choose_functions(const ThreadKernel& kernel);

/// Divides elements of f32 that have one divisor, no constant, at least four of an unrolled loop, by its reciprocal,
/// which is computed once, and corrects the quotients: rounded as a division is, without its special functions.
///
///     unroll d < 8               unroll d < 8
///       y[d] = x[d] / sum[0]       y[d] = divided(x[d], sum[0])
ThreadKernel share_divisors(const ThreadKernel& kernel);

/// Marks unrolled loops that read sums of matrix units between barriers: one step's arithmetic stays behind its
/// barriers.
///
///     unroll piece < 4                                  unroll piece < 4, apart
///       barrier                                           barrier
///       out[i] = f(sums[piece * 32 + i])                  out[i] = f(sums[piece * 32 + i])
///       barrier                                           barrier
///       store a box of out                                store a box of out
ThreadKernel keep_steps_apart(const ThreadKernel& kernel);

/// Has a kernel that the device starts while the one before it ends wait for that, behind what needs nothing of it, and
/// let the next one in where that pays: not from long blocks, nor from few that share multiprocessors.
///
///     init barriers; barrier      init barriers; barrier
///     ...                         griddepcontrol_wait(); griddepcontrol_launch_dependents()
///                                 ...
ThreadKernel programmatic_launch(const ThreadKernel& kernel);

}  // namespace tw::codegen
