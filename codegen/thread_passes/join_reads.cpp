// Elements of global memory that lie side by side, and are read one by one, are read together: records, as boxes,
// points and complex numbers are, and what windows and unrolled loops read of neighbours. Compilers do so of arrays in
// shared memory; where a tensor begins they do not know.
#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "codegen/access/access.h"
#include "codegen/thread_passes/evaluation.h"
#include "codegen/thread_passes/places_read.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/deep.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_bytes_together = 16;   // of one access
constexpr int64_t most_joined_elements = 64;  // of one array of registers
constexpr int most_joined_arrays = 16;        // in front of the statements of a block

using Offsets = std::set<int64_t>;

/// Elements that one access reads, from a multiple of the width on.
struct JoinedGroup {
    int64_t start, width;
};

/// What is read together, in front of the first statement that needs it.
struct JoinedReads {
    std::vector<const PlaceRead*> reads;
    std::vector<JoinedGroup> groups;
    ReadPath path = {};  // where it is read alone

    int64_t start() const { return groups.front().start; }
    int64_t extent() const { return groups.back().start + groups.back().width - start(); }
    size_t first() const { return std::ranges::min(reads, {}, &PlaceRead::stmt)->stmt; }
    size_t last() const { return std::ranges::max(reads, {}, &PlaceRead::stmt)->stmt; }
};

int64_t group_of(int64_t offset, int64_t width) { return offset - ((offset % width) + width) % width; }

/// Whether all elements of a group lie in the tensor as soon as one of them does.
bool holds_whole_groups(const BufferNode& buffer, int64_t width) {
    if (!buffer.strides.empty()) return false;
    Expr elements = integer(1);
    for (const Expr& extent : buffer.shape) elements = elements * cast_unchecked(Type::I64, extent);
    return divisor_of(simplify(elements)) % width == 0;
}

// ---- what is worth it -----------------------------------------------------------------------------------------------

/// Reads of one row of elements that lie near each other.
class Neighbours {
public:
    explicit Neighbours(std::vector<const PlaceRead*> reads)
        : reads_(std::move(reads)), buffer_(*reads_[0]->row.buffer) {}

    std::optional<JoinedReads> joined() const {
        if (std::optional<JoinedReads> all = joined(reads_, {}); all && is_better_than_inside(*all)) return all;
        std::vector<const PlaceRead*> direct = reads_;
        std::erase_if(direct, [](const PlaceRead* read) { return read->in_loop; });
        return joined(direct, {});
    }
    /// Of what stands behind the same conditions.
    std::optional<JoinedReads> joined_behind(const ReadPath& path) const {
        std::vector<const PlaceRead*> guarded = reads_;
        std::erase_if(guarded, [&](const PlaceRead* read) { return read->path != path; });
        return joined(guarded, path);
    }

private:
    /// Those of the reads that can be: what is read in any case, and what comes with it; or what the path leads to.
    std::optional<JoinedReads> joined(std::vector<const PlaceRead*> reads, const ReadPath& path) const {
        for (bool dropped = true; dropped && !reads.empty();) {
            const Offsets certain = certain_of(reads, path);
            const JoinedReads result{reads, groups_of(certain, reads_[0]->divisor), path};
            Offsets there;
            for (const JoinedGroup& group : result.groups)
                for (int64_t n = 0; n < group.width; ++n) there.insert(group.start + n);
            std::set<const ExprNode*> lacking;
            for (const PlaceRead* read : reads)
                for (const auto& [iteration, places] : read->iterations)
                    for (const PlaceRead::At& at : places)
                        if (!there.contains(at.offset)) lacking.insert(read->load.id());
            dropped = std::erase_if(reads, [&](const PlaceRead* read) { return lacking.contains(read->load.id()); });
            if (dropped) continue;
            if (result.groups.size() >= certain.size() || result.extent() > most_joined_elements) return {};
            return result;
        }
        return {};
    }

    static Offsets certain_of(const std::vector<const PlaceRead*>& reads, const ReadPath& path) {
        std::map<int64_t, std::vector<ReadPath>> paths;
        for (const PlaceRead* read : reads)
            for (const auto& [iteration, places] : read->iterations)
                for (const PlaceRead::At& at : places) paths[at.offset].push_back(at.path);
        Offsets certain;
        for (const auto& [offset, ways] : paths)
            if (!path.empty() || is_certain(ways)) certain.insert(offset);
        return certain;
    }

    /// The fewest accesses that read the elements, none wider than it must be.
    std::vector<JoinedGroup> groups_of(const Offsets& elements, int64_t divisor) const {
        int64_t widest = most_bytes_together / bytes_of(buffer_.type);
        while (divisor % widest != 0) widest /= 2;
        std::vector<JoinedGroup> groups;
        for (auto next = elements.begin(); next != elements.end();) {
            const int64_t start = group_of(*next, widest);
            const auto end = elements.lower_bound(start + widest);
            add_groups({next, end}, {start, widest}, groups);
            next = end;
        }
        return groups;
    }

    /// Of elements of one group: together, or each half of it by itself.
    void add_groups(const Offsets& wanted, const JoinedGroup& group, std::vector<JoinedGroup>& groups) const {
        if (wanted.empty()) return;
        const int64_t half = group.width / 2;
        const auto middle = wanted.lower_bound(group.start + half);
        const Offsets low(wanted.begin(), middle), high(middle, wanted.end());
        const auto count = static_cast<int64_t>(wanted.size());
        const bool is_together = count == group.width || (!low.empty() && !high.empty() && count >= half &&
                                                          holds_whole_groups(buffer_, group.width));
        if (is_together) return groups.push_back(group);
        add_groups(low, {group.start, half}, groups);
        add_groups(high, {group.start + half, half}, groups);
    }

    /// Whether it takes fewer accesses than what can be read together in each iteration of the loops.
    bool is_better_than_inside(const JoinedReads& all) const {
        std::map<size_t, std::vector<const PlaceRead*>> loops;
        Offsets direct;
        for (const PlaceRead* read : all.reads)
            if (read->in_loop)
                loops[read->stmt].push_back(read);
            else
                direct.insert(read->iterations.at(0)[0].offset);
        size_t inside = groups_of(direct, all.reads[0]->divisor).size();
        for (const auto& [stmt, reads] : loops) inside += accesses_inside(reads);
        return loops.empty() || all.groups.size() < inside;
    }

    size_t accesses_inside(const std::vector<const PlaceRead*>& reads) const {
        std::map<int64_t, Offsets> moved;
        Offsets fixed;
        int64_t divisor = reads[0]->divisor;
        for (const PlaceRead* read : reads) {
            divisor = std::gcd(divisor, read->step);
            for (const auto& [iteration, places] : read->iterations)
                for (const PlaceRead::At& at : places)
                    (read->step == 0 ? fixed : moved[iteration]).insert(at.offset - iteration * read->step);
        }
        size_t accesses = 0;
        for (auto& [iteration, elements] : moved) {
            elements.insert(fixed.begin(), fixed.end());
            accesses += groups_of(elements, divisor).size();
        }
        return moved.empty() ? 2 * groups_of(fixed, divisor).size() : accesses;
    }

    std::vector<const PlaceRead*> reads_;
    const BufferNode& buffer_;
};

bool is_same_row(const Access& a, const Access& b) {
    return a.buffer == b.buffer && std::ranges::equal(a.indices, b.indices, [](const Expr& x, const Expr& y) {
               return x.same(y) || equal(x, y);
           });
}

/// By rows, and in these by where the elements lie.
std::vector<Neighbours> neighbours_of(const PlacesRead& found) {
    struct Spread {
        const PlaceRead* read;
        int64_t first, last;
    };
    std::vector<std::vector<Spread>> rows;
    for (const PlaceRead& read : found.reads) {
        if (read.iterations.empty() || found.unknown.contains(read.load.id())) continue;
        Spread spread{&read, read.iterations.begin()->second[0].offset, 0};
        spread.last = spread.first;
        for (const auto& [iteration, places] : read.iterations)
            for (const PlaceRead::At& at : places)
                spread.first = std::min(spread.first, at.offset), spread.last = std::max(spread.last, at.offset);
        if (spread.last - spread.first >= most_joined_elements) continue;
        auto row =
            std::ranges::find_if(rows, [&](const auto& known) { return is_same_row(known[0].read->row, read.row); });
        if (row == rows.end()) row = rows.insert(row, std::vector<Spread>{});
        row->push_back(spread);
    }
    std::vector<Neighbours> result;
    for (std::vector<Spread>& row : rows) {
        const int64_t widest = most_bytes_together / bytes_of(row[0].read->row.buffer->type);
        std::ranges::stable_sort(row, {}, &Spread::first);
        for (size_t n = 0; n < row.size();) {
            std::vector<const PlaceRead*> near;
            int64_t last = row[n].last;
            for (; n < row.size() && group_of(row[n].first, widest) <= last; ++n) {
                near.push_back(row[n].read);
                last = std::max(last, row[n].last);
            }
            result.emplace_back(std::move(near));
        }
    }
    return result;
}

// ---- statements -----------------------------------------------------------------------------------------------------

/// Values in registers for loads; of the same statements as places_read() looks at.
ThreadStmt with_values(const ThreadStmt& stmt, const std::unordered_map<const ExprNode*, Expr>& values) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    if (stmt.as<ThreadBlock>() || (loop && loop->unroll)) {
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) kids.push_back(with_values(kid, values));
        return with_children(stmt, kids);
    }
    if (!stmt.as<ThreadStore>() && !stmt.as<ThreadLet>() && !stmt.as<ThreadIf>()) return stmt;
    return map_expressions(stmt, [&](const Expr& root) {
        return with_room_for(root, [&] {
            return tw::transform(root, [&](const Expr& node) {
                const auto known = values.find(node.id());
                return known == values.end() ? Expr() : known->second;
            });
        });
    });
}

class ReadJoiner {
public:
    explicit ReadJoiner(const ThreadKernel& kernel) {
        for (size_t k = 0; k < kernel.arguments.size(); ++k)
            if (!kernel.written[k]) constant_.insert(kernel.arguments[k].get());
        for (const auto& [out, in] : kernel.aliases) constant_.erase(in.get());
    }

    ThreadStmt block(const ThreadStmt& body) const {
        std::vector<ThreadStmt> stmts = statements(body);
        for (int arrays = 0; arrays < most_joined_arrays && join_some(stmts);) ++arrays;
        for (ThreadStmt& stmt : stmts) {
            std::vector<ThreadStmt> kids;
            for (const ThreadStmt& kid : children(stmt)) kids.push_back(block(kid));
            stmt = with_children(stmt, kids);
        }
        return block_of(stmts);
    }

private:
    bool join_some(std::vector<ThreadStmt>& stmts) const {
        const PlacesRead found = places_read(stmts);
        const std::vector<Neighbours> all = neighbours_of(found);
        for (const Neighbours& neighbours : all)
            if (const auto joined = neighbours.joined(); joined && stays(*joined, stmts)) {
                write(*joined, found, stmts);
                return true;
            }
        std::set<ReadPath> paths;
        std::map<const ExprNode*, std::set<ReadPath>> ways;
        for (const PlaceRead& read : found.reads) ways[read.load.id()].insert(read.path), paths.insert(read.path);
        for (const ReadPath& path : paths) {
            if (!is_known_ahead(path, found)) continue;
            for (const Neighbours& neighbours : all) {
                const auto joined = neighbours.joined_behind(path);
                if (!joined || !stays(*joined, stmts)) continue;
                const bool alone = std::ranges::all_of(
                    joined->reads, [&](const PlaceRead* read) { return ways.at(read->load.id()).size() == 1; });
                if (!alone) continue;
                write(*joined, found, stmts);
                return true;
            }
        }
        return false;
    }

    /// Conditions that can be evaluated in front of the statements.
    static bool is_known_ahead(const ReadPath& path, const PlacesRead& found) {
        const KnownBounds none;
        for (const auto& [number, wanted] : path) {
            if (number < 0) return false;
            bool pure = true;
            visit(found.conditions[number], [&](const Expr& node) { pure = pure && is_pure_by_itself(node, none); });
            for (const Expr& variable : found.inside) pure = pure && !contains(found.conditions[number], variable);
            if (!pure) return false;
        }
        return !path.empty();
    }

    /// Whether the elements, and what their place is made of, are the same from the first read to the last one.
    bool stays(const JoinedReads& joined, const std::vector<ThreadStmt>& stmts) const {
        const Access& row = joined.reads[0]->row;
        bool same = constant_.contains(row.buffer.get());
        std::set<const BufferNode*> registers;
        for (const Expr& index : row.indices)
            visit(index, [&](const Expr& node) {
                const Load* load = node.as<Load>();
                if (load && load->buffer->memory == Memory::Registers) registers.insert(load->buffer.get());
                if (load && load->buffer->memory != Memory::Registers)
                    same = same && constant_.contains(load->buffer.get());
            });
        for (size_t n = joined.first(); n <= joined.last() && same && !registers.empty(); ++n)
            visit(stmts[n], [&](const ThreadStmt& stmt) {
                for (const MemoryAccess& access : memory_accesses(stmt))
                    same = same && !(access.writes && registers.contains(access.place.buffer.get()));
            });
        return same;
    }

    static void write(const JoinedReads& joined, const PlacesRead& found, std::vector<ThreadStmt>& stmts) {
        const Access& row = joined.reads[0]->row;
        const size_t first = joined.first();
        const int step = stmts[first].step();
        const Buffer array = register_array(row.buffer->name + "_values", row.buffer->type, {joined.extent()});
        std::unordered_map<const ExprNode*, Expr> values;
        for (const PlaceRead* read : joined.reads) {
            const Expr place = simplify(read->behind - joined.start());
            values[read->load.id()] = make_expr(array->type, Load{array, {place}});
        }
        for (size_t n = first; n <= joined.last(); ++n) stmts[n] = with_values(stmts[n], values);
        ThreadStmt reads = accesses(joined, array, step);
        if (!joined.path.empty()) {
            std::vector<Expr> conditions;
            for (const auto& [number, wanted] : joined.path) {
                const Expr& condition = found.conditions[number];
                conditions.push_back(wanted ? condition : simplify(!condition));
            }
            reads = make_thread(ThreadIf{all_of(conditions), reads}, step);
        }
        stmts.insert(stmts.begin() + static_cast<std::ptrdiff_t>(first),
                     {make_thread(ThreadDeclare{array}, step), reads});
    }

    /// Of the groups; those that follow each other in a loop.
    static ThreadStmt accesses(const JoinedReads& joined, const Buffer& array, int step) {
        std::vector<ThreadStmt> all;
        const std::vector<JoinedGroup>& groups = joined.groups;
        for (size_t n = 0, end; n < groups.size(); n = end) {
            const int64_t width = groups[n].width;
            for (end = n + 1; end < groups.size() && groups[end].width == width &&
                              groups[end].start == groups[end - 1].start + width;)
                ++end;
            const auto count = static_cast<int64_t>(end - n);
            const Expr vector = index_variable(width == 1 ? "element" : "vector", 0, count - 1);
            const Expr moved = count == 1 ? integer(0) : vector * width;
            const ThreadStmt one = access(joined, array, groups[n], moved, step);
            all.push_back(count == 1 ? one : make_thread(ThreadLoop{vector, integer(count), true, one}, step));
        }
        return block_of(all);
    }

    static ThreadStmt access(const JoinedReads& joined, const Buffer& array, const JoinedGroup& group,
                             const Expr& moved, int step) {
        Access from = joined.reads[0]->row, to{array, {simplify(moved + (group.start - joined.start()))}};
        from.indices[0] = simplify(from.indices[0] + moved + group.start);
        if (group.width == 1)
            return make_thread(ThreadStore{to, make_expr(array->type, Load{from.buffer, from.indices})}, step);
        return make_thread(ThreadWide{static_cast<int>(group.width), to, from}, step);
    }

    std::set<const BufferNode*> constant_;
};

}  // namespace

ThreadKernel join_reads(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = ReadJoiner(kernel).block(kernel.body);
    return result;
}

}  // namespace tw::codegen
