// What the elements of a stage without reductions read and store, where that lies, and what a warp's accesses cost.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "dsl/schedule.h"

namespace tw::schedules {

/// An element of global memory that each element of the stage reads, or stores.
struct ElementAccess {
    BufferRef buffer;
    Expr place;  ///< elements from the buffer's first, by the variables of the loops
    bool is_store = false;
    bool is_guarded = false;  ///< read behind a condition, that chooses a constant in its place
    bool is_lazy = false;     ///< read in the branch that a condition chooses: by itself, whatever lies beside it
};

struct Elements {
    std::vector<Expr> loops;  ///< their variables, outermost first
    std::vector<int64_t> extents;
    std::vector<ElementAccess> accesses;   ///< each once
    int64_t operations = 0;                ///< nodes of what an element is made of
    double instructions_of_functions = 0;  ///< of exponentials, say; about so many beside `operations`
    int depth = 0;                         ///< of them below each other
    int64_t count() const;
};

/// Of a stage whose loops are as declared; nothing if it has no loops or elements, or places have no constant strides.
/// An outermost extent that is a named size is taken for a large number.
std::optional<Elements> elements_of(const Schedule& s, Stage stage);

/// Requests of a warp, and lines of the first-level cache that they touch, for 32 elements, where each thread has
/// `vector` elements side by side, and threads follow each other in the order of elements: 2 of f32 side by side, 1.25
/// by vectors of four, 33 where each element is in another line. A few warps are taken for all.
double cost_of(const Elements& elements, const ElementAccess& access, int64_t vector);

/// The same of all accesses, where reads of neighbours, as of a record, are made together (codegen/thread_passes,
/// join_reads).
double cost_of_all(const Elements& elements, int64_t vector);

/// Whether elements of tensors choose which one is read.
bool is_chosen_by_data(const Read& read);

/// Elements of the buffer; nothing if they depend on named sizes.
std::optional<int64_t> size_of(const BufferNode& buffer);

}  // namespace tw::schedules
