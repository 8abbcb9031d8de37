// Twins of ../launch.cuh: the emulator runs one kernel after another.
namespace tw {
TW_INLINE void wait_for_previous() {}
TW_INLINE void start_next() {}
}  // namespace tw
