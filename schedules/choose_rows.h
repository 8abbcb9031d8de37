// Groups of rows with the schedules that hand-made kernels of rows have.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "schedules/cooperative_rows.h"
#include "schedules/row_groups.h"
#include "schedules/streamed_rows.h"

namespace tw::schedules {

/// How the threads of a block make the rows of a group.
struct RowSchedule {
    bool streams = false;  ///< in one pass, by `chunks`; else by `threads`
    RowThreads threads = {};
    RowChunks chunks = {};
    Tensor aligned = {};  ///< whose rows begin anywhere
};
/// To try, the best first: rows that registers hold are kept there, of others, and of those that more than a warp would
/// hold where none is stored, reductions that need each other's results only inside of exponentials go through them
/// together, or each by itself. What would take most registers, or more than there are, is kept in shared memory where
/// that has room.
std::vector<RowSchedule> row_schedules(const RowGroup& group, const Target& target);
/// Whether no reduction reads another's result, but for exponents, which streams correct by a factor that is exact
/// up to rounding.
bool reads_in_exponents(const RowGroup& group);

/// Schedules the stages of the group as one kernel, with those sums over its rows, if they are defined.
void schedule_rows(Schedule& s, const RowGroup& group, const RowSchedule& how, const Tensor& sums = {});
/// The operations that are stages of it.
std::vector<Tensor> tensors_of(const RowGroup& group);
/// "'y', 'mean': rows of 768 elements, kept in registers by one kernel".
std::string text_of(const RowGroup& group, const RowSchedule& how);

/// The groups of a computation that are kernels.
class ChosenRows {
public:
    /// Each with the first of its schedules that can be built, beside what is chosen already: `lowered` gives the whole
    /// schedule with the groups that hold() so far, or nothing, and says why.
    /// The kernel of a group makes also that of `sums`, over [columns], which reads what it keeps of each row.
    std::optional<Schedule> choose(const std::vector<Tensor>& outputs, const std::vector<Tensor>& sums,
                                   const RowGrouping& how, const Target& target,
                                   const std::function<std::optional<Schedule>(std::string& why)>& lowered);
    bool holds(const Schedule& s, Stage stage) const;
    void schedule(Schedule& s) const;

    std::vector<std::string> notes;    ///< for explain()
    std::vector<std::string> in_vain;  ///< a name of each group that is none
    bool sums_in_vain = false;         ///< of one of them, since it cannot make sums that read what it keeps

private:
    struct Chosen {
        RowGroup group;
        RowSchedule how;
        std::vector<Tensor> tensors;
        Tensor sums = {};
    };
    /// A group, and its schedules, the best first.
    struct Candidate {
        RowGroup group = {};
        std::vector<RowSchedule> ways = {};
        Tensor sums = {};
    };
    std::optional<Schedule> choose_first_ways(const std::vector<Candidate>& candidates,
                                              const std::function<std::optional<Schedule>(std::string& why)>& lowered);
    void take(const Candidate& candidate, const RowSchedule& way);
    void tell(const Candidate& candidate, const RowSchedule& way);

    std::vector<Chosen> chosen_;
};

}  // namespace tw::schedules
