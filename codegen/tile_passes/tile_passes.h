// The passes over tile IR, in pipeline order. One pass, one file, named as its function.
#pragma once
#include "codegen/mapping/bindings.h"
#include "codegen/tile_ir/tile_ir.h"
#include "codegen/tile_passes/make_tiles.h"

namespace tw::codegen {

/// Where lanes share the terms of a reduction, each combines those that it has; behind the last of them they combine
/// what they made, so that all have the total.
///
///     init r[row]                              init r[row]
///     update r[row] += c[row][lane, column]    update r[row] += c[row][lane, column]
///                                              combine r[row] over lane
TileKernel combine_lanes(const TileKernel& kernel);

/// Drops the parts of register buffers' indices that are coordinates of the thread: each thread holds its own part.
/// Refuses registers that one thread writes and another reads.
///
///     acc[ti][tj][ri][rj] = 0    acc[ri][rj] = 0
TileKernel privatize_registers(const TileKernel& kernel, const CiteStep& cite);

/// Spells out how threads combine their parts of a reduction: lanes of a warp exchange registers; warps meet in shared
/// memory, where each thread reads the parts of all of them. The order is that of Across.
///
///     combine acc over kt < 64    acc = acc + exchange(acc, 1); ... acc = acc + exchange(acc, 16)
///                                 if (kt % 32 == 0) acc_parts[kt / 32] = acc
///                                 acc = acc_parts[0] + acc_parts[1]
TileKernel lower_thread_reductions(const TileKernel& kernel, const CiteStep& cite);

/// Has copies into local memory store zeros where their mask is false, if that allows the copy's readers to drop their
/// masks: a sum whose terms are products of such zeros only; a private accumulator that is masked again where it is
/// stored. So do registers of which a thread has few, for sums of which it has many. What a thread moves from its
/// registers to its registers needs no mask either. All other masks stay.
///
///     if (k0 + k < K) a_s[i][k] = a[...]             a_s[i][k] = k0 + k < K ? a[...] : 0
///     if (k0 + k < K) acc += a_s[i][k] * b_s[k][j]   acc += a_s[i][k] * b_s[k][j]
TileKernel discharge_masks(const TileKernel& kernel);
/// select(there, element, 0), as copies of padded tensors store it, becomes the element under a mask, with zeros
/// elsewhere.
TileKernel mask_padding(const TileKernel& kernel);

/// Spreads ops that write memory and have no thread loops over all threads, as wide accesses where alignment can be
/// proven, neighbouring threads on neighbouring vectors. What cannot be spread runs on thread 0. Each choice is noted.
///
///     for i < 128, k < 16             for step < 2, v < 4 vector
///       a_s[i][k] = a[...]              a_s[step * 64 + thread / 4][thread % 4 * 4 + v] = a[...]
TileKernel distribute(const TileKernel& kernel);

/// Marks the loops that index registers for unrolling, and short innermost loops along memory, which become wide
/// accesses.
TileKernel mark_unrolled(const TileKernel& kernel);

/// Has the lanes of a warp share the loops that a matrix instruction takes over, as its accumulators are spread over
/// them, and likewise the loops of all ops on those registers. What comes out is right without the instruction.
///
///     for i < 64, j < 32, k < 16        for it < 4, jt < 4, ih < 2, jp < 2, k < 16
///       acc[i][j] += ...                  acc[it * 16 + ih * 8 + lane / 4][jt * 8 + lane % 4 * 2 + jp] += ...
TileKernel apply_fragment_layouts(const TileKernel& kernel, const CiteStep& cite);

/// Gives registers that end as a copy of others, element by element, the place of these.
///
///     registers total: registers sum: sum = ...; total = sum    registers total: total = ...
///                      use total                                                 use total
TileKernel join_registers(const TileKernel& kernel);

/// Puts matrix instructions in the place of the arithmetic that they stand for: operands go to registers in the order
/// that the instruction wants, and so do the accumulators.
///
///     for it, jt, ih, jp, k             for step: a_fragment[it][...] = a_s[...]; b_fragment[jt][...] = b_s[...]
///       acc[it][jt][ih][jp] += ...                mma(acc[it][jt], a_fragment[it], b_fragment[jt])
TileKernel use_atoms(const TileKernel& kernel, const CiteStep& cite);

/// Has matrix instructions of a warpgroup that follow each other in a short loop, each with sums of its own, or with
/// terms of the same sums that are all there, run together instead of one after the other.
///
///     for t < 3                                  for t < 3: wgmma(sums[t], a, b[t])
///       wgmma(sums[t], a, b[t]); commit; wait    commit; wait
TileKernel gather_products(const TileKernel& kernel);

/// Has the first matrix instruction of a sum overwrite its accumulators, where it can, instead of adding to zeros.
/// Groups that take turns set zeros while they wait.
///
///     acc = 0                                leave_undefined(acc)
///     for k, step: wgmma(acc, a, b, true)    for k, step: wgmma(acc, a, b, 0 < k || 0 < step)
TileKernel elide_zero_init(const TileKernel& kernel);

/// Has lanes make elements of an instruction's operand whether or not a choice wants them, where all that they read is
/// there, and choose behind: what is read in any case is read by wide accesses.
///
///     for it, ih, jt, jp                                     for it, ih, jt, jp
///       p[it][ih][jt][jp] = in(i) ? f(x_s[i][j]) : 0           p[it][ih][jt][jp] = f(x_s[i][j])
///                                                            for it, ih, jt, jp
///                                                              p[it][ih][jt][jp] = in(i) ? p[it][ih][jt][jp] : 0
TileKernel select_behind(const TileKernel& kernel);

/// Picks the order of dimensions, the interleaving and the padding of each shared buffer by counting the bank conflicts
/// of the accesses of the first warps, within `shared_bytes` for all buffers together.
TileKernel choose_layouts(const TileKernel& kernel, const Target& target);

}  // namespace tw::codegen
