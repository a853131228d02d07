// How the threads of a computation wait for each other.
#pragma once

#include <string>

namespace wick::cli {

// Unless the environment says how (OMP_WAIT_POLICY or GOMP_SPINCOUNT), threads spin for about half a millisecond and
// then sleep. libgomp's own choice is some 15 ms, in which they hold up whoever shares the processor, the thread that
// they wait for among them. It reads its variables when it is loaded, before main: the program is executed once more
// with the variable set. `argv` is main's.
void wait_briefly(char** argv);
// The variable that decides how threads wait, with its value: "GOMP_SPINCOUNT=10000".
std::string wait_policy();

}  // namespace wick::cli
