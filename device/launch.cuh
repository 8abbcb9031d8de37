//: griddepcontrol_wait
/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//: griddepcontrol_launch_dependents
/// Once each block has called this or ended, blocks of the next kernel may start, and wait.
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
