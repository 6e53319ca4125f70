// Proves: streams of C++ and threads of std::thread work on shared memory that is absent on this node.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"

namespace {

constexpr std::size_t page = 4096, size = 6 * page + 100;

// Collective: the next node writes this node's memory.
void fill(char *all, int seed)
{
    char *other = all + std::size_t((hiroba_node() + 1) % hiroba_nodes()) * 2 * size;
    hiroba_barrier();
    for (std::size_t i = 0; i < size; i++)
        other[i] = char('a' + (i + std::size_t(seed)) % 26);
    hiroba_barrier();
}

} // namespace

int main(int argc, char **argv)
{
    join(&argc, &argv);
    char *all = static_cast<char *>(shared(2 * size * std::size_t(hiroba_nodes())));
    char *mine = all + std::size_t(hiroba_node()) * 2 * size;
    char name[] = "/tmp/hiroba-XXXXXX";
    CHECK(close(mkstemp(name)) == 0, "mkstemp failed");

    for (int round = 0; round < 4; round++) {
        fill(all, round);
        {
            std::ofstream file(name, std::ios::binary);
            file.write(mine, std::streamsize(size));
            CHECK(file.good(), "ofstream::write failed");
        }
        std::string copy(mine, size);
        fill(all, round + 5);
        {
            std::ifstream file(name, std::ios::binary);
            file.read(mine, std::streamsize(size));
            CHECK(file.gcount() == std::streamsize(size), "ifstream::read read %ld bytes", long(file.gcount()));
        }
        CHECK(copy.compare(0, size, mine, size) == 0, "the file came back changed");
        fill(all, round + 7);
        mine[size - 1] = 0;
        std::ostringstream text;
        text << mine;
        CHECK(text.str().size() == size - 1, "ostringstream took %lu bytes", (unsigned long)text.str().size());
    }
    unlink(name);

    fill(all, 1);
    std::uint64_t *sums = static_cast<std::uint64_t *>(shared(8 * page));
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; t++)
        threads.emplace_back([=] {
            std::uint64_t sum = 0;
            for (std::size_t i = t; i < size; i += 4)
                sum += std::uint64_t(mine[i]);
            sums[std::size_t(hiroba_node()) * 4 + t] = sum;
        });
    for (std::thread &thread : threads)
        thread.join();
    hiroba_barrier();
    std::uint64_t sum = 0, wanted = 0;
    for (std::size_t t = 0; t < 4; t++)
        sum += sums[std::size_t(hiroba_node()) * 4 + t];
    for (std::size_t i = 0; i < size; i++)
        wanted += 'a' + (i + 1) % 26;
    CHECK(sum == wanted, "the threads summed up %lu, not %lu", (unsigned long)sum, (unsigned long)wanted);
    hiroba_finalize();
    return 0;
}
