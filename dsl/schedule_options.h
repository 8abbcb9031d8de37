// What the steps of schedules take: handles of loops and stages, and options.
#pragma once
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "dsl/atoms.h"
#include "dsl/target.h"
#include "dsl/tensor.h"
#include "dsl/tree.h"

namespace tw {

#define TW_HERE std::source_location where = std::source_location::current()

/// What a handle stands for, and where it was made. A copy of a schedule shares those of what it has copied.
struct Origin {
    std::string name;            ///< of the loop or the stage
    std::string outputs;         ///< of the schedule
    std::source_location where;  ///< the step
};

/// A loop of a schedule. `split` and `fuse` consume their operands, `at` the loops of the stage that it moves. Steps
/// refuse loops that their schedule does not have; a copy of a schedule has all loops that were there when it was made.
struct Loop {
    int id = -1;
    std::shared_ptr<const Origin> origin = {};
};
/// A computation or a copy in a schedule; the same holds.
struct Stage {
    int id = -1;
    std::shared_ptr<const Origin> origin = {};
};

/// A stage, named by its handle or by the tensor that it computes, and the line that names it.
class StageRef {
public:
    StageRef(Stage stage, TW_HERE) : stage_(std::move(stage)), where_(where) {}
    StageRef(const Tensor& tensor, TW_HERE) : tensor_(tensor), where_(where) {}
    Stage stage_;
    Tensor tensor_;
    std::source_location where_;
};

/// How a split that does not divide ends.
enum class Tail {
    Divide,  ///< it must divide
    Mask,    ///< the last iterations are masked
};

/// Names of the loops that a split makes: any text; one that is empty is left to the split, which suggests "i_outer"
/// and "i_inner".
struct SplitNames {
    std::string outer, inner;
};

/// What a copy is for, and what it is of.
struct CopyOf {
    CopyOf(const StageRef& consumer, const StageRef& operand) : consumers{consumer}, operand(operand) {}
    CopyOf(std::vector<StageRef> consumers, const StageRef& operand)
        : consumers(std::move(consumers)), operand(operand) {}
    std::vector<StageRef> consumers;
    StageRef operand;
};

/// The iterations of a loop for which all masks and selects of the stage hold, as far as they compare indices.
struct WherePartial {
    StageRef stage;
};
inline WherePartial where_partial(const StageRef& stage) { return {stage}; }

/// How a copy lies.
enum class As {
    Tensor,  ///< as the tensor does: its dimensions
    Matrix,  ///< as the loops of the reader run: rows, columns and terms of a matrix instruction
};

/// How parts of a reduction come together.
enum class Combine {
    Workspace,  ///< they are stored, and a kernel behind combines them in order
    Atomic,     ///< each is combined with the result in memory when it is made, in no fixed order
    Search,     ///< of few scattered terms: each element finds the first and the last of its own, and combines those
};

/// What terms of a stream read in the place of a reduction r that still runs. What has been reduced is corrected when
/// that changes, and behind the loop to the true r, so all give the same result, but for rounding.
struct Reference {
    enum class Kind {
        Running,   ///< what r is so far
        Lazy,      ///< what r was at some time before, until that differs from r by more than `by`, 0 or more
        Offset,    ///< what r is so far, plus `by`
        Constant,  ///< `by`: nothing is corrected in the loop
    } kind = Kind::Running;
    double by = 0;

    static constexpr Reference running() { return {}; }
    static constexpr Reference lazy(double by) { return {Kind::Lazy, by}; }
    static constexpr Reference offset(double by) { return {Kind::Offset, by}; }
    static constexpr Reference constant(double by) { return {Kind::Constant, by}; }
};
/// Of a reduction of the stream.
struct ReferenceOf {
    StageRef reduction;
    Reference reference;
};

struct PipelineOptions {
    int stages = 2;     ///< buffers of each copy: at most 16
    int in_flight = 0;  ///< iterations whose wgmma may still run when the next one's start; less than `stages`
};

struct DelayOptions {
    int iterations = 1;         ///< how many later: at most 8; 0 takes the delay back
    StageRef before = Stage{};  ///< the late stages stand in front of this one, which comes first otherwise
};

/// Warps that a role has.
struct Warps {
    int count = 0;
};
constexpr Warps warps(int count) { return {count}; }
constexpr Warps warpgroups(int count) { return {4 * count}; }
/// Registers that each thread of a role has.
struct Registers {
    int count = 0;
};
constexpr Registers registers(int count) { return {count}; }

/// Groups of a role's warps that take tiles in turn: one computes while another one stores (ping-pong, as in CUTLASS).
struct PingPong {
    int count = 1;
};
constexpr PingPong ping_pong(int count) { return {count}; }

/// A group of warps and the stages that it runs.
struct Role {
    std::string name;
    Warps warps;
    Registers registers = {};  ///< 0: as many as all others
    std::vector<StageRef> stages;
    PingPong ping_pong = {};  ///< of the consumer: each group has `warps` / count of them
};

struct PersistentOptions {
    int blocks = 0;              ///< 0: one for each multiprocessor of the target
    bool longest_first = false;  ///< later iterations take longer: begins with the last ones, and has every other round
                                 ///< of blocks go the other way, so that all end at about the same time
    int stages = 1;  ///< buffers of what a role copies for a whole iteration: with 2, the next one's arrives meanwhile
    bool dynamic = false;  ///< a block that is done takes the next iteration that none has begun, by a ticket from a
                           ///< counter in global memory, instead of the one `blocks` further; with longest_first, the
                           ///< first ticket is the last iteration
};

/// Which loops a matrix instruction takes over: rows and columns of the result, and terms.
struct MmaLoops {
    Loop m, n, k;
};

struct GridLevels {
    Level x = Level::GridX, y = Level::GridY, z = Level::GridZ;
};
inline constexpr GridLevels grid;
inline constexpr Level cluster = Level::Cluster, thread = Level::Thread, warpgroup = Level::Warpgroup,
                       warp = Level::Warp, lane = Level::Lane, vector = Level::Vector, unrolled = Level::Unroll,
                       serial = Level::Serial;

}  // namespace tw
