// The way in which a computation's threads wait for each other.
#pragma once

#include <string>

namespace wick::cli {

// Unless the environment decides (OMP_WAIT_POLICY or GOMP_SPINCOUNT), threads spin for about half a millisecond and
// then sleep. libgomp's default is some 15 ms, which delays other users of the processor, even the thread that is
// awaited. It reads its variables when it is loaded, before main: the program is executed once more with the variable
// set. `argv` is main's.
void wait_briefly(char** argv);
// The variable that decides how threads wait, with its value: "GOMP_SPINCOUNT=10000".
std::string wait_policy();

}  // namespace wick::cli
