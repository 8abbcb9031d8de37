#include "codegen/thread_ir/check_unions.h"

#include <map>

#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

class UnionChecker {
public:
    explicit UnionChecker(const ThreadKernel& kernel) : kernel_(kernel), bounds_(kernel) {
        for (size_t u = 0; u < kernel.unions.size(); ++u)
            for (size_t a = 0; a < kernel.unions[u].alternatives.size(); ++a)
                for (const Buffer& buffer : kernel.unions[u].alternatives[a])
                    add(buffer, static_cast<int>(u), static_cast<int>(a));
    }

    void walk(const ThreadStmt& stmt) {
        if (stmt.as<ThreadRole>()) {  // beside others: each goes its own way
            const std::map<int, int> before = owners_;
            for (const ThreadStmt& kid : children(stmt)) walk(kid);
            owners_ = before;
            return;
        }
        see(stmt);
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        const bool again = loop && bounds_.of(loop->extent).max.value_or(2) > 1;
        if (loop) bounds_.enter_loop(*loop);
        if (auto let = stmt.as<ThreadLet>()) bounds_.define(*let);
        const int times = again ? 2 : 1;  // the second iteration follows the first
        for (int time = 0; time < times; ++time)
            for (const ThreadStmt& kid : children(stmt)) walk(kid);
    }

private:
    void add(const Buffer& buffer, int number, int alternative) {
        internal_check(places_.emplace(buffer.get(), UnionPlace{number, alternative}).second,
                       "kernel {}: '{}' stands in a union twice", kernel_.name, buffer->name);
    }

    void see(const ThreadStmt& stmt) {
        if (auto begin = instruction_of<BeginArray>(stmt)) {
            const UnionPlace place = place_of_array(begin->array.place.buffer);
            if (place.number >= 0) owners_[place.number] = place.alternative;
        }
        if (stmt.as<ThreadAccess>()) return;  // tells of others, such as products that may still read what is gone
        for (const MemoryAccess& access : memory_accesses(stmt)) use(access.place.buffer, stmt);
        if (auto instruction = stmt.as<Instruction>())
            visit_places(*instruction, [&](const Access& place) { use(place.buffer, stmt); });
    }

    UnionPlace place_of_array(const Buffer& buffer) const {
        auto found = places_.find(buffer.get());
        return found == places_.end() ? UnionPlace{} : found->second;
    }

    void use(const Buffer& buffer, const ThreadStmt& stmt) {
        const UnionPlace place = place_of_array(buffer);
        if (place.number < 0) return;
        const int owner = owners_.try_emplace(place.number, place.alternative).first->second;
        internal_check(owner == place.alternative,
                       "kernel {}: '{}' is accessed where another array has its bytes, in: {}", kernel_.name,
                       buffer->name, to_string(stmt));
    }

    const ThreadKernel& kernel_;
    KnownBounds bounds_;
    std::map<const BufferNode*, UnionPlace> places_;
    std::map<int, int> owners_;  // of each union, the alternative that has its bytes
};

}  // namespace

void check_unions(const ThreadKernel& kernel) {
    if (!kernel.unions.empty()) UnionChecker(kernel).walk(kernel.body);
}

}  // namespace tw::codegen
