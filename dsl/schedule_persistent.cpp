// How many blocks there are: a fixed number that takes the iterations of a grid, and those of a multiprocessor.
#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "dsl/schedule.h"
#include "support/error.h"

namespace tw {

void Schedule::persistent(const std::vector<Loop>& loops, PersistentOptions options, std::source_location where) {
    Edit edit(state_, where);
    user_check(!loops.empty(), where, "persistent: name the loops that blocks take in turn, outermost first");
    user_check(options.blocks >= 0, where, "persistent: {} blocks; leave it open for one on each multiprocessor",
               options.blocks);
    user_check(options.stages >= 1 && options.stages <= most_stages, where,
               "persistent: {} stages; what a role copies for an iteration has 1 to {} buffers", options.stages,
               most_stages);
    std::vector<std::string> texts, saved;
    int stage = -1;
    for (Loop loop : loops) {
        int id = edit.alive(loop, "persistent");
        LoopRecord& record = edit.state.loops[id];
        user_check(stage < 0 || record.stage == stage, where,
                   "persistent: loop '{}' belongs to another stage than '{}'", record.name,
                   edit.state.loops[loops[0].id].name);
        stage = record.stage;
        check_level(edit, record, Level::GridX);
        user_check(record.delay.iterations == 0, where,
                   "persistent: a stage is delayed in loop '{}': its iterations follow each other; delay(stage, loop, "
                   "0) first",
                   record.name);
        user_check(record.level == Level::Serial && record.stages == 1 && record.is_whole(), where,
                   "persistent: loop '{}' is bound to {}, pipelined or cut already; bind(loop, serial) frees it",
                   record.name, tw::to_string(record.level));
        record.level = Level::GridX;
        record.bind_step = edit.step;
        texts.push_back(edit.loop_as_cpp(id));
        saved.push_back(fmt::format("{}", id));
    }
    int blocks = options.blocks ? options.blocks : edit.state.target.multiprocessors;
    edit.state.stages[stage].persistent_blocks = blocks;
    edit.state.stages[stage].longest_first = options.longest_first;
    edit.state.stages[stage].persistent_stages = options.stages;
    edit.state.stages[stage].persistent_dynamic = options.dynamic;
    const bool staged = options.stages > 1;
    edit.commit(fmt::format("s.persistent({{{}}}, {{.blocks = {}{}{}{}}});", fmt::join(texts, ", "), blocks,
                            options.longest_first ? ", .longest_first = true" : "",
                            staged ? fmt::format(", .stages = {}", options.stages) : "",
                            options.dynamic ? ", .dynamic = true" : ""),
                fmt::format("persistent{}{}{} {} {}", options.dynamic ? "_dynamic" : "",
                            options.longest_first ? "_longest_first" : "",
                            staged ? fmt::format("_staged {}", options.stages) : "", blocks, fmt::join(saved, " ")));
}

void Schedule::occupancy(const StageRef& stage, int blocks, std::source_location where) {
    Edit edit(state_, where);
    const int id = edit.stage(stage, "occupancy");
    const int most = edit.state.target.blocks_per_multiprocessor;
    user_check(blocks >= 1 && blocks <= most, where,
               "occupancy: {} blocks; a multiprocessor of {} runs 1 to {} at a time", blocks, edit.state.target.arch,
               most);
    edit.state.stages[id].occupancy = {blocks, edit.step};
    edit.commit(fmt::format("s.occupancy({}, {});", edit.stage_as_cpp(id), blocks),
                fmt::format("occupancy {} {}", id, blocks));
}

}  // namespace tw
