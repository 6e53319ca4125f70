/*
 * Proves: condition variables with Mesa semantics. Producers and consumers pass every item through a small
 * buffer exactly once, woken by signals or by broadcasts. A wait releases the lock. Nodes that wait for their
 * turn all get it. Signals without the lock, some with no waiter, reach threads whose releases still have
 * changed pages to send.
 */
#include <stdint.h>

#include "check.h"

enum { CAPACITY = 4, ITEMS = 150, TURNS = 40 };
enum { LOCK = 1, NOT_FULL = 2, NOT_EMPTY = 3, NEW_TURN = 4 };
enum { PAGES = 16, PAGE = 4096 };

struct buffer {
    uint32_t items[CAPACITY];
    uint32_t filled, head, taken;
};

static int node, nodes;

static void wake(unsigned condition, int all)
{
    if (all)
        hiroba_cond_broadcast(condition);
    else
        hiroba_cond_signal(condition);
}

static void put(struct buffer *b, uint32_t item, int all)
{
    hiroba_lock(LOCK);
    while (b->filled == CAPACITY)
        hiroba_cond_wait(NOT_FULL, LOCK);
    b->items[(b->head + b->filled) % CAPACITY] = item;
    b->filled++;
    wake(NOT_EMPTY, all);
    hiroba_unlock(LOCK);
}

/* Takes one item and counts it in `seen`. Returns false when all items have been taken. */
static int take(struct buffer *b, unsigned char *seen, uint32_t total, int all)
{
    hiroba_lock(LOCK);
    while (b->filled == 0 && b->taken < total)
        hiroba_cond_wait(NOT_EMPTY, LOCK);
    int found = b->filled > 0;
    if (found) {
        seen[b->items[b->head]]++;
        b->head = (b->head + 1) % CAPACITY;
        b->filled--;
        b->taken++;
        wake(NOT_FULL, all);
        if (b->taken == total)
            hiroba_cond_broadcast(NOT_EMPTY); /* the other consumers would wait in vain */
    }
    hiroba_unlock(LOCK);
    return found;
}

static void pass_items(int all)
{
    int producers = nodes > 1 ? nodes / 2 : 1;
    uint32_t total = (uint32_t)producers * ITEMS;
    struct buffer *b = shared(sizeof *b);
    unsigned char *seen = shared(total);
    if (nodes == 1) { /* no other node: never wait */
        for (uint32_t item = 0; item < ITEMS; item++) {
            put(b, item, all);
            CHECK(take(b, seen, total, all), "the item just put is not there");
        }
    } else if (node < producers) {
        for (uint32_t item = 0; item < ITEMS; item++)
            put(b, (uint32_t)node * ITEMS + item, all);
    } else {
        while (take(b, seen, total, all))
            ;
    }
    hiroba_barrier();
    CHECK(b->taken == total && b->filled == 0, "%u of %u items were taken, %u left",
          (unsigned)b->taken, (unsigned)total, (unsigned)b->filled);
    for (uint32_t item = 0; item < total; item++)
        CHECK(seen[item] == 1, "item %u was taken %d times", (unsigned)item, seen[item]);
    hiroba_barrier();
}

/* Each node waits for its turn with changed pages that all others have read, so that its release takes
 * time. */
static void signal_without_lock(void)
{
    int *turn = shared(sizeof *turn);
    unsigned char *pages = shared(PAGES * PAGE);
    for (int round = 0; round < TURNS; round++) {
        for (int page = 0; page < PAGES; page++)
            CHECK(pages[page * PAGE + node] == (unsigned char)round, "a page lost what this node wrote");
        hiroba_barrier();
        hiroba_lock(LOCK);
        for (int page = 0; page < PAGES; page++)
            pages[page * PAGE + node]++;
        while (*turn != round * nodes + node)
            hiroba_cond_wait(NEW_TURN, LOCK);
        ++*turn;
        hiroba_unlock(LOCK);
        for (int hint = 0; hint < 3; hint++)
            hiroba_cond_broadcast(NEW_TURN);
        hiroba_barrier();
    }
    CHECK(*turn == TURNS * nodes, "%d turns were taken with signals outside the lock", *turn);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    pass_items(0);
    pass_items(1);

    int *turn = shared(sizeof *turn);
    for (int round = 0; round < TURNS; round++) {
        hiroba_lock(LOCK);
        while (*turn != round * nodes + node)
            hiroba_cond_wait(NEW_TURN, LOCK);
        ++*turn;
        hiroba_cond_broadcast(NEW_TURN);
        hiroba_unlock(LOCK);
    }
    hiroba_barrier();
    CHECK(*turn == TURNS * nodes, "%d turns were taken", *turn);
    signal_without_lock();
    hiroba_finalize();
    return 0;
}
