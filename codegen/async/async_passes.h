// The passes that make copies run ahead and boxes leave, in pipeline order, behind choose_tma of choose_tma.h.
#pragma once
#include "codegen/mapping/bindings.h"
#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Has a warpgroup wait for its matrix instructions where something needs their sums, or overwrites what they read, and
/// no later than at the end of an iteration. Until then they run beside what threads compute and beside later ones,
/// which the wait leaves out: groups end in order. Threads ask for the next product, if that needs none of them, before
/// they go on with the sums.
///
///     wgmma(s); commit; wait<0>; wgmma(o); commit; wait<0>; use s
///     wgmma(s); commit; wgmma(o); commit; wait<1>; use s; wait<0>
TileKernel defer_waits(const TileKernel& kernel);

/// Moves fills of shared memory inside a loop of several stages ahead of it. Through registers, by one iteration: while
/// one computes on one buffer, the elements of the next are on their way, and are stored in the other buffer behind it.
/// Asynchronously, by all stages but one: the buffer that the last iteration has read is filled while this one
/// computes. Which of the two is legal and why is noted; a choice that the schedule made is kept or refused.
///
///     for k: a_s = a[k]; use a_s    a_next = a[0]; a_s[0] = a_next
///                                   for k: a_next = a[k + 1]; use a_s[k % 2]; a_s[(k + 1) % 2] = a_next
///
///                                   for k < 3: start a_s[k] = a[k]; commit
///                                   for k: wait for all but 2; start a_s[(k + 3) % 4] = a[k + 3]; commit; use a_s[k %
///                                   4]
TileKernel pipeline(const TileKernel& kernel, const CiteStep& cite);

/// Makes what threads write visible to what goes another way to shared memory, instructions that read it by descriptors
/// and boxes that leave it: a fence behind the writes, before the barrier.
///
///     a_s[...] = ...; wgmma(acc, a_s)    a_s[...] = ...; fence_proxy_async(); wgmma(acc, a_s)
TileKernel fence_proxies(const TileKernel& kernel);

/// Makes calls of the boxes that leave shared memory. One thread asks for them; before their tile is filled again, and
/// before the kernel ends, it waits until they have been read. In a pipelined loop the tile has a buffer for each
/// stage.
///
///     for t: c_s = ...; boxes of c_s    for t: tma_store_wait_read(); c_s = ...; tma_store(c_s); tma_store_commit()
TileKernel store_boxes(const TileKernel& kernel, const CiteStep& cite);

/// Has the blocks of a persistent kernel take tiles as they come, one thread for its block: it asks for the next ticket
/// before the work of a round, so that it is there behind it, and hands it on. Roles get it through a ring of two
/// tickets, so the one that takes it is at most a tile ahead of the slowest; else the threads meet. Each round takes
/// one ticket, so all blocks together take as many as there are tiles, and the counter is zero again.
///
///     for round: ...    next = block
///                       for round, while next < tiles:
///                           taken = take_ticket(tickets); ...
///                           wait(empty[round % 2]); tickets_s[round % 2] = taken; arrive(full[round % 2]); next =
///                           taken (others: wait(full[round % 2]); next = tickets_s[round % 2]; arrive(empty[round %
///                           2]))
TileKernel take_tickets(const TileKernel& kernel);

/// Has warpgroups take turns at the stages of each exclusive section: named barriers, one a warpgroup, in each list of
/// statements that has all of the stages, so in iterations of the innermost loop around them. Whose turn it is waits
/// for the warpgroup before; behind the last stage, of a product of wgmma behind its commit, it tells the next one. The
/// first warpgroup's first turn is told by the last one, whose last word it awaits at the end, so that no barrier is
/// left with arrivals. Throws Error if fewer than two warpgroups compute, if a loop around runs a number of times that
/// differs among them, or if barriers do not suffice.
///
///     for k: wgmma(s); commit; wait    if (last group) arrive(2)
///                                      for k: sync(2 + group); wgmma(s); commit; arrive(2 + (group + 1) % groups);
///                                      wait if (first group) sync(2)
TileKernel exclusive_sections(const TileKernel& kernel, const CiteStep& cite);

/// Where the arrays of shared memory do not fit side by side, has those that are never needed at once take turns at the
/// same bytes, whose last reader is gone. An array that others, boxes or another role, fill comes first in its bytes. A
/// mark says where one begins; in front of it, insert_barriers sees to it, all threads are done with what was there.
///
///     a_s = ...; h = a_s; y_s = ...; y = y_s    a_s in turn with y_s: a_s = ...; h = a_s; begin y_s; y_s = ...; y =
///                                               y_s
TileKernel reuse_shared(const TileKernel& kernel, const Target& target);

}  // namespace tw::codegen
