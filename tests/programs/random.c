/*
 * Proves: random programs without data races behave as on one machine. Between two barriers every cell of a
 * few pages belongs to one random node, which writes it, or to none, and then any node may read it. Other
 * words of the same pages are counters under locks, and atomics. All nodes draw the same random numbers, so
 * each knows every value.
 *
 *     random [SEED [EPOCHS]]
 */
#include <stdint.h>

#include "check.h"

enum {
    PAGES = 6,
    WORDS_A_PAGE = 1024, /* of 4 bytes */
    CELLS = 240,
    LOCKS = 4,
    COPIES = 3, /* places of each lock's counter, on different pages */
    ATOMICS = 3,
    SECTIONS = 12 /* sections of a node under locks in an epoch */
};

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

static uint32_t *words;
static size_t cell_at[CELLS];
static size_t counter_at[LOCKS][COPIES];
static uint64_t *atomics[ATOMICS];
static uint32_t cell_expected[CELLS], counter_expected[LOCKS];
static uint64_t atomic_expected[ATOMICS];

/* Assigns every word of the pages to at most one purpose, so that purposes share pages. */
static void deal_words(void)
{
    static unsigned char used[PAGES * WORDS_A_PAGE];
    for (int i = 0; i < CELLS + LOCKS * COPIES + ATOMICS; i++) {
        size_t at;
        do
            at = draw(PAGES * WORDS_A_PAGE / 2) * 2;
        while (used[at]);
        used[at] = 1;
        if (i < CELLS)
            cell_at[i] = at + draw(2); /* the other half of the pair stays idle */
        else if (i < CELLS + LOCKS * COPIES)
            counter_at[(i - CELLS) / COPIES][(i - CELLS) % COPIES] = at;
        else
            atomics[i - CELLS - LOCKS * COPIES] = (uint64_t *)(void *)(words + at);
    }
}

static void add_under_lock(uint32_t lock, uint32_t amount, uint32_t epoch)
{
    hiroba_lock(lock);
    uint32_t before = words[counter_at[lock][0]];
    for (int copy = 0; copy < COPIES; copy++) {
        CHECK(words[counter_at[lock][copy]] == before,
              "epoch %u: copies 0 and %d of the counter of lock %u are %u and %u", (unsigned)epoch,
              copy, (unsigned)lock, (unsigned)before, (unsigned)words[counter_at[lock][copy]]);
        words[counter_at[lock][copy]] = before + amount;
    }
    hiroba_unlock(lock);
}

static void check_cell(int cell, uint32_t epoch)
{
    CHECK(words[cell_at[cell]] == cell_expected[cell], "epoch %u: cell %d is %#x, not %#x",
          (unsigned)epoch, cell, (unsigned)words[cell_at[cell]], (unsigned)cell_expected[cell]);
}

static void check_everything(uint32_t epoch)
{
    for (int cell = 0; cell < CELLS; cell++)
        check_cell(cell, epoch);
    for (int lock = 0; lock < LOCKS; lock++)
        for (int copy = 0; copy < COPIES; copy++)
            CHECK(words[counter_at[lock][copy]] == counter_expected[lock],
                  "epoch %u: the counter of lock %d is %u, not %u", (unsigned)epoch, lock,
                  (unsigned)words[counter_at[lock][copy]], (unsigned)counter_expected[lock]);
    for (int i = 0; i < ATOMICS; i++)
        CHECK(hiroba_load(atomics[i]) == atomic_expected[i], "epoch %u: atomic %d is %lu, not %lu",
              (unsigned)epoch, i, (unsigned long)hiroba_load(atomics[i]),
              (unsigned long)atomic_expected[i]);
}

static void play_epoch(uint32_t epoch, uint32_t node, uint32_t nodes)
{
    uint32_t writers = 1 + draw(nodes + 1); /* up to all of them, or none */
    uint32_t written = draw(4);             /* of four cells: none to three */
    for (int cell = 0; cell < CELLS; cell++) {
        uint32_t owner = draw(writers), value = draw(UINT32_C(0x7fffffff));
        if (draw(4) >= written || owner >= nodes) {
            if ((uint32_t)cell % nodes == node || value % 8 == 0)
                check_cell(cell, epoch); /* no node writes it in this epoch */
            continue;
        }
        if (owner == node) {
            check_cell(cell, epoch);
            words[cell_at[cell]] = value;
        }
        cell_expected[cell] = value;
    }
    for (uint32_t who = 0; who < nodes; who++)
        for (int section = 0; section < SECTIONS; section++) {
            uint32_t kind = draw(3), lock = draw(LOCKS), amount = draw(1000);
            if (kind == 0) {
                if (who == node)
                    hiroba_fetch_add(atomics[lock % ATOMICS], amount);
                atomic_expected[lock % ATOMICS] += amount;
            } else if (kind == 1) {
                if (who == node)
                    add_under_lock(lock, amount, epoch);
                counter_expected[lock] += amount;
            }
        }
    hiroba_barrier();
    if (draw(4) == 0) {
        check_everything(epoch);
        hiroba_barrier();
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    uint32_t epochs = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 200;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    words = shared(PAGES * WORDS_A_PAGE * sizeof *words);
    for (int i = 0; i < 10; i++)
        draw(2); /* small seeds start alike */
    deal_words();
    for (uint32_t epoch = 0; epoch < epochs; epoch++)
        play_epoch(epoch, (uint32_t)hiroba_node(), (uint32_t)hiroba_nodes());
    check_everything(epochs);
    hiroba_finalize();
    return 0;
}
