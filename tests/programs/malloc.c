/*
 * Proves: the malloc family works on any node at any time, and its blocks are distinct, aligned and keep
 * their contents. A pointer works on every node. Any node may reallocate or free a block. calloc zeroes
 * memory that was used before. Impossible sizes return NULL and set errno.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"

enum { BLOCKS = 60, ROUNDS = 12 };

struct block {
    unsigned char *bytes;
    size_t size;
};

static int node, nodes;
static struct block *board; /* BLOCKS for each node */

static unsigned char byte_of(int owner, int slot, int round, size_t i)
{
    return (unsigned char)(owner * 31 + slot * 7 + round * 3 + (int)(i % 251) + 1);
}

/* From 1 byte to about 300 KiB, mostly small. */
static size_t size_of(int owner, int slot, int round)
{
    unsigned mixed = (unsigned)(owner * 7919 + slot * 104729 + round * 1299709) * 2654435761u;
    return 1 + (mixed >> 8) % ((size_t)1 << (3 + mixed % 16));
}

static void fill(struct block b, int owner, int slot, int round)
{
    for (size_t i = 0; i < b.size; i++)
        b.bytes[i] = byte_of(owner, slot, round, i);
}

static void expect(struct block b, size_t bytes, int owner, int slot, int round)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(b.bytes[i] == byte_of(owner, slot, round, i),
              "byte %lu of block %d of node %d changed in round %d", (unsigned long)i, slot, owner,
              round);
}

static void allocate(int round)
{
    for (int slot = 0; slot < BLOCKS; slot++) {
        struct block *b = &board[node * BLOCKS + slot];
        size_t alignment = 16;
        b->size = size_of(node, slot, round);
        if (slot % 3 == 0) {
            b->bytes = hiroba_malloc(b->size);
        } else if (slot % 3 == 1) {
            b->bytes = hiroba_calloc(b->size, 1);
            for (size_t i = 0; b->bytes != NULL && i < b->size; i++)
                CHECK(b->bytes[i] == 0, "hiroba_calloc left byte %lu at %d in round %d",
                      (unsigned long)i, b->bytes[i], round);
        } else {
            alignment = (size_t)16 << slot % 9; /* to 4096 */
            b->bytes = hiroba_aligned_alloc(alignment, b->size);
        }
        CHECK(b->bytes != NULL, "no block of %lu bytes", (unsigned long)b->size);
        CHECK((uintptr_t)b->bytes % alignment == 0, "%p is not aligned to %lu", (void *)b->bytes,
              (unsigned long)alignment);
        fill(*b, node, slot, round);
    }
}

/* Reads a block that another node allocated, changes its size here, and frees it here. */
static void take_over(int owner, int round)
{
    for (int slot = 0; slot < BLOCKS; slot++) {
        struct block b = board[owner * BLOCKS + slot];
        expect(b, b.size, owner, slot, round);
        if (slot % 4 == 0) {
            size_t larger = b.size * 2 + 10, smaller = b.size / 2 + 1;
            size_t kept = smaller < b.size ? smaller : b.size;
            b.bytes = hiroba_realloc(b.bytes, larger);
            CHECK(b.bytes != NULL, "hiroba_realloc to %lu bytes failed", (unsigned long)larger);
            expect(b, b.size, owner, slot, round);
            memset(b.bytes + b.size, 255, larger - b.size);
            b.bytes = hiroba_realloc(b.bytes, smaller);
            CHECK(b.bytes != NULL, "hiroba_realloc to %lu bytes failed", (unsigned long)smaller);
            expect(b, kept, owner, slot, round);
        }
        hiroba_free(b.bytes);
    }
}

static void check_refused(void *block, const char *call)
{
    CHECK(block == NULL, "%s returned %p", call, block);
    CHECK(errno != 0, "%s failed without errno", call);
    errno = 0;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    board = shared((size_t)nodes * BLOCKS * sizeof *board);

    for (int round = 0; round < ROUNDS; round++) {
        allocate(round);
        hiroba_barrier();
        take_over((node + round) % nodes, round);
        hiroba_barrier();
    }

    /* Under a lock instead of barriers: a block goes round the nodes, and each makes it longer. */
    struct block *ring = shared(sizeof *ring);
    for (int turn = 0; turn < 20; turn++) {
        hiroba_lock(9);
        size_t size = ring->size;
        for (size_t i = 0; i < size; i++)
            CHECK(ring->bytes[i] == (unsigned char)i, "byte %lu was lost on the way round",
                  (unsigned long)i);
        ring->bytes = hiroba_realloc(ring->bytes, size + 37); /* of NULL, at first: a malloc */
        CHECK(ring->bytes != NULL, "hiroba_realloc to %lu bytes failed", (unsigned long)size + 37);
        for (size_t i = size; i < size + 37; i++)
            ring->bytes[i] = (unsigned char)i;
        ring->size = size + 37;
        hiroba_unlock(9);
    }
    hiroba_barrier();
    CHECK(ring->size == (size_t)nodes * 20 * 37, "the block has %lu bytes",
          (unsigned long)ring->size);

    hiroba_free(NULL);
    errno = 0;
    check_refused(hiroba_malloc(SIZE_MAX), "hiroba_malloc(SIZE_MAX)");
    check_refused(hiroba_malloc(SIZE_MAX - 64), "hiroba_malloc(SIZE_MAX - 64)");
    check_refused(hiroba_calloc(SIZE_MAX / 2 + 1, 2), "hiroba_calloc with a product of 0");
    check_refused(hiroba_calloc(SIZE_MAX, SIZE_MAX), "hiroba_calloc(SIZE_MAX, SIZE_MAX)");
    check_refused(hiroba_aligned_alloc(64, SIZE_MAX - 32), "hiroba_aligned_alloc(64, SIZE_MAX - 32)");
    check_refused(hiroba_aligned_alloc(48, 100), "hiroba_aligned_alloc to 48, no power of two");
    unsigned char *small = hiroba_malloc(10);
    CHECK(small != NULL, "nothing to be had after refused sizes");
    memset(small, 7, 10);
    errno = 0;
    check_refused(hiroba_realloc(small, SIZE_MAX), "hiroba_realloc to SIZE_MAX");
    CHECK(small[0] == 7 && small[9] == 7, "a refused hiroba_realloc changed the block");
    hiroba_free(small);
    hiroba_finalize();
    return 0;
}
