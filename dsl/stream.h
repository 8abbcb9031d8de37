// Streams: reductions over the same terms that share the loop of one of them, its owner, in one pass. Inside of dsl/.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "dsl/ratio.h"
#include "dsl/schedule_state.h"

namespace tw {

/// "lazy"
std::string word_of(Reference::Kind kind);

inline const StageDefinition& definition_of(const Schedule::State& state, int stage) {
    return state.stages[stage].definition;
}
/// The stages whose elements the expressions read.
std::vector<int> producers_of(const Schedule::State& state, const std::vector<Expr>& exprs);
/// Whether the stage shares the loop of another one.
bool is_member(const Schedule::State& state, int stage, int loop);

/// The reductions that share the loop with its owner, producers first, without the owner.
std::vector<int> streamed_along(const Schedule::State& state, int loop);
/// The loop that the stage shares with others: of a member its owner's, of an owner its own; -1 if there is none.
int shared_loop(const Schedule::State& state, int stage);
/// Whether stages under the shared loop read the stage's elements, whose reduction still runs then.
bool is_read_running(const Schedule::State& state, int stage);
/// Whether the site's leaf stands where the reduction `producer` still runs.
bool reads_running(const Schedule::State& state, int reader, bool in_update, int producer);

/// The terms that a stage reduces in one iteration of the loop that it shares: of each reduce axis the first index, and
/// how many. Throws Error if that is no box of constant extents.
Region shared_terms(const Schedule::State& state, int stage, std::source_location where);
/// The value of a reduce axis, of its loops and, if the stage shares another one's, of that.
Expr reduce_value(const Schedule::State& state, int stage, size_t axis, std::source_location where);

/// Reductions over the same terms, producers first; the loop that they share, or have parts along, is the last one's.
struct Chain {
    const char* step;  ///< that joins them, for messages
    std::vector<int> members;

    bool has(int stage) const { return std::ranges::find(members, stage) != members.end(); }
};
/// How many terms it has, as messages say it: "4 x 8".
std::string terms_text(const StageDefinition& reduction);
/// Those that share the loop.
Chain chain_along(const Schedule::State& state, int loop);
/// Whether all is as steps on a chain require it of its reductions: nothing was done yet to loops other than the last
/// one's. Throws Error if not.
void check_chain(const Schedule::State& state, const Chain& chain, std::source_location where);
/// Stages that reduce nothing, depend on members and are read by terms.
std::vector<int> stages_between(const Schedule::State& state, const Chain& chain);

/// A running value that terms depend on.
struct RunningValue {
    Expr before;  ///< Variable that stands for it before the iteration
    Expr now;     ///< the Read
};

/// How a reduction of a stream goes on when those before it have gone on.
struct StreamLink {
    std::vector<RunningValue> values;     ///< that its terms depend on
    std::vector<Correction> corrections;  ///< one an accumulator, of these
    bool raw_before = false;              ///< values before are taken as they are: where one is still empty, the factor
                                          ///< is 0, and so are all terms so far
    bool keeps_identity = false;          ///< an accumulator that is the identity still stays so, whatever the factor
    std::vector<Invertible> inverted;     ///< as of Law
    bool rounds = false;                  ///< as of Law
};
/// Throws Error naming the law that fails if the stage cannot go on with others' values that change.
StreamLink stream_link(const Schedule::State& state, int stage, const Chain& chain, std::source_location where);
/// Of the chain that shares its loop.
StreamLink stream_link(const Schedule::State& state, int stage, std::source_location where);

/// Whether the stage is reduced with references that are not the values so far of what its terms read.
bool is_relative(const Schedule::State& state, int stage);
/// Whether the last reference that terms read of the stage has to be kept for corrections behind the loop: nothing
/// else tells it.
bool keeps_reference(const Schedule::State& state, int stage);
/// Whether the terms' references never change in the loop.
bool is_free_of_corrections(const Schedule::State& state, const StreamLink& link);
/// The value and a number, in a type that can be calculated with in between.
Expr plus_offset(const Expr& value, double by);
/// Whether they are no equal numbers.
Expr differ(const Expr& a, const Expr& b);
/// Whether two values of the type differ by no more; never of integers.
Expr is_within(const Expr& a, const Expr& b, double by);

/// What stands for a running value of which corrections have no inverse: an infinity that an empty reduction gives, or
/// a zero that is divided by.
struct NeutralValue {
    Expr variable;  ///< stands for the value
    Expr replaced;  ///< the condition on it
    Expr neutral;

    Expr of(const Expr& value) const;
};
std::optional<NeutralValue> neutral_value(const Schedule::State& state, int stage, size_t output, const Chain& chain,
                                          std::source_location where);
std::optional<NeutralValue> neutral_value(const Schedule::State& state, int stage, size_t output,
                                          std::source_location where);

/// Whether the owner's reduce loops down to the one that others share may be shared. Throws Error if not.
void check_shared_loops(const Schedule::State& state, int owner, int loop, std::source_location where);
/// Whether elements of reductions that share a loop have equally many terms. Throws Error if not. Regions are
/// up to date.
void check_lengths_alike(const Schedule::State& state, std::source_location where);
/// Whether all is as stream() requires it. Throws Error if not.
void check_streams(const Schedule::State& state, std::source_location where);

}  // namespace tw
