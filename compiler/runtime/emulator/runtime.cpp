// CUDA on the CPU, the runtime: built once per mode and machine, linked by every kernel.
#include "launch.h"
#ifdef MLC_CHECK
#include "check_agents.h"
#endif
