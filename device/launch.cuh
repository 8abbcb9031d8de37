//: wait_for_previous
/// Until all that was launched before this kernel has finished and its results are visible.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//: start_next
/// Once each block has called this or ended, blocks of the next kernel may start, and wait.
__device__ inline void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
