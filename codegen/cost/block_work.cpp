#include "codegen/cost/block_work.h"

namespace tw::codegen {

BlockWork& BlockWork::operator+=(const BlockWork& other) {
    instructions += other.instructions;
    waits += other.waits;
    special += other.special;
    doubles += other.doubles;
    wavefronts += other.wavefronts;
    unit_cycles += other.unit_cycles;
    round_trips += other.round_trips;
    barriers += other.barriers;
    return *this;
}
BlockWork operator*(double times, BlockWork work) {
    for (double* number : {&work.instructions, &work.waits, &work.special, &work.doubles, &work.wavefronts,
                           &work.unit_cycles, &work.round_trips, &work.barriers})
        *number *= times;
    return work;
}

}  // namespace tw::codegen
