// Matrix products that run on while a warpgroup goes on to other statements.
#pragma once
#include <optional>
#include <set>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Whether the statement asks for products that run on until they are waited for.
bool has_products(const TileStmt& stmt);

/// An iteration that ends while its products run, and what waits for them behind the loop. Of `made` buffers, their
/// reads are over so many iterations later.
struct ProductsInFlight {
    std::vector<TileStmt> kept, behind;
    std::vector<TileOp> reads = {};
};
/// So many groups of products may still run when the next iteration begins. Nothing if the statements do not end with
/// products alone, or touch their sums or store what they read, but for `made` buffers.
std::optional<ProductsInFlight> keep_in_flight(const std::vector<TileStmt>& stmts, int in_flight,
                                               const std::set<const BufferNode*>& made);

/// The statements of an iteration that ends with a loop in whose iterations products are in flight, with `over` in that
/// loop: behind the first wait that leaves none but this iteration's own products. So those of the last iterations run
/// on into the next one. Nothing if what stands beside the loop touches their sums or stores what they read, but for
/// `made` buffers.
std::optional<std::vector<TileStmt>> tell_when_earlier_are_over(const std::vector<TileStmt>& stmts,
                                                                const std::vector<TileStmt>& over,
                                                                const std::set<const BufferNode*>& made);

/// Buffers in shared memory that the role that computes makes anew in each iteration of the loop and asynchronous
/// products read, and nothing else. `kernel`: before it was pipelined.
std::vector<Buffer> made_for_products(const TileKernel& kernel, const TileLoop& loop);

/// Reads of these buffers by the last `in_flight` iterations of the loop in whose iterations products are in flight,
/// with which the statements end.
std::vector<TileOp> last_reads(const std::vector<TileStmt>& stmts, const std::set<const BufferNode*>& made);

/// The statements with `done` in front of the last products that they ask for: whoever goes on then asks for products
/// of its own while these run. Of a group over several terms, it stands in front of the last part; of loops over
/// products, in front of the loop. Nothing if there are no products.
std::optional<std::vector<TileStmt>> tell_before_last_products(const std::vector<TileStmt>& stmts,
                                                               const TileStmt& done);

}  // namespace tw::codegen
