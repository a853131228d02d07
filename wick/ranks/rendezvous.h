// How the ranks of a run find each other: rank 0 listens, each other one connects and says who it is.
#pragma once

#include <string>
#include <vector>

#include "wick/ranks/launch.h"
#include "wick/ranks/socket.h"

namespace wick {

// Another rank, connected.
struct Peer {
  int rank = 0;
  std::string host;
  Socket socket;
};

// Waits until all have come; rank 0 gets all others in the order of ranks, each of them rank 0 alone. Throws Error if
// some do not come, or if this one is refused: its number is taken, it counts other ranks, it is of another version.
//
// A program that connects to rank 0 and is no rank is ignored, and holds up nobody. There is no secret: whoever can
// reach the port can come as a rank.
std::vector<Peer> rendezvous(const RankPlace& place);

}  // namespace wick
