#include "dsl/follow_part.h"

#include "dsl/replayer.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

/// Of each operation of the part, the one here.
class Counterparts {
public:
    Counterparts(const std::vector<Tensor>& theirs, const std::vector<Tensor>& ours, std::source_location where)
        : where_(where) {
        user_check(theirs.size() == ours.size(), where,
                   "follow_part: {} results for a part that has {}; name one for each of its outputs", ours.size(),
                   theirs.size());
        for (size_t k = 0; k < ours.size(); ++k) {
            user_check(ours[k].defined(), where, "follow_part: result {} is an undefined tensor", k);
            pair(theirs[k].operation(), ours[k].operation());
        }
    }

    const std::map<OperationRef, OperationRef>& all() const { return found_; }

private:
    void pair(const OperationRef& theirs, const OperationRef& ours) {
        const auto [known, is_new] = found_.emplace(theirs, ours);
        if (!is_new) return require(known->second == ours, theirs, ours);
        require(theirs->outputs.size() == ours->outputs.size() && theirs->shape.size() == ours->shape.size(), theirs,
                ours);
        if (theirs->is_input()) return;
        require(!ours->is_input(), theirs, ours);
        for (size_t k = 0; k < theirs->outputs.size(); ++k)
            pair_reads(theirs, ours, theirs->outputs[k].body, ours->outputs[k].body);
    }

    void pair_reads(const OperationRef& theirs, const OperationRef& ours, const Expr& a, const Expr& b) {
        std::vector<const Read*> of_theirs = reads_in(a), of_ours = reads_in(b);
        require(of_theirs.size() == of_ours.size(), theirs, ours);
        for (size_t k = 0; k < of_theirs.size(); ++k) {
            require(of_theirs[k]->output == of_ours[k]->output, theirs, ours);
            pair(of_theirs[k]->operation, of_ours[k]->operation);
        }
    }

    /// In an order that two equal expressions have, whatever of them is shared.
    static std::vector<const Read*> reads_in(const Expr& body) {
        std::vector<const Read*> found;
        std::set<const Operation*> seen;
        visit_with_extents(body, [&](const Expr& e) {
            if (const Read* read = e.as<Read>(); read && seen.insert(read->operation.get()).second)
                found.push_back(read);
        });
        return found;
    }

    void require(bool holds, const OperationRef& theirs, const OperationRef& ours) const {
        user_check(holds, where_, "follow_part: '{}' is not declared as '{}' of the part; name results that are",
                   ours->name, theirs->name);
    }

    std::map<OperationRef, OperationRef> found_;
    std::source_location where_;
};

/// Loops or stages that a step has made on both sides, in their order.
void add_new(std::map<int, int>& numbers, size_t theirs_before, size_t theirs, size_t ours_before, size_t ours) {
    internal_check(theirs - theirs_before == ours - ours_before, "a step of a part makes as much as in the part alone");
    for (size_t k = theirs_before; k < theirs; ++k)
        numbers[static_cast<int>(k)] = static_cast<int>(ours_before + k - theirs_before);
}

}  // namespace

void Replayer::follow(Schedule& schedule, const Schedule& part, const std::vector<Tensor>& results,
                      std::source_location where) {
    const Counterparts counterparts(part.outputs(), results, where);
    Replayer theirs(part.outputs(), part.target(), where), ours(schedule.outputs(), schedule.target(), where);
    ours.schedule_ = schedule;
    ours.loops_.emplace(), ours.stages_.emplace();
    ours.operations_.clear();
    auto state_of = [](const Replayer& one) -> const Schedule::State& { return *one.schedule_.state_; };
    for (const auto& [in_part, here] : counterparts.all()) {
        ours.operations_[in_part->name] = here;
        const int stage = state_of(theirs).stage_of(in_part.get());
        if (stage < 0) continue;
        const int own = state_of(ours).stage_of(here.get());
        user_check(own >= 0, where, "follow_part: '{}' is no stage of the schedule; name tensors that it computes",
                   here->name);
        const StageRecord &from = state_of(theirs).stages[static_cast<size_t>(stage)],
                          &to = state_of(ours).stages[static_cast<size_t>(own)];
        user_check(to.step < 0 && to.relations.empty() && to.order.size() == from.order.size() && !to.inlined, where,
                   "follow_part: '{}' has been scheduled; take a part's steps before others on it", here->name);
        (*ours.stages_)[stage] = own;
        for (size_t k = 0; k < from.roots.size(); ++k) (*ours.loops_)[from.roots[k]] = to.roots[k];
    }
    for (size_t k = 0; k < part.state_->saved.size(); ++k) {
        const size_t loops = state_of(theirs).loops.size(), stages = state_of(theirs).stages.size(),
                     own_loops = state_of(ours).loops.size(), own_stages = state_of(ours).stages.size();
        theirs.apply(part.state_->saved[k], static_cast<int>(k) + 2);
        ours.apply(part.state_->saved[k], static_cast<int>(k) + 2);
        add_new(*ours.loops_, loops, state_of(theirs).loops.size(), own_loops, state_of(ours).loops.size());
        add_new(*ours.stages_, stages, state_of(theirs).stages.size(), own_stages, state_of(ours).stages.size());
    }
    for (const std::string& note : part.state_->notes)
        if (!note.starts_with('[')) Edit::note(ours.schedule_, note);  // those of steps have been made again
    schedule = std::move(ours.schedule_);
}

void follow_part(Schedule& schedule, const Schedule& part, const std::vector<Tensor>& results,
                 std::source_location where) {
    Replayer::follow(schedule, part, results, where);
}

}  // namespace tw
