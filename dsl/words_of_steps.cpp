#include "dsl/words_of_steps.h"

#include "dsl/stream.h"
#include "support/error.h"

namespace tw {

Reference::Kind reference_kind_named(const std::string& text, std::source_location where) {
    using Kind = Reference::Kind;
    for (Kind k : {Kind::Running, Kind::Lazy, Kind::Offset, Kind::Constant})
        if (word_of(k) == text) return k;
    user_error(where, "\"{}\" is no kind of reference", text);
}

Level level_named(const std::string& text, std::source_location where) {
    for (Level l : {Level::Serial, Level::Unroll, Level::Vector, Level::GridX, Level::GridY, Level::GridZ,
                    Level::Cluster, Level::Thread, Level::Warpgroup, Level::Warp, Level::Lane})
        if (to_string(l) == text) return l;
    user_error(where, "\"{}\" is no level", text);
}

Type type_named(const std::string& text, std::source_location where) {
    for (Type t : {f32, f16, bf16, tf32, e4m3, e5m2})
        if (name_of(t) == text) return t;
    user_error(where, "\"{}\" is no float type", text);
}

MatrixUnit matrix_unit_named(const std::string& text, std::source_location where) {
    for (MatrixUnit unit : {mma_sync, wgmma})
        if (to_string(unit) == text) return unit;
    user_error(where, "\"{}\" is no matrix unit", text);
}

Copy copy_named(const std::string& text, std::source_location where) {
    for (Copy c : {Copy::Automatic, Copy::Vector, Copy::Async, Copy::Tma})
        if (to_string(c) == text) return c;
    user_error(where, "\"{}\" is no way to copy", text);
}

Memory memory_named(const std::string& text, std::source_location where) {
    for (Memory m : {Memory::Auto, Memory::Global, Memory::Shared, Memory::Registers})
        if (to_string(m) == text) return m;
    user_error(where, "\"{}\" is no memory", text);
}

}  // namespace tw
