/*
 * Proves: what a node holds of shared memory yields to what the program allocates for itself. Each node
 * writes its own part of a region, and reads all of it if the first argument is "copies", or reads only its
 * own if it is "homes". Then node 1 fills private memory, a little at a time, while node 0 waits. At last all
 * nodes check their own part. The second and the third argument are the sizes of both in MiB.
 */
#include <stdint.h>
#include <time.h>

#include "check.h"

enum { WORDS_PER_PAGE = 4096 / sizeof(uint64_t), PAGES_PER_MIB = 256, PIECE_BYTES = 256 * 1024 };

static uint64_t value(size_t word)
{
    return word * 0x9e3779b97f4a7c15u + 1;
}

static void fill_privately(size_t bytes)
{
    for (size_t done = 0; done < bytes; done += PIECE_BYTES) {
        char *piece = malloc(PIECE_BYTES);
        CHECK(piece != NULL, "malloc failed");
        memset(piece, 1 + (int)(done % 100), PIECE_BYTES);
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc == 4, "expected what to read and two sizes");
    int reads_all = strcmp(argv[1], "copies") == 0;
    size_t pages = (size_t)atol(argv[2]) * PAGES_PER_MIB, private_bytes = (size_t)atol(argv[3]) << 20;
    size_t node = (size_t)hiroba_node(), nodes = (size_t)hiroba_nodes();
    size_t words = pages * WORDS_PER_PAGE;
    size_t begin = pages * node / nodes * WORDS_PER_PAGE, end = pages * (node + 1) / nodes * WORDS_PER_PAGE;
    uint64_t *region = shared(words * sizeof *region);
    for (size_t word = begin; word < end; word++)
        region[word] = value(word);
    hiroba_barrier();
    for (size_t word = reads_all ? 0 : begin; word < (reads_all ? words : end); word += WORDS_PER_PAGE)
        CHECK(region[word] == value(word), "word %lu is wrong", (unsigned long)word);
    hiroba_barrier();
    if (node == 1)
        fill_privately(private_bytes);
    hiroba_barrier();
    for (size_t word = begin; word < end; word++)
        CHECK(region[word] == value(word), "word %lu is wrong at last", (unsigned long)word);
    hiroba_finalize();
    return 0;
}
