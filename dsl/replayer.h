// A schedule that takes the steps of a saved trace.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "dsl/edit.h"
#include "dsl/listed_terms.h"
#include "dsl/replay_changed.h"
#include "dsl/replay_steps.h"
#include "dsl/schedule_state.h"
#include "dsl/stream.h"
#include "dsl/words_of_steps.h"
#include "support/error.h"

namespace tw {

class Replayer {
public:
    static constexpr const char* header_without_version = "tilewright trace ";
    static constexpr const char* header = "tilewright trace 1";

    Replayer(const std::vector<Tensor>& outputs, Target target, std::source_location where)
        : schedule_(outputs, std::move(target), where), where_(where) {
        for (const auto& operation : operations_of(outputs)) operations_[operation->name] = operation;
    }

    /// What errors of steps say behind what was wrong.
    Replayer& advising(const std::string& advice) {
        advice_ = advice;
        return *this;
    }

    /// The steps that the part's schedule has taken, on the schedule, of whose computation the part is one: see
    /// follow_part().
    static void follow(Schedule& schedule, const Schedule& part, const std::vector<Tensor>& results,
                       std::source_location where);

    /// Of a ChangeableTrace: what its steps make and name; and its steps with changes.
    static void look_at(ChangeableTrace& trace);
    static Schedule changed(const ChangeableTrace& trace, const std::vector<StepChange>& changes,
                            std::source_location where);

    /// `seen`, if there is one, sees the schedule before the first step and after each.
    Schedule run(const std::string& saved, const SeeSchedule& seen = {}) {
        std::istringstream lines(saved);
        std::string line;
        std::getline(lines, line);
        user_check(line.starts_with(header_without_version), where_,
                   "replay: the text does not start with \"{}\"; it is no saved trace", header);
        user_check(line == header, where_,
                   "replay: the text is a \"{}\", this library reads \"{}\"; replay it with the version that saved it, "
                   "or save it with this one",
                   line, header);
        if (seen) seen(schedule_);
        for (int number = 2; std::getline(lines, line); ++number) {
            if (line.empty()) continue;
            apply(line, number);
            if (seen) seen(schedule_);
        }
        return std::move(schedule_);
    }

private:
    void apply(const std::string& line, int number) {
        words_ = std::istringstream(line);
        std::string verb = word();
        bool is_read = true;
        try {
            is_read = step(verb) && words_;
            user_check(is_read, where_, "replay: cannot read \"{}\"", line);
        } catch (const Error& error) {
            throw Error(error.site(), fmt::format("{}replay: line {}: {}: {}{}", where_prefix(where_), number, line,
                                                  error.what(), is_read && words_ ? advice_ : ""));
        }
    }

    bool step(const std::string& verb) {
        if (verb == "split") {
            Loop loop = next_loop();
            int64_t size = integer();
            std::string tail = word();
            if (!words_ || (tail != "mask" && tail != "divide")) return false;
            SplitNames names{name_or_none(), name_or_none()};
            schedule_.split(loop, size, tail == "mask" ? Tail::Mask : Tail::Divide, names, where_);
        } else if (verb == "fuse") {
            Loop outer = next_loop(), inner = next_loop();
            schedule_.fuse(outer, inner, name_or_none(), where_);
        } else if (verb == "join_axes") {
            Stage stage = next_stage();
            const int first = integer(), last = integer();
            schedule_.join_axes(stage, first, last, where_);
        } else if (verb == "join_axes_of") {
            StageRef input = operand();
            const int first = integer(), last = integer();
            schedule_.join_axes(input, first, last, where_);
        } else if (verb == "align") {
            Loop loop = next_loop();
            StageRef source = operand();
            schedule_.align(loop, source, integer(), where_);
        } else if (verb == "order") {
            schedule_.order(rest_as_loops(), where_);
        } else if (verb == "cut") {
            Loop loop = next_loop();
            std::vector<Expr> positions(static_cast<size_t>(std::clamp(integer(), 0, 1 << 10)));
            for (Expr& each : positions) each = position();
            schedule_.cut(loop, positions, where_);
        } else if (verb == "cut_partial") {
            Loop loop = next_loop();
            schedule_.cut(loop, where_partial(next_stage()), where_);
        } else if (verb == "skip") {
            Loop loop = next_loop();
            schedule_.skip(loop, next_stage(), where_);
        } else if (verb == "bind") {
            Loop loop = next_loop();
            schedule_.bind(loop, level_named(word(), where_), where_);
        } else if (verb == "at") {
            Stage stage = next_stage();
            schedule_.at(stage, next_loop(), where_);
        } else if (verb == "inline") {
            schedule_.inline_stage(next_stage(), where_);
        } else if (verb == "stage") {
            Stage reader = next_stage();
            StageRef source = operand();
            Memory where_to = memory_named(word(), where_);
            int loop = integer();
            if (loop < 0)
                schedule_.stage(reader, source, where_to, where_);
            else
                schedule_.stage(reader, source, where_to, loop_of(loop), where_);
        } else if (verb == "stage_for") {
            std::vector<StageRef> readers;
            for (int left = std::clamp(integer(), 0, 1 << 10); left > 0; --left) readers.push_back(next_stage());
            StageRef source = operand();
            Memory where_to = memory_named(word(), where_);
            schedule_.stage(readers, source, where_to, next_loop(), where_);
        } else if (verb == "stage_as_matrix") {
            Stage reader = next_stage();
            StageRef source = operand();
            Memory where_to = memory_named(word(), where_);
            schedule_.stage(reader, source, where_to, next_loop(), As::Matrix, where_);
        } else if (verb == "stream") {
            std::vector<StageRef> reductions;
            for (int left = std::clamp(integer(), 0, 1 << 10); left > 0; --left) reductions.push_back(next_stage());
            const Loop along = next_loop();
            schedule_.stream(reductions, along, references(), where_);
        } else if (verb == "rfactor_chain") {
            std::vector<StageRef> reductions;
            for (int left = std::clamp(integer(), 0, 1 << 10); left > 0; --left) reductions.push_back(next_stage());
            schedule_.rfactor(reductions, next_loop(), where_);
        } else if (verb == "result") {
            Stage stage = next_stage();
            Memory where_to = memory_named(word(), where_);
            schedule_.stage(stage, where_to, next_loop(), where_);
        } else if (verb == "pipeline") {
            Loop loop = next_loop();
            int stages = integer();
            schedule_.pipeline(loop, {.stages = stages, .in_flight = number_or(0)}, where_);
        } else if (verb == "roles") {
            schedule_.roles(roles(), where_);
        } else if (verb.starts_with("persistent")) {
            const bool dynamic = verb.starts_with("persistent_dynamic"),
                       longest_first = verb.find("_longest_first") != verb.npos || verb == "persistent_growing";
            int stages = verb.ends_with("_staged") ? integer() : 1, blocks = integer();
            schedule_.persistent(
                rest_as_loops(),
                {.blocks = blocks, .longest_first = longest_first, .stages = stages, .dynamic = dynamic}, where_);
        } else if (verb == "exclusive") {
            std::vector<StageRef> stages;
            for (int left = std::clamp(integer(), 0, 1 << 10); left > 0; --left) stages.push_back(next_stage());
            schedule_.exclusive(stages, where_);
        } else if (verb == "occupancy") {
            Stage stage = next_stage();
            schedule_.occupancy(stage, integer(), where_);
        } else if (verb == "mma") {
            Stage stage = next_stage();
            MatrixUnit unit = matrix_unit_named(word(), where_);
            Loop m = next_loop(), n = next_loop(), k = next_loop();
            schedule_.mma(stage, unit, {m, n, k}, where_);
        } else if (verb == "via") {
            Stage stage = next_stage();
            schedule_.via(stage, copy_named(word(), where_), where_);
        } else if (verb == "rfactor" || verb == "partial") {
            Stage stage = next_stage();
            Loop loop = next_loop();
            schedule_.rfactor(stage, loop, combine(), where_);
        } else if (verb == "running") {
            Stage stage = next_stage();
            schedule_.running(stage, next_loop(), where_);
        } else if (verb == "reverse") {
            schedule_.reverse(next_loop(), where_);
        } else if (verb == "delay") {
            Stage stage = next_stage();
            Loop loop = next_loop();
            const int iterations = integer(), before = number_or(-1);
            DelayOptions options{.iterations = iterations};
            if (before >= 0) options.before = stage_of(before);
            schedule_.delay(stage, loop, options, where_);
        } else if (verb == "accumulators" || verb == "totals") {
            Stage stage = next_stage();
            schedule_.accumulators(stage, where_);
        } else if (verb == "scatter") {
            Stage stage = next_stage();
            schedule_.scatter(stage, combine(), where_);
        } else if (verb == "list_terms") {
            Stage stage = next_stage();
            ListOptions options{.elements = large_integer(), .terms = 0};
            options.terms = large_integer();
            list_terms(schedule_, stage, options, where_);
        } else if (verb == "memory") {
            Stage stage = next_stage();
            schedule_.set_memory(stage, memory_named(word(), where_), where_);
        } else if (verb == "round_to") {
            Stage stage = next_stage();
            schedule_.round_to(stage, type_named(word(), where_), where_);
        } else if (verb == "strides") {
            const StageRef out = operand();
            std::vector<int64_t> strides(static_cast<size_t>(std::max(integer(), 0)));
            for (int64_t& stride : strides) stride = large_integer();
            schedule_.strides(out.tensor_, strides, where_);
        } else if (verb == "in_place") {
            StageRef out = operand(), in = operand();
            schedule_.in_place(out.tensor_, in.tensor_, where_);
        } else {
            return list_step(verb);
        }
        return true;
    }

    /// Steps on several loops or stages at once.
    bool list_step(const std::string& verb) {
        if (verb == "split_by") {
            const Loop loop = next_loop();
            const Tail tail = word() == "mask" ? Tail::Mask : Tail::Divide;
            std::vector<int64_t> sizes;
            for (int left = count(); left > 0; --left) sizes.push_back(integer());
            std::vector<std::string> names;
            for (std::string name = name_or_none(); !name.empty(); name = name_or_none()) names.push_back(name);
            schedule_.split(loop, sizes, tail, names, where_);
        } else if (verb == "fuse_all") {
            std::vector<Loop> loops;
            for (int left = count(); left > 0; --left) loops.push_back(next_loop());
            schedule_.fuse(loops, name_or_none(), where_);
        } else if (verb == "bind_all") {
            const Level to = level_named(word(), where_);
            schedule_.bind(rest_as_loops(), to, where_);
        } else if (verb == "at_all") {
            const Loop loop = next_loop();
            const Memory where_to = memory_named(word(), where_);
            schedule_.at(rest_as_stages(), loop, where_to, where_);
        } else if (verb == "stages") {
            const Memory where_to = memory_named(word(), where_);
            const Loop loop = next_loop();
            const std::string rounded = word();
            std::vector<CopyOf> copies;
            for (int left = count(); left > 0; --left) {
                std::vector<StageRef> readers;
                for (int each = count(); each > 0; --each) readers.push_back(next_stage());
                copies.emplace_back(readers, operand());
            }
            schedule_.stage(copies, where_to, loop,
                            rounded == "as_it_is" ? std::nullopt : std::optional(type_named(rounded, where_)), where_);
        } else if (verb == "mma_all") {
            const MatrixUnit unit = matrix_unit_named(word(), where_);
            schedule_.mma(rest_as_stages(), unit, where_);
        } else {
            return false;
        }
        return true;
    }

    int count() { return std::clamp(integer(), 0, 1 << 10); }

    std::string word() {
        std::string text;
        words_ >> text;
        return text;
    }

    int64_t large_integer() {
        int64_t value = 0;
        words_ >> value;
        user_check(words_, where_, "a number is missing");
        return value;
    }
    int integer() {
        int value = -2;
        words_ >> value;
        user_check(words_, where_, "a number is missing");
        return value;
    }

    void apply_changed(const ChangeableTrace& trace, const StepChange& change);

    /// What the trace numbers so.
    Loop loop_of(int number) {
        named_loops_.push_back(number);
        const int own = renumbered(loops_, number);
        misses_ = misses_ || own < 0;
        return schedule_.numbered_loop(own);
    }
    Stage stage_of(int number) {
        const int own = renumbered(stages_, number);
        misses_ = misses_ || own < 0;
        return schedule_.numbered_stage(own);
    }
    static int renumbered(const std::optional<std::map<int, int>>& numbers, int number) {
        if (!numbers) return number;
        const auto found = numbers->find(number);
        return found == numbers->end() ? -1 : found->second;
    }
    Loop next_loop() { return loop_of(integer()); }
    Stage next_stage() { return stage_of(integer()); }

    int number_or(int missing) {
        int value = missing;
        if (words_ >> value) return value;
        words_.clear();
        return missing;
    }

    /// A loop's name, if one follows.
    std::string name_or_none() {
        std::string text;
        if (words_ >> text) return name_from_saved(text);
        words_.clear();
        return "";
    }

    std::vector<Loop> rest_as_loops() {
        std::vector<Loop> loops;
        for (int id; words_ >> id;) {
            Loop loop = loop_of(id);
            if (loop.id >= 0 || !leaves_out_) loops.push_back(std::move(loop));
        }
        words_.clear();
        return loops;
    }

    std::vector<StageRef> rest_as_stages() {
        std::vector<StageRef> stages;
        for (int id; words_ >> id;) stages.push_back(stage_of(id));
        words_.clear();
        return stages;
    }

    /// The stage, the kind and the number of each.
    std::vector<ReferenceOf> references() {
        std::vector<ReferenceOf> result;
        for (int stage; words_ >> stage;) {
            Reference reference{reference_kind_named(word(), where_), 0};
            words_ >> reference.by;
            user_check(words_, where_, "a number is missing");
            result.push_back({stage_of(stage), reference});
        }
        words_.clear();
        return result;
    }

    /// A role each: name, warps, registers, groups that play ping-pong, and how many stages follow.
    std::vector<Role> roles() {
        std::vector<Role> result;
        for (std::string name; words_ >> name;) {
            Role role{name, warps(integer()), registers(integer()), {}, ping_pong(integer())};
            for (int count = std::clamp(integer(), 0, 1 << 10); count > 0; --count) role.stages.push_back(next_stage());
            result.push_back(std::move(role));
        }
        words_.clear();
        return result;
    }

    /// Polish notation, see saved_position.
    Expr position() {
        static const std::map<std::string, BinaryOp> operators = {
            {"+", BinaryOp::Add}, {"-", BinaryOp::Sub},   {"*", BinaryOp::Mul},  {"/", BinaryOp::Div},
            {"%", BinaryOp::Mod}, {"min", BinaryOp::Min}, {"max", BinaryOp::Max}};
        std::string text = word();
        if (auto found = operators.find(text); found != operators.end()) {
            Expr a = position(), b = position();
            return binary(found->second, a, b);
        }
        if (text.rfind("n:", 0) == 0) return named_size(name_from_saved(text.substr(2)));
        bool is_loop = text.rfind('l', 0) == 0;
        std::istringstream digits(is_loop ? text.substr(1) : text);
        int64_t value = 0;
        user_check(static_cast<bool>(digits >> value), where_, "\"{}\" is no position of a cut", text);
        return is_loop ? schedule_.index(loop_of(static_cast<int>(value)), where_) : constant(Type::I64, value);
    }

    Expr named_size(const std::string& name) const {
        for (const Expr& size : schedule_.tree().sizes)
            if (to_string(size) == name) return size;
        user_error(where_, "the computation has no size '{}'", name);
    }

    /// "atomic", "search", or nothing.
    Combine combine() {
        std::string text;
        bool given = static_cast<bool>(words_ >> text);
        if (!given) words_.clear();
        if (!given) return Combine::Workspace;
        user_check(text == "atomic" || text == "search", where_, "\"{}\" is no way to combine", text);
        return text == "atomic" ? Combine::Atomic : Combine::Search;
    }

    StageRef operand() {
        std::string name = word();
        int number = integer();
        if (name == "s") return stage_of(number);
        if (name.rfind("t:", 0) == 0) name = name_from_saved(name.substr(2));
        auto found = operations_.find(name);
        user_check(found != operations_.end(), where_, "the computation has no tensor '{}'", name);
        int outputs = static_cast<int>(found->second->outputs.size());
        user_check(number >= 0 && number < outputs, where_, "'{}' has {} outputs, not an output {}", name, outputs,
                   number);
        return Tensor(found->second, number);
    }

    Schedule schedule_;
    std::source_location where_;
    std::string advice_;
    std::istringstream words_;
    std::map<std::string, std::shared_ptr<const Operation>> operations_;
    std::optional<std::map<int, int>> loops_, stages_;  ///< the schedule's numbers of those of the trace, if others
    std::vector<int> named_loops_;                      ///< by the trace's numbers
    bool leaves_out_ = false;                           ///< lists are shorter where they name what is not there
    bool misses_ = false;                               ///< something was named that is not there
};

}  // namespace tw
