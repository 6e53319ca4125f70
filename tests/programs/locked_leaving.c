/*
 * Proves: a page that leaves while another thread locks it (mlock) is not lost. Node 0 has twice as many
 * pages as its limit allows. One thread changes all of them in an order without a pattern, and another one
 * locks them, so that frames are made of pages that leave.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"

enum { PAGE_WORDS = 4096 / sizeof(uint64_t), PAGES = 1024, PIECE = 64 };

static uint64_t *region;
static atomic_int is_over;
static atomic_long locked;

static void *lock_all(void *nothing)
{
    for (size_t piece = 0; !is_over; piece = (piece + 7) % (PAGES / PIECE)) {
        uint64_t *start = region + piece * PIECE * PAGE_WORDS;
        if (mlock(start, PIECE * 4096) == 0) {
            CHECK(munlock(start, PIECE * 4096) == 0, "munlock failed");
            locked++;
        }
    }
    return nothing;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    uint64_t rounds = argc > 1 ? (uint64_t)atol(argv[1]) : 10;
    region = hiroba_alloc_at((size_t)PAGES * 4096, 0);
    CHECK(region != NULL, "hiroba_alloc_at failed");
    if (hiroba_node() == 0) {
        pthread_t locker;
        for (size_t page = 0; page < PAGES; page++)
            region[page * PAGE_WORDS + page % PAGE_WORDS] = page + 1;
        CHECK(pthread_create(&locker, NULL, lock_all, NULL) == 0, "pthread_create failed");
        for (uint64_t round = 1; round <= rounds; round++)
            for (size_t step = 0; step < PAGES; step++) {
                size_t page = step * 389 % PAGES;
                uint64_t *word = &region[page * PAGE_WORDS + page % PAGE_WORDS];
                CHECK(*word == page + round, "round %lu: page %lu has %lu", (unsigned long)round,
                      (unsigned long)page, (unsigned long)*word);
                *word = page + round + 1;
            }
        is_over = 1;
        CHECK(pthread_join(locker, NULL) == 0 && locked > 0, "nothing was locked");
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
