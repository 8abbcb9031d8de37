// Twins of ../launch.cuh. The emulator runs one kernel after another; what it checks is that a thread has waited before
// it touches what the kernels before may still use.
namespace tw {
namespace emulated {
extern "C" TW_HOOK void tw_wait_for_previous() { tw_hooks.griddepcontrol_wait(); }
}  // namespace emulated
TW_INLINE void griddepcontrol_wait() { emulated::tw_wait_for_previous(); }
TW_INLINE void griddepcontrol_launch_dependents() {}
}  // namespace tw
