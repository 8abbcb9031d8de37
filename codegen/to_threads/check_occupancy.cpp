#include "codegen/to_threads/check_occupancy.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/shared_struct.h"
#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t least_registers = 24;  // that code needs beside sums: the least that setmaxnreg leaves

/// The largest array of sums of matrix instructions that a thread has.
Buffer largest_sums(const ThreadKernel& kernel) {
    Buffer largest;
    auto elements_of = [](const Buffer& buffer) {
        int64_t elements = 1;
        for (const Expr& extent : buffer->shape) elements *= require_constant(extent);
        return elements;
    };
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        const Mma* mma = instruction_of<Mma>(stmt);
        const Wgmma* wgmma = instruction_of<Wgmma>(stmt);
        if (!mma && !wgmma) return;
        const Buffer& sums = (mma ? mma->sums : wgmma->sums).place.buffer;
        if (!largest || elements_of(sums) > elements_of(largest)) largest = sums;
    });
    return largest;
}

class OccupancyCheck {
public:
    OccupancyCheck(const TileKernel& tiles, const ThreadKernel& threads, const Target& target, const CiteStep& cite)
        : tiles_(tiles), threads_(threads), target_(target), cite_(cite), blocks_(tiles.occupancy.blocks) {}

    void run(std::vector<std::string>& notes) const {
        if (blocks_ == 1) return;
        check_threads();
        check_shared();
        check_roles();
        check_sums();
        notes.push_back(fmt::format(
            "{}: {} blocks a multiprocessor: {} threads each, of at most {} registers, and {} bytes of shared memory",
            tiles_.name, blocks_, all_threads(tiles_), registers_at_launch(tiles_, target_),
            bytes_of_shared(threads_.shared, threads_.unions)));
        const int64_t room = int64_t{blocks_} * target_.multiprocessors;
        if (tiles_.persistent && tiles_.persistent->blocks < room)
            notes.push_back(
                fmt::format("{}: {} persistent blocks, but there is room for {}: give persistent "
                            "{{.blocks = {}}}",
                            tiles_.name, tiles_.persistent->blocks, room, room));
    }

private:
    template <class... Arguments>
    void require(bool holds, fmt::format_string<Arguments...> message, Arguments&&... arguments) const {
        if (!holds)
            throw_error(Error, "{}occupancy: {} blocks of '{}' a multiprocessor: {}", cite_(tiles_.occupancy.step),
                        blocks_, tiles_.name, fmt::format(message, std::forward<Arguments>(arguments)...));
    }

    void check_threads() const {
        const int all = all_threads(tiles_), most = target_.threads_per_multiprocessor;
        require(all * blocks_ <= most, "of {} threads each they have {}, a multiprocessor of {} has {}; ask for {}",
                all, all * blocks_, target_.arch, most, most / all);
    }

    void check_shared() const {
        const int64_t bytes = bytes_of_shared(threads_.shared, threads_.unions) + driver_bytes,
                      most = target_.shared_bytes_per_multiprocessor;
        require(bytes * blocks_ <= most,
                "of {} bytes of shared memory each, {} of them the driver's, they take {}, a multiprocessor of {} has "
                "{}; use smaller tiles or fewer stages, or ask for {}",
                bytes, driver_bytes, bytes * blocks_, target_.arch, most, most / bytes);
    }

    void check_roles() const {
        if (tiles_.roles.empty() || tiles_.roles[0].registers == 0) return;
        int64_t used = 0;
        std::string parts;
        for (const RoleSpec& role : tiles_.roles) {
            used += int64_t{role.registers} * threads_of(role);
            parts += fmt::format("{}{} x {}", parts.empty() ? "" : " + ", threads_of(role), role.registers);
        }
        const int all = all_threads(tiles_), each = registers_at_launch(tiles_, target_);
        require(used <= int64_t{each} * all,
                "roles give {} = {} registers, but {} threads start with {} each, {} together; give them fewer", parts,
                used, all, each, int64_t{each} * all);
    }

    void check_sums() const {
        const Buffer sums = largest_sums(threads_);
        if (!sums) return;
        int64_t registers = 1;
        for (const Expr& extent : sums->shape) registers *= require_constant(extent);
        registers = (registers * bytes_of(sums->type) + 3) / 4;
        const bool given = !tiles_.roles.empty() && tiles_.roles[0].registers > 0;
        const int has = given ? tiles_.roles[0].registers : registers_at_launch(tiles_, target_);
        require(registers + least_registers <= has,
                "each thread has {} registers, but the sums '{}' take {} and other values at least {}; use smaller "
                "tiles or more warps",
                has, sums->name, registers, least_registers);
    }

    const TileKernel& tiles_;
    const ThreadKernel& threads_;
    const Target& target_;
    const CiteStep& cite_;
    const int blocks_;
};

}  // namespace

int registers_at_launch(const TileKernel& kernel, const Target& target) {
    const int64_t each = target.registers / (int64_t{all_threads(kernel)} * kernel.occupancy.blocks) / 8 * 8;
    return static_cast<int>(std::min<int64_t>(each, target.max_registers_per_thread));
}

void check_occupancy(const TileKernel& tiles, const ThreadKernel& threads, const Target& target, const CiteStep& cite,
                     std::vector<std::string>& notes) {
    OccupancyCheck(tiles, threads, target, cite).run(notes);
}

}  // namespace tw::codegen
