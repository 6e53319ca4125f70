/*
 * Proves: data of a node (hiroba_alloc_local) keep their values while they leave memory and come back, are
 * zeroed, work in system calls and atomic operations, and are freed. Arguments: what to do, and the MiB of
 * data on each node.
 *
 *   keep    fills the data, visits all of it in several orders, frees it, and allocates it again
 *   touch   node 1 stores to data of node 0
 *   free    node 1 frees data of node 0
 *   twice   every node frees its data twice
 *   stale   every node loads from data that it has freed
 */
#include <stdint.h>
#include <unistd.h>

#include "check.h"

enum { PAGE_BYTES = 4096, WORDS_PER_PAGE = PAGE_BYTES / sizeof(uint64_t) };

static uint64_t value(uint64_t word, uint64_t round)
{
    return word * 0x9e3779b97f4a7c15u + round + ((uint64_t)hiroba_node() << 56);
}

/* Adds 1 to two words of every page, in an order without a pattern. */
static void visit(uint64_t *own, size_t pages, uint64_t round)
{
    for (size_t step = 0; step < pages; step++) {
        size_t first = step * 1103 % pages * WORDS_PER_PAGE;
        for (size_t word = first + 5; word < first + WORDS_PER_PAGE; word += 400) {
            CHECK(own[word] == value(word, round), "round %lu: word %lu was lost", (unsigned long)round,
                  (unsigned long)word);
            own[word] = value(word, round + 1);
        }
    }
}

static void keep(size_t pages)
{
    size_t words = pages * WORDS_PER_PAGE;
    uint64_t *own = hiroba_alloc_local(words * sizeof *own), *other = hiroba_alloc_local(100);
    CHECK(own != NULL && other != NULL && own != other, "hiroba_alloc_local failed");
    for (size_t word = 0; word < words; word++) {
        CHECK(own[word] == 0, "word %lu is not 0", (unsigned long)word);
        own[word] = value(word, 1);
    }
    hiroba_barrier();
    for (uint64_t round = 1; round < 4; round++) {
        visit(own, pages, round);
        hiroba_lock(3);
        hiroba_unlock(3);
    }
    for (size_t word = 0; word < words; word++) {
        int visited = word % WORDS_PER_PAGE % 400 == 5;
        CHECK(own[word] == value(word, visited ? 4 : 1), "word %lu is wrong", (unsigned long)word);
    }

    int pipes[2];
    CHECK(pipe(pipes) == 0, "no pipe");
    for (size_t page = 0; page < pages; page += 37) {
        char *from = (char *)(own + page * WORDS_PER_PAGE), copy[PAGE_BYTES];
        CHECK(write(pipes[1], from, PAGE_BYTES) == PAGE_BYTES, "data of this node are not written");
        CHECK(read(pipes[0], copy, PAGE_BYTES) == PAGE_BYTES, "nothing to read");
        CHECK(memcmp(copy, from, PAGE_BYTES) == 0, "page %lu was written wrong", (unsigned long)page);
        CHECK(write(pipes[1], copy, PAGE_BYTES) == PAGE_BYTES, "nothing is written");
        CHECK(read(pipes[0], from, PAGE_BYTES) == PAGE_BYTES, "data of this node are not read into");
    }
    *other = 40;
    CHECK(hiroba_fetch_add(other, 2) == 40 && hiroba_load(other) == 42 && *other == 42, "atomics are wrong");
    CHECK(hiroba_prefetch(own, words * sizeof *own) == 0, "a hint is refused");

    hiroba_free(own);
    uint64_t *again = hiroba_alloc_local(words * sizeof *again);
    for (size_t word = 0; word < words; word += 3)
        CHECK(again[word] == 0, "word %lu of a new allocation is not 0", (unsigned long)word);
    hiroba_free(again);
    CHECK(*other == 42, "another allocation was changed");
    hiroba_free(other);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc == 3, "expected what to do and a size");
    const char *what = argv[1];
    size_t pages = (size_t)atol(argv[2]) * 256;
    if (strcmp(what, "keep") == 0) {
        if (pages > 0)
            keep(pages);
        else
            for (int calls = 0; calls < 4; calls++)
                calls == 0 ? hiroba_barrier() : (hiroba_lock(3), hiroba_unlock(3));
    } else {
        uint64_t **shown = shared(sizeof *shown);
        uint64_t *own = hiroba_alloc_local(PAGE_BYTES * 2);
        own[600] = 7;
        if (hiroba_node() == 0)
            *shown = own;
        hiroba_barrier();
        if (strcmp(what, "touch") == 0 && hiroba_node() == 1)
            (*shown)[600] = 8;
        if (strcmp(what, "free") == 0 && hiroba_node() == 1)
            hiroba_free(*shown);
        if (strcmp(what, "twice") == 0 || strcmp(what, "stale") == 0)
            hiroba_free(own);
        if (strcmp(what, "twice") == 0)
            hiroba_free(own);
        if (strcmp(what, "stale") == 0)
            CHECK(own[600] == 7, "a value that was freed");
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
