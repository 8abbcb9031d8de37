// Schedules: how to compute. Each primitive checks, records itself in a trace, and rewrites the schedule tree.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "dsl/schedule_options.h"

namespace tw {

class Schedule;
struct Bindings;  // what a launch is given: interpret.h

/// One recorded step.
struct Step {
    std::string text;     ///< as C++: "auto [bi, it] = s.split(i, 128, {"bi", "it"});"
    std::string handles;  ///< statements that take the loops and stages of `text` which no step returned, a line each
    std::source_location where;
    std::string file_line;  ///< "matmul.cpp:31", kept across save and load
};

class Schedule {
public:
    /// Computes `outputs` from inputs; nothing is scheduled yet: each stage is a serial kernel of its own. Throws Error
    /// if an output is an input.
    Schedule(const std::vector<Tensor>& outputs, Target target, TW_HERE);
    Schedule(const Schedule&);
    Schedule& operator=(const Schedule&);
    Schedule(Schedule&&) noexcept;
    Schedule& operator=(Schedule&&) noexcept;
    ~Schedule();

    // Handles.
    /// The stage that computes `tensor`.
    Stage operator[](const StageRef& stage) const;
    /// All stages, producers first; inlined ones are gone.
    std::vector<Stage> all_stages() const;
    /// Whether the stage contains a reduction.
    bool reduces(const StageRef& stage) const;
    /// Whether its elements may reduce different numbers of terms, as those of a scan; running() refuses all others.
    bool terms_vary(const StageRef& stage) const;
    /// Whether the stage is a reduction whose terms each count for one element, as scatter() needs it.
    bool scatters(const StageRef& stage) const;
    std::string name(const StageRef& stage) const;
    /// The stages that read the stage's elements.
    std::vector<Stage> readers(const StageRef& stage) const;
    /// The stage's current loops, outermost first.
    std::vector<Loop> all_loops(const StageRef& stage, TW_HERE) const;
    /// The loops of the data axes, in the order of the dimensions, as long as none was split or fused.
    std::vector<Loop> data_loops(const StageRef& stage, TW_HERE) const;
    template <size_t N>
    std::array<Loop, N> loops(const StageRef& stage, TW_HERE) const {
        auto found = data_loops(stage, where);
        check_loop_count(stage, found.size(), N, where);
        std::array<Loop, N> result;
        std::copy_n(found.begin(), N, result.begin());
        return result;
    }
    /// The loop of the reduce axis (the index-th of several).
    Loop reduce(const StageRef& stage, int index = 0, TW_HERE) const;
    /// How many iterations the loop has: a constant or an expression of named sizes.
    Expr extent(Loop loop, TW_HERE) const;
    /// The loop's current iteration, from 0: for positions of cut.
    Expr index(Loop loop, TW_HERE) const;
    /// The loop of `tensor`'s stage that corresponds to another stage's loop.
    Loop loop(const StageRef& stage, Loop other, TW_HERE) const;

    // A. Loops: bijections of the iteration space.
    /// Replaces `loop` by two: outer * size + inner. Without Tail::Mask the size must divide the extent. The names are
    /// what the nest, messages, the trace and printed kernels call the two.
    std::array<Loop, 2> split(Loop loop, int64_t size, Tail tail, const SplitNames& names, TW_HERE);
    std::array<Loop, 2> split(Loop loop, int64_t size, const SplitNames& names, TW_HERE);
    std::array<Loop, 2> split(Loop loop, int64_t size, Tail tail = Tail::Divide, TW_HERE);
    /// By each size in turn, the largest first: tiles, and parts of tiles. Names, if there are any, of all N + 1.
    template <size_t N>
    std::array<Loop, N + 1> split(Loop loop, const int64_t (&sizes)[N], Tail tail,
                                  const std::vector<std::string>& names = {}, TW_HERE) {
        std::array<Loop, N + 1> result;
        std::ranges::copy(split(loop, std::vector<int64_t>(sizes, sizes + N), tail, names, where), result.begin());
        return result;
    }
    std::vector<Loop> split(Loop loop, const std::vector<int64_t>& sizes, Tail tail,
                            const std::vector<std::string>& names, TW_HERE);
    /// Replaces the loop of an axis by one that begins up to `elements` - 1 iterations earlier, so that each multiple
    /// of `elements` of its iterations is at a multiple of `elements` in the memory of `operand`, which the stage reads
    /// (or the stage itself) from element to element along the loop: rows of odd length. Iterations outside of the axis
    /// are masked.
    Loop align(Loop loop, const StageRef& operand, int64_t elements, TW_HERE);
    /// Replaces neighbouring loops, `outer` directly around `inner`, by one, named "i_j" if not otherwise.
    Loop fuse(Loop outer, Loop inner, const std::string& name, TW_HERE);
    Loop fuse(Loop outer, Loop inner, TW_HERE);
    /// All of them, outermost first, pair by pair; a single one stays what it is.
    Loop fuse(const std::vector<Loop>& loops, const std::string& name, TW_HERE);
    Loop fuse(const std::vector<Loop>& loops, TW_HERE);
    /// Reorders loops of one stage: the given loops take each other's places in the given order.
    void order(const std::vector<Loop>& loops, TW_HERE);
    /// Runs the loop in segments, one after another: up to the first position, from there to the next, and so on. The
    /// handle means all of them. Positions are integers made of constants, named sizes and index(loop) of loops around;
    /// those that the loop does not reach, or that come before the one in front, leave their segment empty. No position
    /// joins the segments.
    void cut(Loop loop, const std::vector<Expr>& positions, TW_HERE);
    /// Cuts where conditions begin and cease to hold in all of an iteration: the segment between needs no masks.
    void cut(Loop loop, const WherePartial& conditions, TW_HERE);
    /// Leaves out iterations of a reduce loop in which the selects of a stage under it, `conditions`, and the masks of
    /// the terms, hold for no element, as far as they compare indices: key tiles behind the diagonal. What such
    /// elements give the reductions along the loop must be shown to count nothing: 0 of sums, -infinity of maxima.
    /// Where each iteration has elements that count, a note says that none is left out.
    /// cut(loop, {}) takes it back.
    void skip(Loop loop, const StageRef& conditions, TW_HERE);
    /// Runs a serial reduce loop from its last iteration to the first, or forwards again. What a reduction gives
    /// changes as by any other order of its terms. Where the last key tiles are masked, they are over then before the
    /// rest begins.
    void reverse(Loop loop, TW_HERE);
    /// Runs the loop on a level. Thread loops of a block form a mixed radix, first bound slowest. Loops of 2 to 8
    /// iterations together on `cluster`, from sm_90 on: these blocks run together, and boxes that a role loads for
    /// those that differ in one of the loops only are loaded once, in parts, and multicast.
    void bind(Loop loop, Level level, TW_HERE);
    void bind(const std::vector<Loop>& loops, Level level, TW_HERE);
    void unroll(Loop loop, TW_HERE) { bind(loop, Level::Unroll, where); }

    // B. Placement.
    /// Moves a producer, a consumer or a sibling output under the loop; its loops are fresh.
    void at(const StageRef& stage, Loop loop, TW_HERE);
    /// All of them, readers first, with their elements in `memory`, if that is named.
    void at(const std::vector<StageRef>& stages, Loop loop, Memory memory = Memory::Auto, TW_HERE);
    /// Computes several reductions over the same terms in one pass, along `loop`, a reduce loop of the one named last:
    /// each iteration reduces the same terms of all. The others stand where that one begins to reduce, with fresh
    /// loops over an iteration's terms inside; stages without reductions between them come under `loop`.
    ///
    /// Reductions that do not read each other need nothing for this. Terms that read another one's result r read what
    /// it is so far, and what was reduced with an older r is corrected by a factor, or, of maxima, a summand: exp(x -
    /// r), x * f(r), x / r and sums of such have one (ratio.h). No other stage sees a value so far: what reads the
    /// reduction elsewhere, too, is computed for the terms a second time. While r is what an empty reduction gives, 0
    /// stands for an infinity and 1 for a zero, so that masked terms make no NaN of 0 * infinity.
    void stream(const std::vector<StageRef>& reductions, Loop loop, TW_HERE);
    /// With other references than running ones. exp2(x - max x) is up to 2^t with Reference::lazy(t) and corrected
    /// rarely (FlashAttention-4), 2^8 times as large with Reference::offset(-8), as narrow types need it
    /// (FlashAttention-3), and with Reference::constant(c), of which nothing shows a bound, never corrected in the
    /// loop. Throws Error if a number is not finite, a lazy one negative, no terms read the reduction, or a constant
    /// has no inverse where terms divide by it.
    void stream(const std::vector<StageRef>& reductions, Loop loop, const std::vector<ReferenceOf>& references,
                TW_HERE);
    /// Replaces reads of the tensor by its expression.
    void inline_stage(const StageRef& stage, TW_HERE);
    /// A copy of `operand`, as the computation of `consumer` reads it, in `memory`, made anew in each iteration of
    /// `loop`. Returns the copy's stage; the computation keeps its name and loops.
    Stage stage(const StageRef& consumer, const StageRef& operand, Memory memory, Loop loop, TW_HERE);
    /// With As::Matrix, the copy has the dimensions that the reduction `consumer` has loops, where what only splits
    /// have taken apart is one again: so what fused loops read lies side by side, and is rows, columns or terms for
    /// mma(). An operand that is read as padded(x, value) is copied with its padding; zeros stand where the loops leave
    /// the tensor. `loop` is one of the consumer's, from its outermost reduce loop on. Later splits of its loops may
    /// follow.
    Stage stage(const StageRef& consumer, const StageRef& operand, Memory memory, Loop loop, As as, TW_HERE);
    /// One copy for several computations that read the operand under the loop: what all of them need.
    Stage stage(const std::vector<StageRef>& consumers, const StageRef& operand, Memory memory, Loop loop, TW_HERE);
    /// Several copies, made in each iteration of the loop; with a type, rounded to it, see round_to.
    template <size_t N>
    std::array<Stage, N> stage(const CopyOf (&copies)[N], Memory memory, Loop loop, std::optional<Type> rounded = {},
                               TW_HERE) {
        std::array<Stage, N> result;
        std::ranges::copy(stage(std::span(copies), memory, loop, rounded, where), result.begin());
        return result;
    }
    std::vector<Stage> stage(std::span<const CopyOf> copies, Memory memory, Loop loop, std::optional<Type> rounded,
                             TW_HERE);
    /// The whole operand, copied by a kernel of its own before the consumer's (memory is Memory::Global).
    Stage stage(const StageRef& consumer, const StageRef& operand, Memory memory, TW_HERE);
    /// The result is computed in `memory` and copied out at the end of each iteration of `loop`; of updates, the copy
    /// makes them. What another kernel reads is a result, too, wherever it stands. Returns the copy out.
    Stage stage(const StageRef& result, Memory memory, Loop loop, TW_HERE);
    /// Where the stage's elements live between producer and consumers.
    void set_memory(const StageRef& stage, Memory memory, TW_HERE);
    /// Stores the stage's elements as `type`, a narrower float: values change by that rounding, and readers see the
    /// rounded ones. explain() says so; check_output allows for it.
    void round_to(const StageRef& stage, Type type, TW_HERE);
    /// `out` overwrites `in`: legal if each element is read by the iteration that writes it, or before that by the same
    /// block, as rows are that it keeps, or by a kernel before.
    void in_place(const Tensor& out, const Tensor& in, TW_HERE);
    /// Elements of the output lie so many elements apart, a dimension: it is a part of a larger array, some columns of
    /// a matrix, say, and is bound to the address where that part begins. What lies between is not touched.
    void strides(const Tensor& out, const std::vector<int64_t>& strides, TW_HERE);

    // C. Algebra.
    /// Reduces each iteration of the reduce loop apart: rfactor, split-K. The parts are a stage of their own, whose
    /// first dimension is the loop; it takes over the reduction's loops. The reduction combines the parts in order,
    /// with fresh loops. Returns the parts' stage.
    ///
    /// Combine::Atomic: the parts have no elements; each is combined atomically with the reduction's, which a kernel
    /// before fills with the identity. For sums of f32, f64, i32, u32 and i64, and min and max of those but f64.
    ///
    /// Of a scan (see running), along one of its loops: the parts' totals, a stage that scans them, and the scan within
    /// a part, to whose elements what the parts before have together is added; all with fresh loops.
    Stage rfactor(const StageRef& reduction, Loop loop, Combine combine = Combine::Workspace, TW_HERE);
    /// Several reductions over the same terms in parts, along a reduce loop of the one named last. Where terms read
    /// another one's result r, those of a part read r of the part, and what has been reduced so is corrected by the
    /// ratio of that and the r of all terms when it is combined, as stream() corrects it. Stages between them that
    /// reduce nothing come along, and may be named, too. Returns the parts' stages of those that are named, in their
    /// order, for stream() to compute in one pass.
    std::vector<Stage> rfactor(const std::vector<StageRef>& reductions, Loop loop, TW_HERE);
    template <size_t N>
    std::array<Stage, N> rfactor(const std::vector<StageRef>& reductions, Loop loop, TW_HERE) {
        check_part_count(reductions.size(), N, where);
        auto found = rfactor(reductions, loop, where);
        std::array<Stage, N> result;
        std::copy_n(found.begin(), N, result.begin());
        return result;
    }
    /// A scan in linear work: a reduction whose element at iteration u of `loop`, a data loop of its own, has the terms
    /// of iteration u - 1 and one more (or of u + 1: then the loop is replaced by one that runs the other way). From
    /// here on the loop is a reduce loop in which each iteration adds its term to what the ones before have made, and
    /// stores its element: all up to its own, or, where the element at u has u terms, those before. Iterations keep
    /// their order. Of what the loop is split into, the parts in the middle can be bound to threads, each of which then
    /// runs through its own terms and learns what the ones before have together. Returns the loop. Throws Error if the
    /// reduction is no scan along the loop.
    Loop running(const StageRef& scan, Loop loop, TW_HERE);
    /// From here on neighbouring dimensions, `first` to `last`, of what a stage computes are one: the same elements in
    /// the same memory, which loops, tiles and boxes see as a tensor of fewer dimensions. So the pixels of images
    /// [n, h, w, c] are rows of a matrix. All loops are fresh. Readers, and who gives or takes the tensor, see no
    /// difference. Of an input, too, of which no loops depend: stages read it so from here on. Throws Error if loops
    /// are scheduled already, or rows of the input are no neighbours.
    void join_axes(const StageRef& stage, int first, int last, TW_HERE);
    /// Takes a reduction apart from what is made of its results: the results are a stage of their own, of the
    /// accumulators' types, which takes over all loops; what is left reads them, one for each element, with fresh
    /// loops. So sums can stay in registers while elements leave piece by piece. Returns the results' stage.
    Stage accumulators(const StageRef& reduction, TW_HERE);
    /// A reduction of terms that each count for one element, sum(select(index(u) == i, x(u), 0), u), from "each element
    /// looks at all terms" to "each term finds its element". An index outside finds none. All loops are fresh.
    ///
    /// Combine::Workspace: the terms are sorted by element, stably, and each element reduces its own in their order, in
    /// a loop as long as there are terms. The sort is stages of their own, already bound. Returns the reduction.
    /// Combine::Atomic: the loop i is gone; the reduce axes in the index are data loops of a stage of updates, which
    /// are combined atomically as in partial. Returns the updates.
    /// Combine::Search: each element finds the numbers of its first and its last term, a stage `d_span` that may stand
    /// under the reduction's loops, and goes from one to the other in their order. Work: elements x terms comparisons,
    /// nothing sorted: for few terms. Returns the reduction.
    Stage scatter(const StageRef& reduction, Combine combine = Combine::Workspace, TW_HERE);

    // D. Implementation.
    /// Has a tensor core compute the stage's sum of products of two elements over its three innermost loops: matched by
    /// what the factors depend on, whatever the expression's form. Their extents are multiples of an instruction's.
    /// Warps are bound outside of them; the lanes are the instruction's.
    void mma(const StageRef& stage, MatrixUnit unit, const MmaLoops& loops, TW_HERE);
    /// Each over its three innermost loops: m, n and k, as they stand.
    void mma(const std::vector<StageRef>& stages, MatrixUnit unit, TW_HERE);
    /// Has a copy into shared memory move its elements in a certain way, or fail at build with the reason. By default
    /// those in pipelines of more than two stages are asynchronous where that is legal.
    void via(const StageRef& copy, Copy how, TW_HERE);

    // E. Time.
    /// Overlaps the copies in shared memory that stand under the loop with the computation: while one iteration
    /// computes, the elements of the next are on their way, through registers, or, asynchronously, those of the next
    /// `stages` - 1. Each copy gets `stages` buffers.
    void pipeline(Loop loop, PipelineOptions options, TW_HERE);
    /// Software skew: of what stands under the loop, the stage and all behind it come so many iterations later than
    /// what stands before it. With `before`, they stand in the middle of what is then early: an iteration runs what
    /// comes before that stage, then the late ones of the iteration that is over, then that stage and the rest. So
    /// scores(j), values(j - 1), softmax(j): matrix products run on while threads compute what does not need them.
    ///
    /// The loop runs in parts: the early stages of the first iterations, both, the late ones of the last. What late
    /// stages read lives until then; where early ones make the next before that, there are as many buffers more, and
    /// the loop's extent is constant. In a pipelined loop copies that only late stages read are late, too.
    void delay(const StageRef& stage, Loop loop, const DelayOptions& options, TW_HERE);
    void delay(const StageRef& stage, Loop loop, int iterations = 1, TW_HERE) {
        delay(stage, loop, DelayOptions{.iterations = iterations}, where);
    }
    /// Has groups of warps run a kernel's stages side by side (warp specialisation). One role computes: it runs all
    /// stages that no other names, on as many warps as its loops are bound to. Each other one runs copies into shared
    /// memory inside of pipelined loops, by the tensor memory accelerator, in one thread; its warps, 1 to 4, fill a
    /// warpgroup. A role's registers are a multiple of 8 from 24 to 256; either all roles give them or none. Barriers
    /// between roles follow from the pipelines. Needs sm_90.
    ///
    /// With ping_pong(2), in a persistent kernel, the warps that compute are two groups, each as large as the loops are
    /// bound to, of which one computes a tile while the other stores the results of the last (ping-pong). Each has
    /// shared memory of its own for what it makes.
    void roles(const std::vector<Role>& roles, TW_HERE);
    /// Has the warpgroups that compute take turns at these stages (an ordered section), in each iteration of the
    /// innermost loop around all of them: from in front of the first of them to behind the last, one warpgroup after
    /// the other, always in the same order. A product of wgmma is behind when it is asked for, not when it is over. So
    /// the products of one warpgroup run while others compute what is between, instead of all at once. What stands in
    /// an iteration beside, or without one of them, as the first part of a loop with a delay, takes no turns. Results
    /// are the same to the bit. build() throws Error where fewer than two warpgroups compute, they run a loop around a
    /// different number of times, all of them meet inside, or there are not enough named barriers, one a warpgroup.
    void exclusive(const std::vector<StageRef>& stages, TW_HERE);
    /// Binds the loops, outermost first, to grid.x, whose iterations a fixed number of blocks take in turn: block b
    /// those numbered b, b + blocks, ... Loads of the next iteration start while the last one's results are stored, if
    /// a role of their own makes them.
    ///
    /// With `dynamic`, for iterations that are not equally long: the first iteration of block b is still b, and each
    /// further one is the first that no block has taken, so that the loops' order is that in which iterations begin.
    /// Results are the same to the bit. A counter of 4 bytes in global memory, zero before a launch and behind it,
    /// tells which one that is; whoever launches printed text gives it. Neither with clusters nor with ping_pong.
    void persistent(const std::vector<Loop>& loops, PersistentOptions options = {}, TW_HERE);
    /// Asks for so many blocks of the stage's kernel side by side on each multiprocessor (__launch_bounds__(threads,
    /// blocks)): the compiler then gives each thread at most its share of the registers. 1, the default, leaves them
    /// to one block. build() throws Error, with the numbers, where threads, shared memory, registers that roles give,
    /// or sums of matrix instructions do not leave room for that many.
    void occupancy(const StageRef& stage, int blocks, TW_HERE);

    // Looking.
    const Tree& tree() const;
    const Target& target() const;
    const std::vector<Step>& trace() const;
    const std::vector<Tensor>& outputs() const;
    /// What stages were rounded to by round_to, a type for each of them.
    std::vector<Type> roundings() const;
    /// Of these, the declared tensors and what each is rounded to; copies of tensors are none.
    std::vector<std::pair<Tensor, Type>> rounded() const;
    /// The loop nest.
    std::string to_string() const;
    void print() const;
    /// What floats may differ by, reorderings of reductions, and defaults taken so far; build(s).explain() has times.
    std::string explain() const;
    /// Whether equal inputs give equal bits: false once floats are added atomically.
    bool deterministic() const;
    /// The trace as C++ statements on a schedule `s`, among variables named as the tensors and sizes; the outputs of a
    /// tuple are elements of a vector. Names that are no identifiers, or that two have, are changed to ones that are.
    std::string trace_as_cpp() const;
    /// The trace as text that `replay` reads.
    std::string save() const;
    /// Interprets the tree after each step, on these inputs, and compares it with the declaration. Throws Error that
    /// names the first step (number, text, file and line) after which results differ by more than another order of a
    /// sum explains, and the element: a reducer that is not associative, or not commutative, or whose identity is none;
    /// an index read from data that leaves its tensor. Slow: for small extents.
    void check_each_step(const Bindings& inputs, TW_HERE) const;

    struct State;

private:
    friend class Replayer;
    friend class Edit;
    friend class ListStep;
    /// The handle of what a trace numbers so; one that no step takes if there is none.
    Loop numbered_loop(int id) const;
    Stage numbered_stage(int id) const;
    void check_loop_count(const StageRef& stage, size_t found, size_t wanted, std::source_location where) const;
    void check_part_count(size_t named, size_t wanted, std::source_location where) const;
    std::unique_ptr<State> state_;
};

/// Applies a saved trace to a fresh schedule of the same computation. Throws Error naming the line that does not fit.
Schedule replay(const std::string& saved, const std::vector<Tensor>& outputs, Target target, TW_HERE);

}  // namespace tw
