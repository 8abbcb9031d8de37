// Followers: where stages behind the body of a loop read what its iterations make.
#pragma once
#include <vector>

#include "dsl/schedule_state.h"
#include "dsl/simplify.h"

namespace tw {

using Access = std::vector<Expr>;  ///< an index a dimension

/// The stage that owns the loop under which `stage` stands.
int leader_of(const Schedule::State& state, int stage);
/// Whether `inner` stands somewhere under a loop of `outer`.
bool stands_in(const Schedule::State& state, int inner, int outer);
/// Indices at which `definition`, together with the stages that stand in `around`, reads the target.
std::vector<Access> accesses(const Schedule::State& state, const StageDefinition& definition, int around, int target);

/// Loops of the stage from the outermost to `loop`, inclusive.
std::vector<int> loops_to(const Schedule::State& state, int stage, int loop);

/// Whether the stage is made for the leader, in its loops, and read by it.
bool is_made_for(const Schedule::State& state, int leader, int stage);
/// Whether the leader reads the stage, which is made for it, or by a kernel before.
bool is_read_by(const Schedule::State& state, int leader, int stage);
/// The one index, over the leader's axes, at which it reads each dimension of such a stage; undefined where it has
/// several.
Access indices_read(const Schedule::State& state, int leader, int stage);

/// What each iteration of a leader reads at an index that is no axis of it, as i * n + j: blocks of `size`, from
/// `first` on, one behind the other up to `all`.
struct Blocks {
    Expr index, first;
    int64_t size = 0;
    Expr all;
    std::vector<int> loops;  ///< that lead to the block
};
/// Of all such indices of a leader whose loops all are its own, where loops count blocks through, each once.
std::vector<Blocks> blocks_made(const Schedule::State& state, int leader, int loop, std::source_location where);

/// Which of the leader's indices belong to index e of a dimension of another stage: `times` of them from
/// e * times / over on.
struct Along {
    int dimension = -1;  // of the leader; -1: all of its indices, or a dimension of which each iteration makes all
    int64_t times = 1, over = 1;
    bool is_apart = false;  // some of the indices, which no dimension tells

    Expr first(const Expr& index) const { return simplify(index * times / over); }
};

/// Whether the loops from the outermost to `loop` lead to both elements of the leader in one iteration, as far as their
/// indices are given.
bool in_same_iteration(const Schedule::State& state, int leader, int loop, const Access& one, const Access& other,
                       std::source_location where);

/// Adds values of the loops that come from those of the leader whose values are known.
void add_parts_of_loops(const Schedule::State& state, const StageRecord& leader, std::map<int, Expr>& value);

/// Whether the stage is one of updates, or made for a copy under its loops that makes them.
bool makes_updates(const Schedule::State& state, int stage);
/// Whether the stage stands behind the body of a loop inside the reduce loops of another: it keeps, with each
/// iteration, elements that the iteration has made for its terms.
bool follows_terms(const Schedule::State& state, int stage);
/// The one that does so, and is the stage or stands around it; -1 without.
int follower_of_terms_around(const Schedule::State& state, int stage);
/// Over the axes of one that does: that in the iteration of the reduce loop `loop` around it, at the element's place
/// along the loop, something may fulfil the conditions in the selects of `stage`. It holds where the element's own do,
/// and skip leaves such iterations in.
std::vector<Expr> fulfilled_beside(const Schedule::State& state, int follower, int stage, int loop,
                                   std::source_location where);
/// The region of one that does. Throws Error unless all its elements are made, each once.
Region region_beside_terms(const Schedule::State& state, int stage, std::source_location where);

}  // namespace tw
