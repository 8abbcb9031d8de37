#include "schedules/cooperative_rows.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "dsl/tree.h"
#include "schedules/long_reductions.h"
#include "schedules/producers.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t elements_wanted = 40;  // of a row, in a thread's registers
constexpr int64_t most_kept = 64;        // more than that spills, or leaves too few threads to hide latency
constexpr int64_t terms_of_means = 160;  // of a thread: what combining running means of threads takes is a third then
constexpr int64_t most_vectors = 4;      // of a thread's part, whose number of terms is known,
constexpr int64_t terms_of_part = 8;     // and of single elements so many: more would not be unrolled

/// Vectors that a thread takes in a step of a reduction, so that it loads several at once: 1 where the number of steps
/// has a part that loops are unrolled by, as most have.
int64_t vectors_of_step(int64_t steps) {
    constexpr int64_t least = 4, most = 8;
    for (int64_t together = least; together <= most; ++together)
        if (steps <= most || steps % together == 0) return 1;
    return least;
}

/// The same of copies into shared memory, of single elements more; few are left over.
int64_t vectors_of_copy(int64_t steps, int64_t neighbours) {
    constexpr int64_t vectors = 4, elements = 8;
    const int64_t least = std::max(vectors, elements / neighbours);
    if (steps <= least) return 1;
    for (int64_t together : {least, least + least / 4, least - least / 4})
        if (steps % together == 0) return together;
    return least;
}

/// How threads go through a row: those vectors that all have without masks, so that none waits for another; and several
/// at once, or the same of copies.
enum class Steps { Masked, Whole, Together, Copied };

int64_t vectors_together(Steps how, int64_t steps, int64_t neighbours) {
    if (how == Steps::Together) return vectors_of_step(steps);
    return how == Steps::Copied ? vectors_of_copy(steps, neighbours) : 1;
}

/// Neighbouring threads get neighbouring vectors of the row.
void spread(Schedule& s, const StageRef& stage, Loop loop, Steps how, const RowThreads& shape) {
    const bool reduces = s.reduces(stage);
    const int64_t elements = shape.threads * shape.neighbours;
    const auto columns = as_constant(s.extent(loop));
    const int64_t vectors = columns ? vectors_together(how, *columns / elements, shape.neighbours) : 1;
    auto [step, in_step] = s.split(loop, elements * vectors, Tail::Mask, {"step", "in_step"});
    Loop inside = in_step;
    if (vectors > 1) {
        const auto [vector, in_vector] = s.split(in_step, elements, {"vector", "in_vector"});
        s.unroll(vector);
        inside = in_vector;
    }
    auto [share, element] = s.split(inside, shape.neighbours, {"share", "element"});
    s.bind(share, thread);
    if (shape.neighbours > 1 && reduces) s.unroll(element);
    if (shape.neighbours > 1 && !reduces) s.bind(element, tw::vector);
    if (how != Steps::Masked && columns && *columns > elements * vectors && *columns % (elements * vectors) != 0)
        s.cut(step, where_partial(stage));
}

/// Whether the statement has updates of the stage by a reducer that divides.
bool divides(const Stmt& stmt, int stage) {
    if (const For* loop = stmt.as<For>()) return divides(loop->body, stage);
    if (const Allocate* allocate = stmt.as<Allocate>()) return divides(allocate->body, stage);
    if (const Sequence* block = stmt.as<Sequence>())
        return std::ranges::any_of(block->stmts, [&](const Stmt& kid) { return divides(kid, stage); });
    const Leaf& leaf = *stmt.as<Leaf>();
    return leaf.stage == stage && leaf.reducer && combining_divides(*leaf.reducer);
}
bool divides(const Schedule& s, const Stage& stage) {
    const Tree tree = s.tree();
    return std::ranges::any_of(tree.nests, [&](const Nest& nest) { return divides(nest.body, stage.id); });
}

/// A few vectors of the row that a thread takes in an accumulator of their own: how many terms that has is known at
/// compile time, so that one division is left for all of them.
struct Parts {
    Stage stage;
    bool some_partial;  ///< of several steps along a row
};
Parts in_parts(Schedule& s, const StageRef& stage, const RowThreads& shape) {
    const int64_t vectors = shape.threads * shape.neighbours, columns = as_constant(s.extent(s.reduce(stage))).value();
    const int64_t all = (columns + vectors - 1) / vectors;
    const int64_t most = std::max(most_vectors, terms_of_part / shape.neighbours);
    int64_t together = std::clamp<int64_t>(all, 1, most);
    if (all < most_vectors * most) {  // of many, few are left over
        while (all % together != 0 && together > most / 2) --together;
        const int64_t parts = (all + most - 1) / most;
        if (all % together != 0) together = (all + parts - 1) / parts;
    }
    auto [step, in_step] = s.split(s.reduce(stage), vectors * together, Tail::Mask, {"step", "in_step"});
    auto [vector, in_vector] = s.split(in_step, vectors, {"vector", "in_vector"});
    auto [share, element] = s.split(in_vector, shape.neighbours, {"share", "element"});
    s.order({step, share, vector, element});
    const Stage parts = s.rfactor(stage, s.fuse(step, share, "part"));
    for (int loop : {0, 1}) s.unroll(s.reduce(parts, loop));
    return {parts, columns > vectors * together && columns % (vectors * together) != 0};
}

/// Threads share the parts, which are made where they are read.
void spread_parts(Schedule& s, const StageRef& stage, const Parts& given, int64_t threads) {
    const auto& [parts, some_partial] = given;
    auto [step, share] = s.split(s.reduce(stage), threads, {"step", "share"});
    std::vector<Loop> order = s.all_loops(stage);
    std::swap(order[order.size() - 2], order[order.size() - 1]);
    s.order(order);
    s.bind(share, thread);
    s.at(parts, step);
    s.set_memory(parts, Memory::Registers);
    if (some_partial) s.cut(step, where_partial(parts));
}

/// The stage's loop along the row: its reduce loop or its last ones.
void spread_stage(Schedule& s, const StageRef& stage, Steps how, const RowThreads& shape, size_t dimensions) {
    const std::vector<Loop> loops = s.all_loops(stage);
    Loop along = s.reduces(stage) ? s.reduce(stage) : loops.back();
    if (dimensions > 1) along = s.fuse({loops.end() - static_cast<std::ptrdiff_t>(dimensions), loops.end()}, "column");
    spread(s, stage, along, how, shape);
}

/// How many loops of a stage run along rows: those of the reductions along them.
size_t rank_of_rows(const Schedule& s, const std::vector<Stage>& stages) {
    for (const Stage& stage : stages)
        if (s.reduces(stage) && !s.data_loops(stage).empty()) return s.data_loops(stage).size();
    return s.data_loops(stages.front()).size() - 1;
}

/// How many dimensions of each stage run along columns, where some do; `split` are those whose last runs along both.
std::map<int, size_t> dimensions_of_columns(const Schedule& s, const std::vector<Stage>& stages, size_t rank,
                                            const std::map<int, int64_t>& split) {
    std::map<int, size_t> found;
    for (const Stage& stage : stages) {
        if (s.reduces(stage)) continue;
        const size_t all = s.data_loops(stage).size();
        if (const size_t own = split.contains(stage.id) ? 1 : all - std::min(all, rank); own > 0) found[stage.id] = own;
    }
    return found;
}

/// Those along rows, of the stage that leads.
std::vector<Loop> loops_of_rows(Schedule& s, const Stage& stage, size_t rank, const std::map<int, int64_t>& split) {
    std::vector<Loop> rows = s.data_loops(stage);
    if (const auto found = split.find(stage.id); found != split.end())
        rows.back() = s.split(rows.back(), found->second, {"row_of_axis", "column"})[0];
    rows.resize(rank);
    return rows;
}

/// Reductions along rows of known lengths whose combining divides.
std::vector<Stage> dividing_stages(const Schedule& s, const std::vector<Stage>& stages) {
    std::vector<Stage> found;
    for (const Stage& stage : stages)
        if (!s.data_loops(stage).empty() && divides(s, stage) && as_constant(s.extent(s.reduce(stage))))
            found.push_back(stage);
    return found;
}

/// Of the longest rows that are reduced; 0 if that is not known.
int64_t columns_of(const Schedule& s, const std::vector<Stage>& stages) {
    int64_t columns = 0;
    for (const Stage& stage : stages)
        if (s.reduces(stage) && !s.data_loops(stage).empty())
            columns = std::max(columns, as_constant(s.extent(s.reduce(stage))).value_or(0));
    return columns;
}

/// Blocks of many threads run side by side, one loading while another reduces, if the registers that hold rows leave
/// room for what is computed.
void run_side_by_side(Schedule& s, const Tensor& y, const RowThreads& shape, int64_t columns, int64_t elements) {
    constexpr int64_t most_bytes = 112, most_of_floats = 160, threads_wanted = 1024, many = 512;
    const bool are_floats = bytes_of(y.type()) == 4 && elements == columns;  // nothing else is made of each
    const int64_t threads = shape.threads * shape.rows,
                  most = (are_floats ? most_of_floats : most_bytes) * shape.threads;
    constexpr int64_t most_asked = 2;  // of more, what registers allow: fewer of them cost up to 1.6 times as long
    if (shape.in_shared > 1) s.occupancy(y, static_cast<int>(std::min(shape.in_shared, most_asked)));
    if (shape.in_shared > 0) return;
    if (threads >= many && threads < threads_wanted + 1 && elements * bytes_of(y.type()) <= most)
        s.occupancy(y, static_cast<int>(threads_wanted / threads));
}

/// Of what several stages read of a row, and nobody stores, what is made of other such elements.
std::set<int> made_of_kept(const Schedule& s, const std::vector<Stage>& stages,
                           const std::map<int, size_t>& along_columns, const std::set<int>& stored) {
    std::set<int> kept, found;
    for (const Stage& stage : stages)
        if (along_columns.contains(stage.id) && !stored.contains(stage.id) && s.readers(stage).size() > 1)
            kept.insert(stage.id);
    for (const Stage& stage : stages)
        if (kept.contains(stage.id))
            for (const Stage& reader : s.readers(stage))
                if (kept.contains(reader.id)) found.insert(reader.id);
    return found;
}

/// Threads of a row that keep the device busy where rows are few.
int64_t threads_wanted(const Schedule& s, const std::vector<Loop>& loops, size_t rank) {
    constexpr int64_t of_multiprocessor = 512;
    int64_t count = 1;
    for (size_t d = 0; d < rank; ++d) count *= as_constant(s.extent(loops[d])).value_or(1 << 20);
    const int64_t each = s.target().multiprocessors * of_multiprocessor / std::max<int64_t>(count, 1);
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(each, 1))));
}

/// Rows that no thread keeps leave room for more elements in flight, and what their threads combine takes less time if
/// there are fewer of them; most where combining divides. Of few rows, `wanted` threads share each.
RowThreads fewer_threads(const Schedule& s, const std::vector<Stage>& stages, const RowThreads& given, bool kept,
                         bool divides, int64_t wanted) {
    RowThreads shape = given;
    const int64_t columns = columns_of(s, stages);
    if (columns == 0 || given.in_shared > 0 || (!divides && !given.keep)) return shape;
    const int64_t each = divides && !kept ? terms_of_means : most_kept;
    // What lanes read side by side is whole sectors, however narrow each one's part is.
    constexpr int64_t lanes = 32, least_vectors = 4, least_elements = 16;
    const int64_t least_of_means = std::max(least_vectors, least_elements / given.neighbours);
    const int64_t by_rule = kept ? divides ? lanes : given.threads : divides ? least_of_means : lanes;
    const int64_t least = std::max(by_rule, std::min(wanted, given.threads));
    if (divides) shape.threads = std::min(shape.threads, std::max<int64_t>(wanted, 256));
    while (shape.threads > least && shape.threads / 2 * each >= columns) shape.threads /= 2;
    if (shape.threads < given.threads) shape.rows = std::max<int64_t>(given.rows, 128 / shape.threads);
    return shape;
}

}  // namespace

Loop bind_rows(Schedule& s, const std::vector<Loop>& loops, int64_t rows_of_block, std::source_location where) {
    CalledFrom caller(where);
    Loop rows = s.fuse(loops, "row");
    if (rows_of_block == 1) {
        s.bind(rows, grid.x);
        return rows;
    }
    auto [block, row] = s.split(rows, rows_of_block, Tail::Mask, {"block", "row_in_block"});
    s.bind(block, grid.x);
    s.bind(row, thread);
    return row;
}

RowThreads row_threads(int64_t columns, int64_t neighbours) {
    constexpr int64_t few_vectors = 2;  // where eight threads have one each, all are busy
    RowThreads shape{.threads = 32, .rows = 1, .neighbours = neighbours};
    while (shape.threads > 8 && shape.threads / 2 * neighbours * most_vectors >= columns) shape.threads /= 2;
    while (shape.threads > 4 && shape.threads / 2 * neighbours * few_vectors > columns) shape.threads /= 2;
    while (shape.threads < 256 && shape.threads * neighbours * 4 < columns) shape.threads *= 2;
    while (shape.threads < 512 && shape.threads * elements_wanted < columns) shape.threads *= 2;
    shape.rows = std::max<int64_t>(128 / shape.threads, 1);
    shape.keep = columns <= shape.threads * most_kept;
    if (!shape.keep) shape.threads = 1024;
    return shape;
}

std::optional<RowThreads> row_threads_in_shared(int64_t bytes, int64_t rows, int64_t neighbours, const Target& target) {
    constexpr int64_t bytes_beside = 2048;  // where threads meet, and what a block has for the system
    constexpr int64_t most_blocks = 4, threads_wanted = 1024, threads_of_one = 512;
    const int64_t turns = (rows + target.multiprocessors - 1) / target.multiprocessors;
    const int64_t room =
        std::min({target.shared_bytes_per_multiprocessor / (bytes + bytes_beside), most_blocks, turns});
    if (room == 0 || bytes + bytes_beside > target.shared_bytes) return {};
    // Long rows that all have their turn at once overlap nothing else: more threads for each.
    constexpr int64_t long_row = 48 << 10;
    const bool few = room == most_blocks && (turns > room || bytes < long_row);
    const int64_t threads = room == 1 ? threads_wanted : few ? threads_of_one / 2 : threads_of_one;
    return RowThreads{.threads = threads, .rows = 1, .neighbours = neighbours, .keep = true, .in_shared = room};
}

void schedule_cooperative_rows(Schedule& s, const Tensor& y, const RowThreads& given, std::source_location where) {
    CalledFrom caller(where);
    schedule_cooperative_rows(s, {y}, producers_of(s, s[y]), given, {}, where);
}

RowThreads schedule_cooperative_rows(Schedule& s, const std::vector<Tensor>& results, const std::vector<Stage>& made,
                                     const RowThreads& given, const std::vector<SplitRows>& split,
                                     std::source_location where) {
    CalledFrom caller(where);
    const Tensor& y = results.at(0);
    const Stage last = s[y];
    std::set<int> stored;
    for (const Tensor& result : results) stored.insert(s[result].id);
    std::vector<Stage> stages = made;
    std::reverse(stages.begin(), stages.end());  // readers first
    const size_t rank = rank_of_rows(s, stages);
    user_check(rank > 0, where,
               "cooperative rows: '{}' reduces nothing and has {} dimensions, of which the last is taken for a row's "
               "elements: no rows are left; name what has elements for each row, or a reduction, or take "
               "schedule_serial_rows, a thread a row",
               y.name(), s.data_loops(y).size());
    std::map<int, int64_t> columns_of_split;
    for (const SplitRows& each : split) columns_of_split[s[each.of].id] = each.columns;
    std::map<int, size_t> along_columns = dimensions_of_columns(s, stages, rank, columns_of_split);
    const bool kept = given.keep && std::ranges::any_of(stages, [&](const Stage& stage) {
                          return stage.id != last.id && along_columns.contains(stage.id) && s.readers(stage).size() > 1;
                      });
    const std::vector<Stage> dividing = dividing_stages(s, stages);
    const RowThreads shape =
        fewer_threads(s, stages, given, kept, !dividing.empty(), threads_wanted(s, s.data_loops(last), rank));
    std::map<int, Parts> parts;
    for (const Stage& stage : dividing) parts.emplace(stage.id, in_parts(s, stage, shape));
    const auto stored_columns =
        std::ranges::count_if(along_columns, [&](const auto& each) { return stored.contains(each.first); });
    const int64_t columns = columns_of(s, stages);
    const int64_t kept_elements =
        columns * (static_cast<int64_t>(along_columns.size()) - static_cast<int64_t>(stored_columns));
    Loop row = bind_rows(s, loops_of_rows(s, last, rank, columns_of_split), shape.rows);
    const std::set<int> made_again =
        shape.in_shared > 0 ? made_of_kept(s, stages, along_columns, stored) : std::set<int>();
    std::set<int> copied;
    std::vector<Stage> shared;
    auto share = [&](const Stage& stage) {
        if (const auto own = parts.find(stage.id); own != parts.end())
            spread_parts(s, stage, own->second, shape.threads);  // before what the parts read is placed
        else if (s.reduces(stage) || along_columns.contains(stage.id))
            shared.push_back(stage);
    };
    share(last);
    auto is_number_of_row = [&](const Stage& stage) { return !along_columns.contains(stage.id); };
    for (Stage stage : stages) {
        if (stage.id == last.id) continue;
        if (stored.contains(stage.id)) {
            s.at(stage, row);
            share(stage);
        } else if (s.data_loops(stage).empty()) {
            schedule_block_reduction(s, stage, shape.threads, shape.neighbours);
        } else if (!s.reduces(stage) && !(is_number_of_row(stage) && reads_by_data(s, stage)) &&
                   (!shape.keep || s.readers(stage).size() == 1 || made_again.contains(stage.id))) {
            s.inline_stage(stage);
        } else {
            s.at(stage, row);
            const bool is_copied = given.in_shared > 0 && along_columns.contains(stage.id);
            s.set_memory(stage, is_copied ? Memory::Shared : Memory::Registers);
            if (is_copied) copied.insert(stage.id);
            share(stage);
        }
    }
    if (kept) run_side_by_side(s, y, shape, columns, kept_elements);
    for (auto stage = shared.rbegin(); stage != shared.rend(); ++stage) {
        const Steps how = copied.contains(stage->id)   ? Steps::Copied
                          : shape.in_shared > 0        ? Steps::Whole
                          : !kept && s.reduces(*stage) ? Steps::Together
                                                       : Steps::Masked;
        spread_stage(s, *stage, how, shape, along_columns[stage->id]);
    }
    return shape;
}

namespace {

/// The loop over a thread's rows, in the kernel of the sums of blocks of rows.
Loop lead_by_sums(Schedule& s, const Tensor& sums, const RowThreads& shape) {
    constexpr int64_t blocks_wanted = 792, least_turns = 4;  // six for each multiprocessor of a large GPU
    const int64_t rows = as_constant(s.extent(s.reduce(sums))).value();
    int64_t turns = std::max((rows + blocks_wanted * shape.rows - 1) / (blocks_wanted * shape.rows), least_turns);
    for (int64_t fewer = turns; fewer >= std::max(turns / 2, least_turns); --fewer)
        if (rows % (fewer * shape.rows) == 0) {  // no block has a mask
            turns = fewer;
            break;
        }
    const int64_t chunk_rows = turns * shape.rows;
    const auto [chunk, inside] = s.split(s.reduce(sums), chunk_rows, Tail::Mask, {"chunk", "in_chunk"});
    const Stage parts = s.rfactor(sums, chunk);
    const std::vector<Loop> data = s.data_loops(parts);
    Loop turn = s.reduce(parts);
    std::vector<Loop> order{data[0]};
    if (shape.rows > 1) {
        const auto [next, row] = s.split(turn, shape.rows, {"turn", "row"});
        s.bind(row, thread);
        turn = next;
        order.push_back(row);
    }
    const auto [step, in_step] = s.split(data[1], shape.threads * shape.neighbours, Tail::Mask, {"step", "in_step"});
    const auto [share, element] = s.split(in_step, shape.neighbours, {"share", "element"});
    order.insert(order.end(), {turn, step, share, element});
    s.order(order);
    s.bind(data[0], grid.x);
    s.bind(share, thread);
    s.unroll(step);
    if (shape.neighbours > 1) s.bind(element, tw::vector);
    schedule_parts_of_columns(s, sums, (rows + chunk_rows - 1) / chunk_rows);
    return turn;
}

}  // namespace

void schedule_rows_and_sums(Schedule& s, const Tensor& result, const std::vector<Stage>& made, const RowThreads& shape,
                            const Tensor& sums, std::source_location where) {
    CalledFrom caller(where);
    const Stage own = s[result], whole = s[sums];
    std::vector<Stage> stages = made, shared{own};
    std::reverse(stages.begin(), stages.end());  // readers first
    std::set<int> summed;
    for (const Stage& stage : stages)
        for (const Stage& reader : s.readers(stage))
            if (reader.id == whole.id) summed.insert(stage.id);
    const Loop turn = lead_by_sums(s, sums, shape);
    s.at(own, turn);
    const Loop row = s.data_loops(own)[0];
    for (const Stage& stage : stages) {
        if (stage.id == own.id) continue;
        if (!s.reduces(stage) && s.data_loops(stage).size() > 1 && s.readers(stage).size() == 1) {
            s.inline_stage(stage);
            continue;
        }
        s.at(stage, summed.contains(stage.id) ? turn : row);
        s.set_memory(stage, Memory::Registers);
        if (s.reduces(stage) || s.data_loops(stage).size() > 1) shared.push_back(stage);
    }
    for (auto stage = shared.rbegin(); stage != shared.rend(); ++stage)
        spread_stage(s, *stage, Steps::Masked, shape, 1);
}

}  // namespace tw::schedules
