/*
 * Proves: --races reports bytes that two nodes write, or that one writes and another reads, without
 * synchronisation, and nothing else. The first argument chooses; the lines that the report must name are
 * marked.
 */
#include <stdint.h>
#include <stdio.h>

#include "check.h"

struct board {
    char before[64];
    uint32_t word;    /* the word of the race */
    uint8_t bytes[4]; /* one for each node */
    uint32_t turn;
};

static struct board *board;

static void write_word(uint32_t value)
{
    board->word = value; /* HERE: store */
}

/* Both write the same word between the same two barriers. */
static void race(void)
{
    if (hiroba_node() < 2)
        write_word((uint32_t)hiroba_node() + 100);
    hiroba_barrier(); /* HERE: end */
}

/* One node writes what the other reads, between the same two barriers. */
static void read_unordered(void)
{
    if (hiroba_node() == 0)
        write_word(1);
    volatile uint8_t *byte = (volatile uint8_t *)&board->word;
    if (hiroba_node() == 1)
        (void)*byte; /* HERE: load */
    hiroba_barrier();
}

/* Each node has a lock, but not the same one. */
static void two_locks(void)
{
    for (uint32_t round = 1; round <= 10; round++) {
        unsigned lock = 10 + (unsigned)hiroba_node();
        hiroba_lock(lock);
        write_word(round * 4 + (uint32_t)hiroba_node());
        hiroba_unlock(lock);
    }
    hiroba_barrier();
}

/* Neighbouring bytes, turns separated by barriers, and a word under a lock: no race. */
static void in_order(void)
{
    for (int round = 1; round <= 20; round++) {
        if (hiroba_node() < 4)
            board->bytes[hiroba_node()] = (uint8_t)(round + hiroba_node());
        if (round % hiroba_nodes() == hiroba_node())
            board->turn = (uint32_t)round;
        hiroba_lock(1);
        board->word += 1;
        hiroba_unlock(1);
        hiroba_barrier();
    }
    CHECK(board->word == 20u * (uint32_t)hiroba_nodes(), "got %u", board->word);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "";
    board = shared(sizeof *board);
    if (strcmp(how, "race") == 0)
        race();
    else if (strcmp(how, "read") == 0)
        read_unordered();
    else if (strcmp(how, "two-locks") == 0)
        two_locks();
    else if (strcmp(how, "in-order") == 0)
        in_order();
    else
        CHECK(0, "expected race, read, two-locks or in-order");
    hiroba_finalize();
    return 0;
}
