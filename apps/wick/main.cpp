#include <cstdio>

int main() {
  std::puts("wick");
  return 0;
}
